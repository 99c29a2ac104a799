"""An append-only file of checksummed frames, and the frames of such a file read back.

One frame is one mutation, written with one ``write(2)``: after a SIGKILL everything that was
written is there; after a power loss everything up to the last ``sync`` is. A frame holds canonical
JSON (small) and a blob (file contents):

    magic 4s · json_bytes u32 · blob_bytes u32 · crc32(json+blob) u32 · crc32(the 16 before) u32

A bad frame with no good frame behind it is a torn tail and is cut off; a bad frame in front of good
ones is damage, and an error: cutting there would silently lose what had been acknowledged.
"""

from __future__ import annotations

import errno
import json
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from branchkit import disk
from branchkit.errors import DiskFull, WorkspaceError

RESERVE_BYTES = 256 * 1024  # some 2,000 removals, of which the first already gives space back
MAGIC = b"bkf1"
HEADER = struct.Struct("<4sIII")
CRC = struct.Struct("<I")
HEADER_BYTES = HEADER.size + CRC.size

_encode = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


class Frame(NamedTuple):
    """One frame: what it says, the bytes that go with it, and where the next one starts."""

    value: object
    blob: bytes
    end_bytes: int


class Reserve:
    """Disk space put aside for frames that give space back: on a full disk ``rm`` must work."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._is_full = False

    def fill(self) -> None:
        """Put the space aside; on a disk that is full already there is none to put aside."""
        if self._is_full:
            return
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, RESERVE_BYTES)
            self._is_full = True
        except OSError as error:
            disk.truncate(fd, 0)
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
        finally:
            os.close(fd)

    def spend(self) -> bool:
        """Give the space up; whether there was any."""
        self._is_full = False
        try:
            had = self._path.stat().st_size > 0
            os.truncate(self._path, 0)
        except FileNotFoundError:
            return False
        return had


class Log:
    """A frame file open for appending."""

    def __init__(
        self, path: Path, *, good_bytes: int | None = None, reserve: Reserve | None = None
    ) -> None:
        """Open or create ``path``; what lies behind ``good_bytes`` (a torn tail) is cut off."""
        self.path = path
        self._reserve = reserve
        self._failed: OSError | None = None
        self.fd = disk.open_append(path)
        self.size_bytes = disk.size_bytes(self.fd)
        if good_bytes is not None and good_bytes < self.size_bytes:
            disk.truncate(self.fd, good_bytes)
            self.size_bytes = good_bytes

    def append(self, value: object, blob: bytes | bytearray = b"", *, frees: bool = False) -> None:
        """Write one frame; after an error (ENOSPC) the file ends with the last good frame.

        One that ``frees`` space may use the reserve.
        """
        text = _encode(value).encode("ascii")
        head = HEADER.pack(MAGIC, len(text), len(blob), zlib.crc32(blob, zlib.crc32(text)))
        frame = b"".join((head, CRC.pack(zlib.crc32(head)), text, blob))
        try:
            self._write(frame)
        except (OSError, DiskFull):
            if not (frees and self._reserve is not None and self._reserve.spend()):
                raise
            self._write(frame)

    def _write(self, frame: bytes) -> None:
        try:
            written = os.write(self.fd, frame)
            if written < len(frame):
                disk.write_all(self.fd, frame[written:])
        except BaseException:
            disk.truncate(self.fd, self.size_bytes)
            raise
        self.size_bytes += len(frame)

    def sync(self) -> None:
        """Return once every frame so far is on stable storage.

        After one failure it fails for ever: the kernel drops the pages it could not write, and
        the next fdatasync would return as if they were there.
        """
        if self._failed is not None:
            raise self._failed
        try:
            disk.fdatasync(self.fd)
        except OSError as error:
            self._failed = error
            raise

    def close(self) -> None:
        """Give the descriptor back; nothing is buffered, so nothing is lost."""
        os.close(self.fd)


def read(path: Path, offset: int = 0) -> Iterator[Frame]:
    """Every good frame of ``path`` from ``offset`` on, in order; none if there is no such file.

    Raises WorkspaceError with the offset when a frame in front of good ones is damaged.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return
    while offset < len(data):
        frame = _frame_at(data, offset)
        if frame is None:
            _refuse_damage(path, data, offset)
            return
        yield frame
        offset = frame.end_bytes


def last(path: Path, most_bytes: int) -> object:
    """The value of the last frame of ``path`` if the file ends with it, else None.

    Looks at the last ``most_bytes`` only, so a long log costs no more than a short one.
    """
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        data = os.pread(file.fileno(), most_bytes, max(0, size - most_bytes))
    at = data.rfind(MAGIC)
    while at >= 0:
        frame = _frame_at(data, at)
        if frame is not None:
            return frame.value if frame.end_bytes == len(data) else None
        at = data.rfind(MAGIC, 0, at)
    return None


def _frame_at(data: bytes, offset: int) -> Frame | None:
    body = offset + HEADER_BYTES
    if body > len(data):
        return None
    head = data[offset : offset + HEADER.size]
    magic, json_bytes, blob_bytes, crc = HEADER.unpack(head)
    if magic != MAGIC or CRC.unpack_from(data, offset + HEADER.size)[0] != zlib.crc32(head):
        return None
    middle, end = body + json_bytes, body + json_bytes + blob_bytes
    if end > len(data) or zlib.crc32(data[body:end]) != crc:
        return None
    return Frame(json.loads(data[body:middle]), data[middle:end], end)


def _refuse_damage(path: Path, data: bytes, bad: int) -> None:
    """Raise when a good frame stands anywhere behind the bad one at ``bad``."""
    at = data.find(MAGIC, bad + 1)
    while at >= 0:
        if _frame_at(data, at) is not None:
            raise WorkspaceError(
                f"{path.name} is damaged: the frame at byte {bad} of {len(data)} does not match "
                f"its checksum, good frames follow at byte {at}",
                hint="restore the store from its pack (`branchkit pack` made it) and open it again",
            )
        at = data.find(MAGIC, at + 1)
