"""One live branch: its tree, the log of its top layer and its file contents, kept in step.

Order of a mutation: host file (if any), then the log, then memory. A failure at any step leaves the
branch as it was, so ENOSPC reaches the caller and nothing else happens.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from branchkit import disk
from branchkit.workspace import edit, log
from branchkit.workspace.base import Base
from branchkit.workspace.changes import (
    Change,
    Cut,
    Fill,
    Host,
    Inset,
    Leaves,
    Patch,
    Resize,
    Up,
    Write,
    decode,
    encode,
)
from branchkit.workspace.content import Contents, pwrite_all
from branchkit.workspace.layers import INLINE_BYTES, Frozen, Rec, Tree
from branchkit.workspace.merkle import Merkle, recall
from branchkit.workspace.places import SEGMENT_BYTES, Hosted, Pieces
from branchkit.workspace.space import FRAME_BYTES, Space, file_bytes, taken_bytes
from branchkit.workspace.spares import Spares

INSET_BYTES = 1 << 20  # of big files, in one layer's log: each write takes its space anew


class Tally(NamedTuple):
    """What a top layer holds: names added or changed, and the bytes in them."""

    files: int
    changed_bytes: int


class Care(NamedTuple):
    """What all branches of a store share: disk space put aside, logs made ahead, the cap."""

    reserve: log.Reserve | None
    spares: Spares
    space: Space


class Live:
    """A branch that can be read and written."""

    def __init__(
        self,
        layers: Path,
        base: Base,
        layer: str,
        frozen: Frozen | None,
        care: Care | None = None,
        held: Callable[[int], bool] = lambda fid: False,
    ) -> None:
        """Load the branch; its top layer's log is replayed, a torn tail cut off.

        An inode without a name is kept if it is ``held`` (by the kernel, over a restart).
        """
        self._care = care or Care(None, Spares(layers), Space(layers))
        self._layers = layers
        self.base = base
        self.tree = Tree(base, layer, frozen)
        self.contents = Contents(layers, base)
        self.merkle = Merkle(self.tree, base, self.contents)
        self.on_change: Callable[[Sequence[Change]], None] = lambda changes: None
        self._log: log.Log | None = None
        self._inset_bytes = 0  # since the last freeze
        self._good_bytes = replay(self.tree, self._log_path(layer))
        for fid, rec in self.tree.sweep(held).items():
            if care is not None and isinstance(rec.data, Hosted | Pieces):
                self.contents.host_path(self._place(fid)).unlink(missing_ok=True)
        # What a killed daemon had written and not synced is no safer for having been read again.
        self._unsynced = {fid for fid in self.tree.top if self._lengthened(fid)}

    def _log_path(self, layer: str) -> Path:
        return self._layers / f"{layer}.log"

    @property
    def log(self) -> log.Log:
        """The top layer's log, created at the first mutation."""
        if self._log is None:
            self._log = log.Log(
                self._log_path(self.tree.layer),
                good_bytes=self._good_bytes,
                reserve=self._care.reserve,
            )
        return self._log

    def commit(self, changes: Sequence[Change], blob: bytes | bytearray = b"") -> None:
        """Log ``changes``, then carry them out."""
        if changes:
            frees = all(isinstance(change, Cut | Up) for change in changes) or _empties(changes)
            if not frees:
                self._care.space.want(len(blob) + FRAME_BYTES)
            before = self.log.size_bytes
            self.log.append(encode(changes), blob, frees=frees)
            self._care.space.add(self.log.size_bytes - before)
            self.tree.apply(changes, blob, self.log.size_bytes - len(blob))
            self.on_change(changes)

    def read(self, fid: int, offset: int, size: int) -> bytes:
        """Content of the file ``fid``."""
        return self.contents.read(fid, self.tree.get(fid), offset, size)

    def write(self, fid: int, offset: int, data: bytes, now_ns: int) -> None:
        """Write ``data`` at ``offset``, growing the file if need be."""
        rec = self.tree.get(fid)
        size = max(rec.size, offset + len(data))
        if isinstance(rec.data, bytearray) and size <= INLINE_BYTES:
            changes = edit.up(self.tree, fid)
            self.commit([*changes, Write(fid, offset, len(data), now_ns)], data)
        elif size <= INLINE_BYTES and not self._is_whole_host(fid, rec):
            content = bytearray(self.contents.whole(fid, rec).ljust(size, b"\0"))
            content[offset : offset + len(data)] = data
            self._fill(fid, content, now_ns)
        elif self._is_little(fid, rec, data):
            self._inset_bytes += len(data)
            inset = Inset(fid, offset, len(data), size, now_ns)
            self.commit([*edit.up(self.tree, fid), inset], data)
            self._gather(fid, offset)
        else:
            rec = self._spilled(fid)
            place = self._place(fid)
            fd = self.contents.host_fd(fid, place)
            if offset > rec.size and rec.data == place:
                self._trim(fd, rec)
            with self._counted(fd, len(data)):
                pwrite_all(fd, data, offset)
            self._unsynced.add(fid)
            self._patch(fid, offset, len(data), size, now_ns)
            self._gather(fid, offset)

    def _is_little(self, fid: int, rec: Rec, data: bytes) -> bool:
        """Whether to write ``data`` into the log, so that a freeze has no file more to sync."""
        shared = not isinstance(rec.data, bytearray) and not self._is_whole_host(fid, rec)
        total_bytes = self._inset_bytes + len(data)
        return shared and fid not in self._unsynced and total_bytes <= INSET_BYTES

    def resize(self, fid: int, size: int, now_ns: int) -> None:
        """Cut or extend (with zeros) the file ``fid``."""
        rec = self.tree.get(fid)
        whole = self._is_whole_host(fid, rec)
        if isinstance(rec.data, bytearray) and size <= INLINE_BYTES:
            self.commit([*edit.up(self.tree, fid), Resize(fid, size, now_ns)])
        elif size == 0 or (size <= INLINE_BYTES and not whole):
            content = self.contents.read(fid, rec, 0, size).ljust(size, b"\0")
            has_host = self._has_host(fid)
            self._fill(fid, content, now_ns)
            if has_host:
                self._shorten(fid, 0)
        elif size < rec.size:
            self._patch(fid, 0, 0, size, now_ns)  # logged first: a cut cannot be taken back
            if self._has_host(fid):
                self._shorten(fid, size)
        else:
            rec = self._spilled(fid)
            if rec.data == self._place(fid):
                fd = self.contents.host_fd(fid, self._place(fid))
                self._trim(fd, rec)
                disk.truncate(fd, size)
                self._unsynced.add(fid)
            self._patch(fid, 0, 0, size, now_ns)

    @contextmanager
    def _counted(self, fd: int, more_bytes: int) -> Iterator[None]:
        """Count what a change of a host file takes or gives; DiskFull at the cap."""
        space = self._care.space
        if space.cap_bytes is None:
            yield
            return
        if more_bytes:
            space.want(more_bytes)
        before = file_bytes(fd)
        yield
        space.add(file_bytes(fd) - before)

    def _place(self, fid: int) -> Hosted:
        """The host file that the top layer has for ``fid``, or would have."""
        return Hosted(self.tree.layer, fid)

    def _is_whole_host(self, fid: int, rec: Rec) -> bool:
        return rec.data == self._place(fid)

    def _has_host(self, fid: int) -> bool:
        """Whether the top layer has a host file for ``fid``, with all of its content or a part."""
        path = self.contents.host_path(self._place(fid))
        return isinstance(self.tree.get(fid).data, Hosted | Pieces) and path.exists()

    def _lengthened(self, fid: int) -> bool:
        """Make the host file of ``fid``, if there is one, as long as the file; tells if there is.

        A power loss takes what nobody had synced. There zeros are read then; further down, in what
        a freeze had synced, a host file that ends early is damage.
        """
        found = self._has_host(fid)
        if found:
            fd = self.contents.host_fd(fid, self._place(fid))
            disk.truncate(fd, max(disk.size_bytes(fd), self.tree.get(fid).size))
            self.contents.release(fid)
        return found

    def _spilled(self, fid: int) -> Rec:
        """The record of a file that is not inline (any more)."""
        rec = self.tree.get(fid)
        if isinstance(rec.data, bytearray):
            place = self._place(fid)
            self._care.space.want(rec.size)
            self.contents.make_host(place, rec.data)
            self._care.space.add(taken_bytes(self.contents.host_path(place)))
            self._unsynced.add(fid)
            self.commit([*edit.up(self.tree, fid), Host(fid, rec.size, None)])
            rec = self.tree.get(fid)
        return rec

    def _shorten(self, fid: int, size: int) -> None:
        """Give back what the top layer's host file of ``fid`` holds behind ``size``."""
        fd = self.contents.host_fd(fid, self._place(fid))
        if disk.size_bytes(fd) > size:
            with self._counted(fd, 0):
                disk.truncate(fd, size)

    def _gather(self, fid: int, offset: int) -> None:
        """Copy the segment at ``offset`` whole when many small writes have taken it apart.

        Synced before it is claimed: a power loss must not take bytes that nobody wrote.
        """
        rec = self.tree.get(fid)
        if isinstance(rec.data, Pieces) and rec.data.is_crowded(offset):
            start = offset - offset % SEGMENT_BYTES
            self._inset_bytes = INSET_BYTES
            data = self.contents.read(fid, rec, start, SEGMENT_BYTES)
            fd = self.contents.host_fd(fid, self._place(fid))
            with self._counted(fd, len(data)):
                pwrite_all(fd, data, start)
            disk.fdatasync(fd)
            self._unsynced.add(fid)
            self._patch(fid, start, len(data), rec.size, rec.mtime_ns)

    def _trim(self, fd: int, rec: Rec) -> None:
        # Bytes of a write that failed half way must not show up when the file grows over them.
        if disk.size_bytes(fd) > rec.size:
            disk.truncate(fd, rec.size)

    def _fill(self, fid: int, content: bytes | bytearray, now_ns: int) -> None:
        self.commit([*edit.up(self.tree, fid), Fill(fid, len(content), now_ns)], content)

    def _patch(self, fid: int, offset: int, count: int, size: int, now_ns: int) -> None:
        self.commit([*edit.up(self.tree, fid), Patch(fid, offset, count, size, now_ns)])

    def forget(self, fid: int) -> None:
        """Nobody has ``fid`` open any more: give back what it holds if it has no name either."""
        self.contents.release(fid)
        rec = self.tree.top.get(fid)
        if rec is None or rec.parents or fid == self.tree.root:
            return
        path = self.contents.host_path(self._place(fid))
        # A file that was big once and is small now has an empty host file still.
        has_host = self._has_host(fid) or (fid in self._unsynced and path.exists())
        self.tree.drop(fid)
        self._unsynced.discard(fid)
        if has_host:
            if self._care.space.cap_bytes is not None:
                self._care.space.add(-taken_bytes(path))
            path.unlink()

    def sync(self, fid: int | None = None) -> None:
        """Return once the log (and the host file of ``fid``, or all) is on stable storage."""
        wanted = set(self._unsynced) if fid is None else self._unsynced & {fid}
        for each in wanted:
            if each in self.tree.top and self._has_host(each):
                disk.fdatasync(self.contents.host_fd(each, self._place(each)))
            self._unsynced.discard(each)
        if wanted:
            disk.fsync_dir(self._layers / self.tree.layer)
            disk.fsync_dir(self._layers)
        if self._log is not None:
            self._log.sync()
            self._care.spares.ensure(self.tree.layer)

    def seal(self, row: Mapping[str, Any]) -> None:
        """Write ``row`` behind the last change; returns once that is on stable storage.

        One fdatasync for the row and the changes: where the catalogue lost the row, the log has it.
        """
        self.log.append(*self.merkle.frame()[:2])
        for fid, rec in self.tree.top.items():
            if rec.sums is not None and rec.sums.fresh:  # or a restart would read the file again
                numbers = sorted(rec.sums.fresh)
                blob = b"".join(rec.sums.segments[number] for number in numbers)
                self._care.space.add(len(blob))
                self.log.append(encode([Leaves(fid, numbers)]), blob)
        self.log.append(row)
        self.sync()

    def tally(self) -> Tally:
        """Count what the top layer holds; directories and removed names are not counted."""
        files = [r for r in self.tree.top.values() if not r.is_dir and r.parents]
        return Tally(len(files), sum(r.size for r in files if stat.S_ISREG(r.mode)))

    def push(self, next_layer: str) -> None:
        """Freeze; what follows goes to ``next_layer``. Call `sync` first."""
        self.tree.push(next_layer)
        self._good_bytes = self._inset_bytes = 0
        if self._log is not None:
            self._log.close()
            self._log = None

    def log_bytes(self) -> int:
        """How long the top layer's log is: a shorter one found later is damage."""
        return self.log.size_bytes if self._log is not None else self._good_bytes

    def close(self) -> None:
        """Close all descriptors; the branch stays on disk."""
        self.contents.close()
        if self._log is not None:
            self._log.close()
            self._log = None

    def digest(self) -> bytes:
        """The Merkle digest of the whole tree; computes only what changed since the last time."""
        return self.merkle.digest()


def _empties(changes: Sequence[Change]) -> bool:
    """Whether a file is cut to nothing, which gives its space back."""
    return isinstance(changes[-1], Fill | Resize) and changes[-1].size == 0


def replay(tree: Tree, path: Path) -> int:
    """Apply the log at ``path`` to ``tree``; returns how many bytes of it are good.

    Inodes without a name stay: one that was open during a freeze is written in the next layer too.
    """
    good_bytes = 0
    for frame in log.read(path):
        if isinstance(frame.value, dict):
            recall(tree, frame)
        else:
            tree.apply(decode(frame.value), frame.blob, frame.end_bytes - len(frame.blob))
        good_bytes = frame.end_bytes
    return good_bytes
