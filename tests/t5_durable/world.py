"""A world outside the run, in files: what was done is counted there, whoever believes what."""

from __future__ import annotations

import os
from collections.abc import Callable
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

    def count(self, name: str) -> int:
        """How often ``name`` was really done."""
        path = self.folder / name
        return len(path.read_text().splitlines()) if path.exists() else 0

    def do(self, name: str, key: str = "") -> None:
        """Do it, once for each key that is not empty."""
        if key:
            try:
                os.close(os.open(self.folder / f"{name}-{key}", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return
        with (self.folder / name).open("a") as stream:
            stream.write(f"{key}\n")

    def tool(self, kind: Kind, name: str = "act", before: Callable[[], Any] = bool) -> Tool:
        """A tool of that kind, called ``name``, which counts here and calls ``before`` first."""

        def done() -> str:
            before()
            self.do(name)
            return f"{name} done"

        def done_once(key: Key) -> str:
            before()
            self.do(name, key)
            return f"{name} done"

        def look(_arguments: dict[str, Any], _key: str) -> ProbeAnswer:
            if self.count(name):
                return ProbeAnswer("completed", f"{name} done")
            return ProbeAnswer("not_done")

        done.__name__ = done_once.__name__ = name
        match kind:
            case "pure":
                return tool(effect="pure")(done)
            case "keyed":
                return tool(effect="external", key=True)(done_once)
            case "probed":
                return tool(effect="external", probe=look)(done)
            case "plain":
                return tool(effect="external")(done)


def held(call: Call) -> Decision:
    """A policy that holds everything."""
    return Decision("hold", "house rules", "a person must look")
