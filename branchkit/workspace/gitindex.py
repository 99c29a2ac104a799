"""The entries of a git index file (versions 2 to 4), without what changes by itself.

An index also holds stat data (times, inode numbers, device) of each file: two checkouts of the same
commit differ in every byte of it. Format: git's Documentation/gitformat-index.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

_ENTRY = struct.Struct(">24xIIII20sH")  # ctime mtime dev ino · mode uid gid size · sha · flags
_ASSUME_VALID = 0x8000
_EXTENDED = 0x4000
_STAGE = 0x3000
_SKIP_OR_INTENT = 0x6000


class IndexEntry(NamedTuple):
    """One staged path."""

    path: bytes
    mode: int
    sha: bytes
    flags: int
    extended: int


def entries(data: bytes) -> Iterator[IndexEntry]:
    """Every entry in file order; ValueError when ``data`` is no SHA-1 index of version 2 to 4."""
    if len(data) < 12 + 20 or data[:4] != b"DIRC":
        raise ValueError("not a git index")
    version, count = struct.unpack_from(">II", data, 4)
    if version not in (2, 3, 4):
        raise ValueError(f"git index version {version}")
    at, previous = 12, b""
    for _ in range(count):
        if at + _ENTRY.size > len(data):
            raise ValueError("git index ends inside an entry")
        mode, _uid, _gid, _size, sha, flags = _ENTRY.unpack_from(data, at)
        start, extended = at + _ENTRY.size, 0
        if flags & _EXTENDED:
            (extended,) = struct.unpack_from(">H", data, start)
            start += 2
        if version == 4:
            strip, start = _varint(data, start)
            end = data.index(b"\0", start)
            previous = previous[: len(previous) - strip] + data[start:end]
            path, at = previous, end + 1
        else:
            end = data.index(b"\0", start)
            path = data[start:end]
            at += (end - at + 8) // 8 * 8  # padded with 1 to 8 NULs
        kept = flags & (_ASSUME_VALID | _STAGE)
        yield IndexEntry(path, mode, sha, kept, extended & _SKIP_OR_INTENT)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    value = byte & 0x7F
    while byte & 0x80:
        at += 1
        byte = data[at]
        value = ((value + 1) << 7) | (byte & 0x7F)
    return value, at + 1
