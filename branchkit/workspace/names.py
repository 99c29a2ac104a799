"""Name operations and directory listings by node: what the handlers do, without FUSE types."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator
from typing import NamedTuple

from branchkit.workspace import edit
from branchkit.workspace.branch import Live
from branchkit.workspace.layers import FID_BITS
from branchkit.workspace.nodes import FID_MASK, ROOT, Nodes


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
    live.commit(made.changes)
    return parent & ~FID_MASK | made.fid


def link(nodes: Nodes, node: int, parent: int, name: bytes) -> None:
    """Another name for a file of the same branch."""
    live, fid = nodes.at(node)
    _same_branch(node, parent)
    live.commit(edit.link(live.tree, fid, parent & FID_MASK, name, time.time_ns()))


def unlink(nodes: Nodes, parent: int, name: bytes) -> None:
    """Remove a name; the inode lives on while it is open."""
    live, fid = nodes.at(parent)
    gone = edit.unlink(live.tree, fid, name, time.time_ns())
    live.commit(gone.changes)
    nodes.lost_name(parent & ~FID_MASK | gone.fid)


def rmdir(nodes: Nodes, parent: int, name: bytes) -> None:
    """Remove an empty directory."""
    live, fid = nodes.at(parent)
    gone = edit.rmdir(live.tree, fid, name, time.time_ns())
    live.commit(gone.changes)
    nodes.lost_name(parent & ~FID_MASK | gone.fid)


def rename(nodes: Nodes, parent: int, name: bytes, to: int, new_name: bytes, flags: int) -> None:
    """Move a name within its branch."""
    live, fid = nodes.at(parent)
    _same_branch(parent, to)
    now_ns = time.time_ns()
    done = edit.rename(live.tree, fid, name, to & FID_MASK, new_name, now_ns, flags)
    live.commit(done.changes)
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
    """Open directories. Positions stay valid while names come and go (readdir(3))."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._open: dict[int, tuple[int, list[tuple[bytes, int]]]] = {}
        self._next = 1

    def open(self, node: int) -> int:
        """A handle; the names are read when the listing starts, anew whenever it is rewound."""
        handle, self._next = self._next, self._next + 1
        self._open[handle] = (node, [])
        return handle

    def close(self, handle: int) -> None:
        """Forget a handle."""
        self._open.pop(handle, None)

    def node(self, handle: int) -> int:
        """The directory that was opened."""
        return self._open[handle][0]

    def names(self, handle: int, start: int) -> Iterator[Listed]:
        """The names from position ``start`` on that are still there."""
        node, names = self._open[handle]
        if start == 0:
            names = self._read(node)
            self._open[handle] = (node, names)
        for at in range(start, len(names)):
            name, child = names[at]
            # One removed since would be planted in the kernel's cache again by naming it.
            if self._is_there(node, name, child):
                yield Listed(name, child, at + 1)

    def _is_there(self, node: int, name: bytes, child: int) -> bool:
        if node == ROOT:
            return self._nodes.names.get(name) == child >> FID_BITS
        live, fid = self._nodes.at(node)
        return live.tree.entries(fid).get(name) == child & FID_MASK

    def _read(self, node: int) -> list[tuple[bytes, int]]:
        if node == ROOT:
            branches = sorted(self._nodes.names.items())
            return [(name, self._nodes.root(number)) for name, number in branches]
        live, fid = self._nodes.at(node)
        prefix = node & ~FID_MASK
        return [(name, prefix | child) for name, child in live.tree.entries(fid).items()]
