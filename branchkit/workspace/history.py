"""Which turn changed what: the versions of a path over the snapshots of a run (R65).

Every snapshot knows what changed in it, so a path's history reads only that, and catches what a
tool did by itself: a shell command shows here as much as an edit tool.
"""

from __future__ import annotations

import posixpath
import stat
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from branchkit.errors import UsageError
from branchkit.workspace import base as bases
from branchkit.workspace import compare, listing
from branchkit.workspace.mount import Workspaces
from branchkit.workspace.scan import Entry
from branchkit.workspace.store import Store

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


class _Step(NamedTuple):
    """What one snapshot differs in from the one before: entries, None where the path is gone."""

    at: Taken | None  # None: the base itself
    entries: list[tuple[str, Entry | None]]


def history(ws: Workspaces, *, base: str, taken: Sequence[Taken], path: str) -> list[Version]:
    """The versions of ``path``, oldest first; a directory's are those of everything below it.

    ``taken`` are the run's snapshots in their order. A change of nothing but times is no version.
    Raises UsageError if the run never had the path.
    """
    wanted = _plain(path)
    known: dict[str, Entry] = {}
    found: list[Version] = []
    for step in _steps(ws, base, taken, wanted):
        for at, entry in sorted(step.entries, key=lambda one: one[0]):
            old = known.get(at)
            if entry is None:
                if known.pop(at, None) is not None:
                    found.append(_version(step, at, "removed", None))
            elif old is None or _state(old) != _state(entry):
                known[at] = entry
                what: What = "added" if old is None else "changed"
                found.append(_version(step, at, what if step.at else "present", entry))
    if not found:
        raise UsageError(
            f"the run never had a path {path!r}", hint="paths are relative to the workspace"
        )
    return found


def _plain(path: str) -> str:
    """``path`` as snapshots write it: relative, "" for the workspace itself."""
    plain = posixpath.normpath(path.lstrip("/") or ".")
    if plain == ".." or plain.startswith("../"):
        raise UsageError(
            f"{path!r} leads out of the workspace", hint="paths are relative to the workspace"
        )
    return "" if plain == "." else plain


def _steps(ws: Workspaces, base: str, taken: Sequence[Taken], wanted: str) -> Iterator[_Step]:
    """The base and each snapshot once. Reads the store's files: what is frozen stays as it is."""
    store = Store(ws.store, writable=False)
    try:
        entries = [one for one in bases.manifest(ws.store, base) if _is_below(one.path, wanted)]
        yield _Step(None, [(one.path, one) for one in entries])
        before: str | None = None
        for one in taken:
            if one.snapshot != before:
                yield _Step(one, list(_differences(store, base, before, one.snapshot, wanted)))
            before = one.snapshot
    finally:
        store.close()


def _differences(
    store: Store, base: str, before: str | None, after: str, wanted: str
) -> Iterator[tuple[str, Entry | None]]:
    old, new = store.view(base, before), store.view(base, after)
    try:
        for pair in compare.pairs(old, new, logical=False):
            if not _is_below(pair.path, wanted):
                continue
            if pair.new is None:
                yield pair.path, None
            else:
                yield pair.path, listing.entry_of(new, pair.new, pair.path)
    finally:
        old.close()
        new.close()


def _is_below(path: str, wanted: str) -> bool:
    return not wanted or path == wanted or path.startswith(wanted + "/")


def _state(entry: Entry) -> tuple[object, ...]:
    """What makes a version: all but times, and which names share an inode."""
    return entry.mode, entry.sha, entry.target, entry.rdev, sorted(entry.xattrs.items())


def _version(step: _Step, path: str, what: What, entry: Entry | None) -> Version:
    turn, snapshot = (step.at.turn, step.at.snapshot) if step.at else (0, None)
    if entry is None:
        return Version(path, turn, what, snapshot, None, None, None)
    sha = entry.sha if stat.S_ISREG(entry.mode) else None
    return Version(path, turn, what, snapshot, sha, entry.size, entry.mode)
