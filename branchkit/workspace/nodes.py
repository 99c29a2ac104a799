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
from branchkit.workspace.kept import NODE_MASK, TAMED_HANDLE, WRITE_HANDLE, Kept
from branchkit.workspace.layers import FID_BITS

FID_MASK = (1 << FID_BITS) - 1
ROOT = 1

__all__ = ["FID_MASK", "NODE_MASK", "ROOT", "TAMED_HANDLE", "WRITE_HANDLE", "Mounted", "Nodes"]


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

    @property
    def loaded(self) -> Live | None:
        """The branch's state if somebody has looked into it."""
        return self._live

    def close(self) -> None:
        """Give back what a loaded branch holds."""
        if self._live is not None:
            self._live.close()


class Nodes:
    """Branches by name and number; what the kernel holds of them is counted in `kept`."""

    def __init__(self, changed: Callable[[int], None], kept: Kept) -> None:
        """``changed`` is called with each node whose attributes are not what they were."""
        self.names: dict[bytes, int] = {}
        self.kept = kept
        self._changed = changed
        self._branches: dict[int, Mounted] = {}
        self._dropped: set[int] = set()

    def add(
        self, name: bytes, number: int, load: Callable[[], Live], ended: Callable[[], None]
    ) -> None:
        """Show a branch under ``name``; ``ended`` is called when a dropped one is not used."""
        self._mount(number, load, ended)
        self.names[name] = number

    def add_dropped(self, number: int, load: Callable[[], Live], ended: Callable[[], None]) -> None:
        """Go on with a branch that was dropped before a restart and has files open."""
        self._mount(number, load, ended)
        self._dropped.add(number)

    def _mount(self, number: int, load: Callable[[], Live], ended: Callable[[], None]) -> None:
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

    def remove(self, name: bytes) -> None:
        """Take a branch away; files that are open in it can be used until they are closed."""
        number = self.names.pop(name)
        self._dropped.add(number)
        self._end_if_unused(number)

    def dirty(self, name: bytes) -> list[int]:
        """Nodes whose pages the kernel may hold unwritten: open for writing, or mapped."""
        return self.kept.writers(self.names[name])

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

    def commit(self, live: Live, changes: Sequence[Change]) -> None:
        """Carry out what a request asks for that must not happen twice.

        Its reply has to follow before another request is served. See `kept.Kept.begin`.
        """
        if changes:
            self.kept.begin(live.tree.layer, live.log.size_bytes)
            live.commit(changes)

    def forget(self, node: int, lookups: int) -> bool:
        """The kernel has given back that many lookups; whether that were all."""
        if not self.kept.forgotten(node, lookups):
            return False
        self._drop_if_orphan(node)
        return True

    def opened(self, node: int, flags: int) -> int:
        """The handle of a file that was just opened."""
        handle = node if flags & os.O_ACCMODE == os.O_RDONLY else node | WRITE_HANDLE
        self.kept.opened(handle)
        return handle

    def closed(self, handle: int) -> None:
        """The last close of a handle."""
        node = handle & NODE_MASK
        mounted = self._branches.get(node >> FID_BITS)
        if not self.kept.closed(handle & ~TAMED_HANDLE) or mounted is None:
            return
        if mounted.loaded is not None:
            mounted.loaded.contents.release(node & FID_MASK)
        self._drop_if_orphan(node)
        if node >> FID_BITS in self._dropped:
            self._end_if_unused(node >> FID_BITS)

    def lost_name(self, node: int) -> None:
        """One of the names of ``node`` is gone."""
        self._changed(node)
        self._drop_if_orphan(node)

    def _drop_if_orphan(self, node: int) -> None:
        """Give back an inode that nobody can reach: no name, not open, not remembered."""
        mounted = self._branches.get(node >> FID_BITS)
        if mounted is not None and mounted.loaded is not None and not self.kept.holds(node):
            mounted.loaded.forget(node & FID_MASK)

    def _end_if_unused(self, number: int) -> None:
        if self.kept.open_in(number):
            return
        # Not when the kernel has forgotten its last inode: without need it never does. Whoever
        # still stands in a dropped branch gets ESTALE.
        self._dropped.discard(number)
        mounted = self._branches.pop(number)
        mounted.close()
        mounted.ended()
