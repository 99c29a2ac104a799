"""What differs between two states of one lineage: a walk of the directories that lead there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Literal, NamedTuple

from branchkit.workspace import hashes
from branchkit.workspace.branch import Live
from branchkit.workspace.layers import Tree


class Change(NamedTuple):
    """One path that is not what it was."""

    path: str
    what: Literal["added", "removed", "changed"]


class Pair(NamedTuple):
    """A path and its inode in the old and in the new state (None: not there)."""

    path: str
    old: int | None
    new: int | None
    in_git_dir: bool  # in both


def changes(old: Live, new: Live) -> list[Change]:
    """Sorted changes; empty exactly when the two tree hashes are equal."""
    found = []
    for pair in pairs(old, new, logical=True):
        if pair.old is None:
            found.append(Change(pair.path, "added"))
        elif pair.new is None:
            found.append(Change(pair.path, "removed"))
        elif _own_digest(old, pair.old, pair) != _own_digest(new, pair.new, pair):
            found.append(Change(pair.path, "changed"))
    return sorted(found)


def _own_digest(live: Live, fid: int, pair: Pair) -> bytes:
    """The digest of one inode; of a directory without what is in it."""
    rec = live.tree.get(fid)
    if rec.is_dir:
        return hashes.directory(rec.mode, (), live.tree.xattrs(fid))
    name = os.fsencode(pair.path.rpartition("/")[2])
    return live.merkle.child(name, fid, in_git_dir=pair.in_git_dir)


def pairs(old: Live, new: Live, *, logical: bool) -> Iterator[Pair]:
    """Every path that may differ, parents first; ``logical`` leaves out what is volatile."""
    leads = _leads(old.tree, new.tree)
    waiting: list[Pair] = [Pair("", old.tree.root, new.tree.root, False)]
    while waiting:
        pair = waiting.pop()
        yield pair
        was, was_git = _names(old, pair.old, logical)
        now, now_git = _names(new, pair.new, logical)
        prefix = pair.path + "/" if pair.path else ""
        for name in sorted(was.keys() | now.keys(), reverse=True):
            one, two = was.get(name), now.get(name)
            if one is not None and one == two and _untouched(old.tree, new.tree, one, leads):
                continue
            waiting.append(Pair(prefix + os.fsdecode(name), one, two, was_git and now_git))


def _names(live: Live, fid: int | None, logical: bool) -> tuple[dict[bytes, int], bool]:
    if fid is None or not live.tree.get(fid).is_dir:
        return {}, False
    entries = live.tree.entries(fid)
    if not logical:
        return entries, False
    in_git_dir = hashes.is_git_dir(entries)
    kept = {n: f for n, f in entries.items() if not hashes.excluded(n, in_git_dir=in_git_dir)}
    return kept, in_git_dir


def _untouched(old: Tree, new: Tree, fid: int, leads: set[int] | None) -> bool:
    if leads is None:
        rec = old.get(fid)
        return rec is new.get(fid) and not rec.is_dir
    return fid not in leads


def _leads(old: Tree, new: Tree) -> set[int] | None:
    """What changed and every directory above it, in either state; None = cannot be told."""
    fresh = len(new.layers) - len(old.layers)
    kept = new.layers[max(fresh, 0) :]
    if len(kept) != len(old.layers) or any(
        a is not b for a, b in zip(kept, old.layers, strict=True)
    ):
        return None  # the layers were merged in between
    changed = [fid for layer in (new.top, *new.layers[:fresh]) for fid in layer]
    return _climb(old, changed) | _climb(new, changed)


def _climb(tree: Tree, fids: list[int]) -> set[int]:
    """``fids`` and all that is above them in ``tree``; what the tree does not have is left out."""
    leads: set[int] = set()
    waiting = list(fids)
    while waiting:
        fid = waiting.pop()
        if fid in leads:
            continue
        try:
            parents = tree.get(fid).parents
        except (KeyError, FileNotFoundError):
            continue  # made later, or gone since: the other state leads to it
        leads.add(fid)
        waiting += parents
    return leads
