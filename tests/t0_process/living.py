"""Which processes live, and waiting for their end without sleeping."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterable
from pathlib import Path


def marked(marker: str) -> list[int]:
    """The living processes (no zombies) with ``marker`` in their command line, but for this one."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            if marker.encode() in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def all_end(pids: Iterable[int], timeout_s: float = 15.0) -> bool:
    """Whether every one of ``pids`` has ended before the time is over."""
    deadline = time.monotonic() + timeout_s
    for pid in pids:
        try:
            pid_fd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            if not select.select([pid_fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
                return False
        finally:
            os.close(pid_fd)
    return True


def parent_of(pid: int) -> int:
    """The pid of its parent."""
    return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
