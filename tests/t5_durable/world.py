"""A world outside the run, in files: what was done is counted there, whoever believes what."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

from branchkit.boundary.calls import Call
from branchkit.boundary.session import Decision
from branchkit.harness.tools import Key, ProbeAnswer, Tool, tool

Kind = Literal["pure", "keyed", "probed", "plain"]
KINDS: tuple[Kind, ...] = ("pure", "keyed", "probed", "plain")


class World:
    """What the tools of a run did, by tool; a file each, so that it outlives every process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def marks(self, name: str) -> list[str]:
        """The marks under which ``name`` was really done, one each time."""
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    def count(self, name: str) -> int:
        """How often ``name`` was really done."""
        return len(self.marks(name))

    def do(self, name: str, mark: str = "", *, once: bool = False) -> None:
        """Do it; ``once`` for each mark, as a server with idempotency keys does."""
        if once:
            try:
                os.close(os.open(self.folder / f"{name}-{mark}", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return
        with (self.folder / name).open("a") as stream:
            stream.write(f"{mark}\n")

    def tool(self, kind: Kind, name: str = "act") -> Tool:
        """A tool of that kind, called ``name``, which counts here."""

        def act(key: Key) -> str:
            self.do(name, key, once=kind == "keyed")
            return f"{name} done"

        def look(_arguments: dict[str, Any], key: str) -> ProbeAnswer:
            done = key in self.marks(name)
            return ProbeAnswer("completed", f"{name} done") if done else ProbeAnswer("not_done")

        act.__name__ = name
        match kind:
            case "pure":
                return tool(effect="pure")(act)
            case "keyed":
                return tool(effect="external", key=True)(act)
            case "probed":
                return tool(effect="external", probe=look)(act)
            case "plain":
                return tool(effect="external")(act)


def held(call: Call) -> Decision:
    """A policy that holds everything."""
    return Decision("hold", "house rules", "a person must look")
