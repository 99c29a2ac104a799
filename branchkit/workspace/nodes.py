"""Which branches are mounted, and what the kernel holds of them: no FUSE library in here.

nodeid = branch number << 40 | fid, so a request names its branch itself and no request depends on
which branch is "current".
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence

from branchkit.workspace.branch import Live
from branchkit.workspace.changes import Change, Put
from branchkit.workspace.layers import FID_BITS

FID_MASK = (1 << FID_BITS) - 1
WRITE_HANDLE = 1 << 62  # in a handle: it may write, so its pages may be dirty
TAMED_HANDLE = 1 << 61  # in a handle: opened by somebody whose writes take setuid bits away
NODE_MASK = TAMED_HANDLE - 1
ROOT = 1


class Mounted:
    """A branch as the mount knows it; loaded when somebody first looks into it."""

    def __init__(self, load: Callable[[], Live], ended: Callable[[], None]) -> None:
        self._load = load
        self._live: Live | None = None
        self.ended = ended  # called when it was dropped and nobody uses it any more

    @property
    def live(self) -> Live:
        """The branch's state."""
        if self._live is None:
            self._live = self._load()
        return self._live

    def close(self) -> None:
        """Give back what a loaded branch holds."""
        if self._live is not None:
            self._live.close()


class Nodes:
    """Branches by name and number; lookups and open handles by node."""

    def __init__(self, changed: Callable[[int], None]) -> None:
        """``changed`` is called with each node whose attributes are not what they were."""
        self.names: dict[bytes, int] = {}
        self.opens: dict[int, int] = {}
        self._changed = changed
        self._branches: dict[int, Mounted] = {}
        self._dropped: set[int] = set()
        self._refs: dict[int, dict[int, int]] = {}  # branch number -> fid -> kernel's lookups
        self._writers: dict[int, int] = {}

    def add(
        self, name: bytes, number: int, load: Callable[[], Live], ended: Callable[[], None]
    ) -> None:
        """Show a branch under ``name``; ``ended`` is called when a dropped one is not used."""
        prefix = number << FID_BITS

        def pass_on(changes: Sequence[Change]) -> None:
            for change in changes:
                self._changed(prefix | change.fid)
                if isinstance(change, Put):
                    self._changed(prefix | change.child)

        def hooked() -> Live:
            live = load()
            live.on_change = pass_on
            return live

        self._branches[number] = Mounted(hooked, ended)
        self._refs[number] = {}
        self.names[name] = number

    def remove(self, name: bytes) -> None:
        """Take a branch away; files that are open in it can be used until they are closed."""
        number = self.names.pop(name)
        self._dropped.add(number)
        self._end_if_unused(number)

    def dirty(self, name: bytes) -> list[int]:
        """Nodes whose pages the kernel may hold unwritten: open for writing, or mapped."""
        number = self.names[name]
        return [node for node in self._writers if node >> FID_BITS == number]

    def at(self, node: int) -> tuple[Live, int]:
        """The branch and the fid of ``node``; EPERM for the top, ESTALE for what is gone."""
        mounted = self._branches.get(node >> FID_BITS)
        if mounted is None:
            # Branches are made by the API, not by mkdir.
            code = errno.EPERM if node == ROOT else errno.ESTALE
            raise OSError(code, os.strerror(code))
        return mounted.live, node & FID_MASK

    def root(self, number: int) -> int:
        """The node of a branch's own root directory."""
        return number << FID_BITS | self._branches[number].live.tree.root

    def looked_up(self, node: int) -> None:
        """The kernel was told of ``node`` and will remember it."""
        refs = self._refs[node >> FID_BITS]
        fid = node & FID_MASK
        refs[fid] = refs.get(fid, 0) + 1

    def forget(self, node: int, lookups: int) -> bool:
        """The kernel has given back that many lookups; whether that were all."""
        refs = self._refs.get(node >> FID_BITS)
        if refs is None:
            return True
        fid = node & FID_MASK
        left = refs.get(fid, 0) - lookups
        if left > 0:
            refs[fid] = left
            return False
        refs.pop(fid, None)
        self._drop_if_orphan(node)
        return True

    def opened(self, node: int, flags: int) -> int:
        """The handle of a file that was just opened."""
        self.opens[node] = self.opens.get(node, 0) + 1
        if flags & os.O_ACCMODE == os.O_RDONLY:
            return node
        self._writers[node] = self._writers.get(node, 0) + 1
        return node | WRITE_HANDLE

    def closed(self, handle: int) -> None:
        """The last close of a handle; one from before a restart of the daemon is unknown."""
        node = handle & NODE_MASK
        _count_down(self.opens, node)
        if handle & WRITE_HANDLE:
            _count_down(self._writers, node)
        mounted = self._branches.get(node >> FID_BITS)
        if mounted is None or node in self.opens:
            return
        mounted.live.contents.release(node & FID_MASK)
        self._drop_if_orphan(node)
        if node >> FID_BITS in self._dropped:
            self._end_if_unused(node >> FID_BITS)

    def lost_name(self, node: int) -> None:
        """One of the names of ``node`` is gone."""
        self._changed(node)
        self._drop_if_orphan(node)

    def _drop_if_orphan(self, node: int) -> None:
        """Give back an inode that nobody can reach: no name, not open, not remembered."""
        number, fid = node >> FID_BITS, node & FID_MASK
        if fid not in self._refs[number] and node not in self.opens:
            self._branches[number].live.forget(fid)

    def _end_if_unused(self, number: int) -> None:
        if any(node >> FID_BITS == number for node in self.opens):
            return
        # Not when the kernel has forgotten its last inode: without need it never does. Whoever
        # still stands in a dropped branch gets ESTALE.
        self._dropped.discard(number)
        del self._refs[number]
        mounted = self._branches.pop(number)
        mounted.close()
        mounted.ended()


def _count_down(counts: dict[int, int], key: int) -> None:
    left = counts.get(key, 0) - 1
    if left > 0:
        counts[key] = left
    else:
        counts.pop(key, None)
