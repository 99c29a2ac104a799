"""The contents of one live branch's files: inline, in host files, in the base, or in pieces.

State is per inode, never per handle: all handles of a file share its descriptors, so a reader that
opened it before its first write sees what is written later.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from branchkit import disk
from branchkit.workspace import sums
from branchkit.workspace.base import Base
from branchkit.workspace.layers import Rec
from branchkit.workspace.places import SEGMENT_BYTES, Hosted, InBase, Logged, Piece, Pieces, Place
from branchkit.workspace.scan import CHUNK_BYTES
from branchkit.workspace.sparse import data_regions, is_hole

DESCRIPTORS = 16  # open at once for one file; one that many layers have written may need more
_FICLONE = 0x40049409


class Contents:
    """Host files of a store's layers, and the descriptors that are open on them."""

    def __init__(self, layers: Path, base: Base) -> None:
        self._layers = layers
        self._base = base
        self._open: dict[int, dict[Place | str, int]] = {}

    def host_path(self, place: Hosted) -> Path:
        """The host file that is meant."""
        return self._layers / place.layer / str(place.fid)

    def fd(self, fid: int, place: Place) -> int:
        """A descriptor on what ``fid`` has in ``place``; only the top layer's may be written.

        It may be closed by the next call.
        """
        cached = self._open.setdefault(fid, {})
        key = place.layer if isinstance(place, Logged) else place  # one log, many shifts
        fd = cached.get(key)
        if fd is None:
            while len(cached) >= DESCRIPTORS:
                os.close(cached.pop(next(iter(cached))))
            if isinstance(place, InBase):
                fd = self._base.open(place)
            elif isinstance(place, Logged):
                fd = os.open(self._layers / f"{place.layer}.log", os.O_RDONLY | os.O_CLOEXEC)
            else:
                fd = os.open(self.host_path(place), os.O_RDWR | os.O_CLOEXEC)
            cached[key] = fd
        return fd

    def host_fd(self, fid: int, place: Hosted) -> int:
        """The same for a host file that is to be written and may not be there yet."""
        try:
            return self.fd(fid, place)
        except FileNotFoundError:
            path = self.host_path(place)
            path.parent.mkdir(exist_ok=True)
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            return self.fd(fid, place)

    def release(self, fid: int) -> None:
        """Close the descriptors of ``fid``, if there are any."""
        for fd in self._open.pop(fid, {}).values():
            os.close(fd)

    def close(self) -> None:
        """Close every descriptor."""
        for fid in list(self._open):
            self.release(fid)

    def pieces(self, rec: Rec, start: int, stop: int) -> Iterable[Piece]:
        """Where these bytes of a file that is not inline lie."""
        if isinstance(rec.data, Hosted | InBase):
            return (Piece(start, stop, rec.data),)
        if isinstance(rec.data, Pieces):
            return rec.data.within(start, stop)
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    def read(self, fid: int, rec: Rec, offset: int, size: int) -> bytes:
        """Up to ``size`` bytes at ``offset``; fewer only at the end of the file."""
        data = rec.data
        if isinstance(data, bytearray):
            return bytes(data[offset : offset + size])
        stop = min(offset + size, rec.size)
        if stop <= offset:
            return b""
        found = [self._piece(fid, piece) for piece in self.pieces(rec, offset, stop)]
        return found[0] if len(found) == 1 else b"".join(found)

    def _piece(self, fid: int, piece: Piece) -> bytes:
        start, stop, place = piece
        if place is None:
            return bytes(stop - start)
        at = start + place.shift if isinstance(place, Logged) else start
        data = os.pread(self.fd(fid, place), stop - start, at)
        if len(data) < stop - start:
            raise OSError(errno.EIO, f"{place} ends before byte {stop}")
        return data

    def whole(self, fid: int, rec: Rec) -> bytes:
        """All of a small file."""
        return self.read(fid, rec, 0, rec.size)

    def regions(self, fid: int, rec: Rec) -> Iterator[tuple[int, bytes]]:
        """All of a file but zeros: (offset, bytes) in order, at most 1 MiB at a time."""
        for start in range(0, rec.size, CHUNK_BYTES):
            stop = min(start + CHUNK_BYTES, rec.size)
            if not all(self._is_zero(fid, piece) for piece in self.pieces(rec, start, stop)):
                yield start, self.read(fid, rec, start, stop - start)

    def make_host(self, place: Hosted, content: bytes | bytearray) -> None:
        """A host file with ``content``. On any error (ENOSPC) nothing is left behind."""
        path = self.host_path(place)
        path.parent.mkdir(exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            pwrite_all(fd, content, 0)
        except BaseException:
            path.unlink()
            raise
        finally:
            os.close(fd)

    def sha(self, fid: int, rec: Rec) -> bytes:
        """The hash of a regular file's content (see `sums`), remembered in its record."""
        if rec.sha is None:
            if isinstance(rec.data, InBase):
                rec.sha = self._base.sha(rec.data)
            elif rec.size > sums.BIG_BYTES:
                rec.sha = sums.content_hash(self.segments(fid, rec))
            else:
                with self._for_now(fid):
                    rec.sha = hashlib.sha256(self.whole(fid, rec)).digest()
        return rec.sha

    def segments(self, fid: int, rec: Rec) -> sums.Segments:
        """The leaves of a big file; only of chunks that were written since is anything read."""
        if isinstance(rec.data, InBase):
            return self._base.segments(rec.data)
        with self._for_now(fid):
            rec.sums = (rec.sums or sums.Sums()).refreshed(
                rec.size,
                lambda start, stop: self._known_leaves(fid, rec, start, stop),
                lambda start, stop: self._leaf(fid, rec, start, stop),
            )
        return rec.sums.segments

    @contextmanager
    def _for_now(self, fid: int) -> Iterator[None]:
        """Close what the block opens of a file that nobody has open: hashing may open thousands."""
        was_open = fid in self._open
        yield
        if not was_open:
            self.release(fid)

    def _known_leaves(self, fid: int, rec: Rec, start: int, stop: int) -> bytes | None:
        """The leaves of these bytes when they all are zeros or the base's, and no others."""
        piece, *more = self.pieces(rec, start, stop)
        if not more and isinstance(piece.place, InBase):
            known = self._base.segments(piece.place)[start // SEGMENT_BYTES]
            if len(known) == len(sums.zero_leaves(stop - start)) and _ends_alike(piece):
                return known
        if not more and self._is_zero(fid, piece):
            return sums.zero_leaves(stop - start)
        return None

    def _leaf(self, fid: int, rec: Rec, start: int, stop: int) -> bytes:
        piece, *more = self.pieces(rec, start, stop)
        if not more and isinstance(piece.place, InBase) and _ends_alike(piece):
            number, at = divmod(start, SEGMENT_BYTES)
            known = self._base.segments(piece.place)[number]
            first = at // sums.CHUNK_BYTES * sums.LEAF_BYTES
            return known[first : first + sums.LEAF_BYTES]
        if not more and self._is_zero(fid, piece):
            return sums.zero_leaf(stop - start)
        return sums.leaf(self.read(fid, rec, start, stop - start))

    def _is_zero(self, fid: int, piece: Piece) -> bool:
        place = piece.place
        if place is None or isinstance(place, Logged):
            return place is None
        return is_hole(self.fd(fid, place), piece.start, piece.stop)


def _ends_alike(piece: Piece) -> bool:
    """Whether a piece of the base ends where a chunk of the base's file ends."""
    place = piece.place
    whole = piece.stop % sums.CHUNK_BYTES == 0
    return isinstance(place, InBase) and (whole or piece.stop == place.size)


def pwrite_all(fd: int, data: bytes | bytearray, offset: int) -> None:
    """Write every byte of ``data`` at ``offset``."""
    done = os.pwrite(fd, data, offset)
    view = memoryview(data)
    while done < len(data):
        done += os.pwrite(fd, view[done:], offset + done)


def clone(source: int, target: int, size: int) -> None:
    """Copy ``size`` bytes between files: shared extents if the file system can, else a copy.

    Holes stay holes.
    """
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError as error:
        disk.raise_if_full(error)  # anything else: this pair of files cannot share extents
        for start, stop in data_regions(source, size):
            _copy(source, target, start, stop)
    disk.truncate(target, size)


def _copy(source: int, target: int, offset: int, stop: int) -> None:
    while offset < stop:
        try:
            copied = os.copy_file_range(source, target, stop - offset, offset, offset)
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS):
                raise
            copied = 0
        if not copied:
            chunk = os.pread(source, min(CHUNK_BYTES, stop - offset), offset)
            if not chunk:
                raise OSError(errno.EIO, "the source ended early")
            pwrite_all(target, chunk, offset)
            copied = len(chunk)
        offset += copied
