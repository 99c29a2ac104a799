"""Entries of a tree (from a directory, or from a pack) put into a live branch."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from branchkit.workspace import edit
from branchkit.workspace.branch import Live
from branchkit.workspace.listing import Content
from branchkit.workspace.scan import Entry
from branchkit.workspace.sparse import read_regions

ContentOf = Callable[[Entry], Content]


def graft(live: Live, removed: Iterable[str], entries: Sequence[Entry], content: ContentOf) -> None:
    """Make ``live`` have exactly ``entries`` where they say so, and nothing at ``removed``.

    A file is always made anew: written in place it would also change under its other hard links,
    of which all that still are its links stand in ``entries`` too.
    """
    in_order, removed = sorted(entries), sorted(removed, reverse=True)
    around = _times_around(live, [*removed, *(e.path for e in in_order)])
    for path in removed:  # what is in a directory goes before it
        _remove(live, path)
    for entry in in_order:
        if entry.path:
            _clear_way(live, entry)
    made: dict[int, int] = {}
    for entry in in_order:
        if entry.path:
            _make(live, entry, made, content)
    for entry in reversed(in_order):  # parents last: making children changed their times
        _set_meta(live, entry)
    for path in around.keys() - {e.path for e in in_order} - set(removed):
        live.commit(edit.meta(live.tree, find(live, path), time.time_ns(), mtime_ns=around[path]))


def _times_around(live: Live, paths: Iterable[str]) -> dict[str, int]:
    """mtimes of the directories that hold ``paths``: making a file anew must not change them."""
    times: dict[str, int] = {}
    for parent in {path.rpartition("/")[0] for path in paths if path}:
        with suppress(FileNotFoundError, NotADirectoryError):  # it will be made
            times[parent] = live.tree.get(find(live, parent)).mtime_ns
    return times


def find(live: Live, path: str) -> int:
    """The fid at ``path``; OSError when there is none."""
    fid = live.tree.root
    for name in path.split("/") if path else []:
        fid = edit.child(live.tree, fid, os.fsencode(name))
    return fid


def _place(live: Live, path: str) -> tuple[int, bytes]:
    parent, _, name = path.rpartition("/")
    return find(live, parent), os.fsencode(name)


def _remove(live: Live, path: str) -> None:
    try:
        parent, name = _place(live, path)
        fid = edit.child(live.tree, parent, name)
    except (FileNotFoundError, NotADirectoryError):
        return  # it went with a directory that was replaced
    if live.tree.get(fid).is_dir:
        for below in list(live.tree.entries(fid)):
            _remove(live, f"{path}/{os.fsdecode(below)}")
        live.commit(edit.rmdir(live.tree, parent, name, time.time_ns()).changes)
    else:
        live.commit(edit.unlink(live.tree, parent, name, time.time_ns()).changes)
    live.forget(fid)


def _clear_way(live: Live, entry: Entry) -> None:
    try:
        fid = find(live, entry.path)
    except (FileNotFoundError, NotADirectoryError):
        return
    if not (entry.is_dir and live.tree.get(fid).is_dir):
        _remove(live, entry.path)


def _make(live: Live, entry: Entry, made: dict[int, int], content: ContentOf) -> None:
    parent, name = _place(live, entry.path)
    if name in live.tree.entries(parent):
        return  # a directory that stays
    now_ns = time.time_ns()
    if entry.link in made and entry.link:
        live.commit(edit.link(live.tree, made[entry.link], parent, name, now_ns))
        return
    owner, target = (os.geteuid(), os.getegid()), os.fsencode(entry.target)
    new = edit.make(
        live.tree, parent, name, entry.mode, owner, now_ns, rdev=entry.rdev, target=target
    )
    live.commit(new.changes)
    if entry.link:
        made[entry.link] = new.fid
    if entry.is_file:
        _fill(live, new.fid, entry, content(entry))


def _fill(live: Live, fid: int, entry: Entry, content: Content) -> None:
    if isinstance(content, bytes):
        if content:
            live.write(fid, 0, content, time.time_ns())
        return
    regions = read_regions(content, entry.size) if isinstance(content, Path) else content
    for offset, data in regions:
        live.write(fid, offset, data, time.time_ns())
    if live.tree.get(fid).size < entry.size:  # it ends with zeros
        live.resize(fid, entry.size, time.time_ns())


def _set_meta(live: Live, entry: Entry) -> None:
    fid, now_ns, wanted = find(live, entry.path), time.time_ns(), entry.raw_xattrs()
    for name in live.tree.xattrs(fid).keys() - wanted.keys():
        if name.startswith(b"user."):
            live.commit(edit.set_xattr(live.tree, fid, name, None, now_ns))
    for name, value in wanted.items():
        if live.tree.xattrs(fid).get(name) != value:
            live.commit(edit.set_xattr(live.tree, fid, name, value, now_ns))
    live.commit(edit.meta(live.tree, fid, now_ns, mode=entry.mode, mtime_ns=entry.mtime_ns))
