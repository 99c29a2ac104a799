"""Holes: what of a file lies on the disk at all. Zeros that nobody wrote need not be read."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

from branchkit.workspace import sums

_READ_BYTES = 1 << 20


def is_hole(fd: int, start: int, stop: int) -> bool:
    """Whether there is nothing but zeros that were never written; False when that is not known."""
    try:
        return os.lseek(fd, start, os.SEEK_DATA) >= stop
    except OSError as error:
        return error.errno == errno.ENXIO  # else: a file system that does not know holes


def data_regions(fd: int, size: int) -> Iterator[tuple[int, int]]:
    """The bounds of what is no hole, in order; all of it when holes are not known."""
    at = 0
    while at < size:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
            stop = os.lseek(fd, start, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return  # a hole up to the end
            start, stop = at, size
        if start < size:
            yield start, min(stop, size)
        at = stop


def read_regions(path: Path, size: int) -> Iterator[tuple[int, bytes]]:
    """All of a file but holes: (offset, bytes) in order, at most 1 MiB at a time."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for start, stop in data_regions(fd, size):
            for at in range(start, stop, _READ_BYTES):
                yield at, os.pread(fd, min(_READ_BYTES, stop - at), at)
    finally:
        os.close(fd)


def segments_of(fd: int, size: int) -> sums.Segments:
    """The leaves of a big plain file."""

    def whole(start: int, stop: int) -> bytes | None:
        return sums.zero_leaves(stop - start) if is_hole(fd, start, stop) else None

    def one(start: int, stop: int) -> bytes:
        data = os.pread(fd, stop - start, start)
        if len(data) != stop - start:
            raise OSError(errno.EIO, "the file became shorter while it was read")
        return sums.leaf(data)

    return sums.Sums().refreshed(size, whole, one).segments
