"""Which turn changed what: the versions of a path over the snapshots of a run (R65).

Every snapshot knows what changed in it, so a path's history costs no look at any file and catches
what a tool did by itself: a shell command shows here as much as an edit tool.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

from branchkit.errors import UsageError
from branchkit.workspace.mount import Workspaces
from branchkit.workspace.portable import BASES, SNAPSHOTS, export

What = Literal["present", "added", "changed", "removed"]


class Version(NamedTuple):
    """One version of a path. ``turn`` 0 is the state that the run began with."""

    path: str
    turn: int
    what: What
    snapshot: str | None
    sha256: str | None
    size: int | None
    mode: int | None


class Taken(NamedTuple):
    """A snapshot of the run and the turn whose tools left it."""

    snapshot: str
    turn: int


def history(ws: Workspaces, *, base: str, taken: Sequence[Taken], path: str) -> list[Version]:
    """The versions of ``path``, oldest first; a directory's are those of everything below it.

    Raises UsageError if the run never had the path.
    """
    wanted = path.strip("/").removeprefix("./")
    known: dict[str, tuple[Any, ...]] = {}
    found: list[Version] = []
    turns = {one.snapshot: one.turn for one in taken}
    for name, value in _manifests(ws, base, [one.snapshot for one in taken]):
        snapshot = None if name.startswith(BASES) else value["id"]
        turn = turns.get(snapshot, 0) if snapshot else 0
        entries = value["entries"] if snapshot is None else value["changed"]
        for at, entry in sorted(_below(entries, wanted)):
            state = (entry.get("sha256"), entry["mode"], entry.get("target"))
            if known.get(at) == state:
                continue  # only its times changed: nobody asks for those
            what: What = "changed" if at in known else "added"
            known[at] = state
            done: What = what if snapshot else "present"
            sha, size = entry.get("sha256"), entry.get("size")
            found.append(Version(at, turn, done, snapshot, sha, size, entry["mode"]))
        gone: dict[str, dict[str, Any]] = {at: {} for at in value.get("removed", ())}
        for at, _ in _below(gone, wanted):
            known.pop(at, None)
            found.append(Version(at, turn, "removed", snapshot, None, None, None))
    if not found:
        raise UsageError(
            f"the run never had a path {path!r}", hint="paths are relative to the workspace"
        )
    return found


def _manifests(
    ws: Workspaces, base: str, snapshots: Sequence[str]
) -> Iterable[tuple[str, dict[str, Any]]]:
    for name, content in export(ws, base=base, snapshots=snapshots):
        if name.startswith((BASES, SNAPSHOTS)) and isinstance(content, bytes):
            yield name, json.loads(content)


def _below(entries: dict[str, dict[str, Any]], wanted: str) -> list[tuple[str, dict[str, Any]]]:
    if not wanted:
        return list(entries.items())
    inside = wanted + "/"
    return [(at, entry) for at, entry in entries.items() if at == wanted or at.startswith(inside)]
