"""What a store's layers take of the disk, and the cap that a store may have."""

from __future__ import annotations

import os
from pathlib import Path

from branchkit.errors import DiskFull, UsageError

CAP = "BRANCHKIT_STORE_CAP"
FRAME_BYTES = 512  # more than a change without contents takes in a log
_BLOCK_BYTES = 512  # of st_blocks, on every file system


def cap_from_environment() -> int | None:
    """The bytes that ``BRANCHKIT_STORE_CAP`` allows a store; None when it is not set."""
    text = os.environ.get(CAP, "")
    if not text:
        return None
    if not text.isdecimal():
        raise UsageError(f"{CAP}={text!r} is no number", hint="give it in bytes: 10000000000")
    return int(text)


class Space:
    """A running count, taken from the disk when a cap is first set."""

    def __init__(self, layers: Path) -> None:
        self._layers = layers
        self.cap_bytes: int | None = None
        self.used_bytes = 0

    def limit(self, cap_bytes: int | None) -> None:
        """Set the cap, or take it away."""
        if cap_bytes is not None:
            self.used_bytes = taken_bytes(self._layers)
        self.cap_bytes = cap_bytes

    def want(self, more_bytes: int) -> None:
        """Raise DiskFull if ``more_bytes`` would go over the cap."""
        if self.cap_bytes is not None and self.used_bytes + more_bytes > self.cap_bytes:
            raise DiskFull(
                f"the store holds {self.used_bytes} of {self.cap_bytes} bytes, "
                f"{more_bytes} more do not fit",
                hint=f"drop branches and run `branchkit gc`, or raise {CAP}",
            )

    def add(self, more_bytes: int) -> None:
        """Count ``more_bytes``, or fewer (negative)."""
        self.used_bytes += more_bytes


def file_bytes(fd: int) -> int:
    """What the file of ``fd`` takes of the disk: holes take nothing."""
    return os.fstat(fd).st_blocks * _BLOCK_BYTES


def taken_bytes(path: Path) -> int:
    """What a file, or everything in a directory, takes of the disk; nothing if it has gone."""
    try:
        total = 0 if path.is_dir() else path.lstat().st_blocks * _BLOCK_BYTES
        below = list(path.iterdir()) if path.is_dir() else []
    except FileNotFoundError:
        return 0
    return total + sum(map(taken_bytes, below))
