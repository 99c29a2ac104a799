"""Mount points that a dead daemon left, and sockets whose paths are too long for bind(2)."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from branchkit.errors import WorkspaceError


class Mount(NamedTuple):
    """One line of /proc/self/mountinfo."""

    point: Path
    kind: str


def mounts() -> list[Mount]:
    """What is mounted where, as this process sees it; nothing where there is no /proc."""
    try:
        lines = Path("/proc/self/mountinfo").read_bytes().splitlines()
    except FileNotFoundError:
        return []  # not Linux: no way to tell, and no FUSE backend either
    found = []
    for line in lines:
        front, _, back = line.partition(b" - ")
        # A blank, a tab, a newline and a backslash are written as octal escapes.
        escaped = front.split(b" ")[4].decode("latin-1").encode().decode("unicode_escape")
        point = os.fsdecode(escaped.encode("latin-1"))
        found.append(Mount(Path(point), back.split(b" ")[0].decode()))
    return found


def clear(point: Path) -> None:
    """Take the mounts of dead daemons away from ``point``, also when somebody stands in one.

    Call it under the daemon's lock: then every FUSE mount there is a dead one. (Asking the mount
    itself would not tell: the kernel answers stat(2) from what it remembers.)
    """
    for _ in [mount for mount in mounts() if mount.point == point and "fuse" in mount.kind]:
        if os.geteuid() == 0:
            command = ["umount", "-l", os.fspath(point)]
        else:
            command = [shutil.which("fusermount3") or "fusermount", "-uz", os.fspath(point)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise WorkspaceError(
                f"{point} is a mount whose daemon died; {command[0]}: {done.stderr.strip()}",
                hint=f"unmount it as its owner: fusermount3 -uz {point}",
            )


def bind(listener: socket.socket, path: Path) -> None:
    """Bind to ``path``, however long it is (sun_path holds 108 bytes)."""
    _through_directory(path, listener.bind)


def connect(connection: socket.socket, path: Path) -> None:
    """Connect to ``path``, however long it is."""
    _through_directory(path, connection.connect)


def _through_directory(path: Path, call: Callable[[str], None]) -> None:
    fd = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        call(f"/proc/self/fd/{fd}/{path.name}")
    finally:
        os.close(fd)
