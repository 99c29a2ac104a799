"""Name operations and directory listings by node: what the handlers do, without FUSE types."""

from __future__ import annotations

import errno
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple
from zlib import crc32

from branchkit.workspace import edit
from branchkit.workspace.branch import Live
from branchkit.workspace.layers import FID_BITS
from branchkit.workspace.nodes import FID_MASK, ROOT, Nodes

_TWIN_BITS = 16  # of a position: which of the names of one inode in one directory
_TWIN_MASK = (1 << _TWIN_BITS) - 1
_position = attrgetter("after")


class Listed(NamedTuple):
    """One name of a listing, and the position to go on from."""

    name: bytes
    node: int
    after: int


def lookup(nodes: Nodes, parent: int, name: bytes) -> int | None:
    """The node under ``name``; None when there is none and the kernel may remember that."""
    if parent == ROOT:
        if name not in nodes.names:
            raise edit.error(errno.ENOENT)  # not to be remembered: it may be made any time
        return nodes.root(nodes.names[name])
    live, fid = nodes.at(parent)
    child = live.tree.entries(fid).get(name)
    if child is None and len(name) > edit.NAME_BYTES:
        raise edit.error(errno.ENAMETOOLONG)
    return None if child is None else parent & ~FID_MASK | child


def make(
    nodes: Nodes,
    parent: int,
    name: bytes,
    mode: int,
    owner: tuple[int, int],
    *,
    rdev: int = 0,
    target: bytes = b"",
) -> int:
    """A new inode under ``name``; returns its node."""
    live, fid = nodes.at(parent)
    now_ns = time.time_ns()
    made = edit.make(live.tree, fid, name, mode, owner, now_ns, rdev=rdev, target=target)
    nodes.commit(live, made.changes)
    return parent & ~FID_MASK | made.fid


def link(nodes: Nodes, node: int, parent: int, name: bytes) -> None:
    """Another name for a file of the same branch."""
    live, fid = nodes.at(node)
    _same_branch(node, parent)
    nodes.commit(live, edit.link(live.tree, fid, parent & FID_MASK, name, time.time_ns()))


def unlink(nodes: Nodes, parent: int, name: bytes) -> None:
    """Remove a name; the inode lives on while it is open."""
    live, fid = nodes.at(parent)
    gone = edit.unlink(live.tree, fid, name, time.time_ns())
    nodes.commit(live, gone.changes)
    nodes.lost_name(parent & ~FID_MASK | gone.fid)


def rmdir(nodes: Nodes, parent: int, name: bytes) -> None:
    """Remove an empty directory."""
    live, fid = nodes.at(parent)
    gone = edit.rmdir(live.tree, fid, name, time.time_ns())
    nodes.commit(live, gone.changes)
    nodes.lost_name(parent & ~FID_MASK | gone.fid)


def rename(nodes: Nodes, parent: int, name: bytes, to: int, new_name: bytes, flags: int) -> None:
    """Move a name within its branch."""
    live, fid = nodes.at(parent)
    _same_branch(parent, to)
    now_ns = time.time_ns()
    done = edit.rename(live.tree, fid, name, to & FID_MASK, new_name, now_ns, flags)
    nodes.commit(live, done.changes)
    if done.fid:
        nodes.lost_name(parent & ~FID_MASK | done.fid)


def set_attributes(
    nodes: Nodes,
    node: int,
    caller: int,
    *,
    size: int | None,
    mode: int | None,
    uid: int | None,
    gid: int | None,
    atime_ns: int | None,
    mtime_ns: int | None,
) -> None:
    """chmod, chown, utimens and truncate by the user ``caller``; None leaves one as it is."""
    live, fid = nodes.at(node)
    now_ns = time.time_ns()
    if size is not None:
        live.resize(fid, size, now_ns)
    # chown(2) takes privileges away for root too, truncate(2) does not.
    if uid is not None or gid is not None or (size is not None and caller):
        tame(live, fid, caller)
    times = {"atime_ns": atime_ns, "mtime_ns": mtime_ns}
    live.commit(edit.meta(live.tree, fid, now_ns, mode=mode, uid=uid, gid=gid, **times))


def tame(live: Live, fid: int, uid: int) -> None:
    """Take away what a file must not keep when ``uid`` writes it: see `edit.kill_privileges`."""
    live.commit(edit.kill_privileges(live.tree, fid, time.time_ns(), uid=uid))


def _same_branch(one: int, two: int) -> None:
    if one >> FID_BITS != two >> FID_BITS:
        raise edit.error(errno.EXDEV)


class Listings:
    """Open directories. A handle is the directory's node, a position says which inode was named
    last: so both mean the same while names come and go (readdir(3)) and after a restart.
    """

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._read: dict[int, list[Listed]] = {}

    def open(self, node: int) -> int:
        """A handle; the names are read when the listing starts, anew whenever it is rewound."""
        return node

    def close(self, handle: int) -> None:
        """Forget what was read; whoever else has the directory open has it read again."""
        self._read.pop(handle, None)

    def node(self, handle: int) -> int:
        """The directory that was opened."""
        return handle

    def names(self, handle: int, start: int) -> Iterator[Listed]:
        """The names from position ``start`` on that are still there."""
        listed = self._read.get(handle) if start else None
        if listed is None:
            listed = self._read[handle] = self._listed(handle)
        for each in listed[bisect_right(listed, start, key=_position) :]:
            # One removed since would be planted in the kernel's cache again by naming it.
            if self._is_there(handle, each.name, each.node):
                yield each

    def _is_there(self, node: int, name: bytes, child: int) -> bool:
        if node == ROOT:
            return self._nodes.names.get(name) == child >> FID_BITS
        live, fid = self._nodes.at(node)
        return live.tree.entries(fid).get(name) == child & FID_MASK

    def _listed(self, node: int) -> list[Listed]:
        if node == ROOT:
            root, branches = self._nodes.root, self._nodes.names.items()
            listed = [Listed(name, root(each), each << _TWIN_BITS) for name, each in branches]
            return sorted(listed, key=_position)
        live, fid = self._nodes.at(node)
        prefix = node & ~FID_MASK
        # Names of one inode in one directory are told apart by a checksum, which stays the same
        # when one of them goes.
        listed = [
            Listed(name, prefix | child, child << _TWIN_BITS | crc32(name) & _TWIN_MASK)
            for name, child in live.tree.entries(fid).items()
        ]
        listed.sort(key=_position)
        return _apart(listed) if len(set(map(_position, listed))) < len(listed) else listed


def _apart(listed: Sequence[Listed]) -> list[Listed]:
    """``listed`` with a position of its own for each name."""
    apart = list(listed[:1])
    for each in listed[1:]:
        apart.append(each._replace(after=max(each.after, apart[-1].after + 1)))
    return apart
