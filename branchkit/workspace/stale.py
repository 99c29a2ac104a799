"""Mount points that a dead daemon left, and sockets whose paths are too long for bind(2)."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

from branchkit.errors import WorkspaceError


def is_stale(point: Path) -> bool:
    """Whether a mount whose daemon died lies on ``point`` (every path in it: ENOTCONN)."""
    try:
        os.stat(point)
    except OSError as error:
        return error.errno in (errno.ENOTCONN, errno.EIO, errno.ECONNABORTED)
    return False


def clear(point: Path) -> None:
    """Take dead mounts away from ``point``, also when somebody still stands in one."""
    for _ in range(16):  # each daemon that died leaves one
        if not is_stale(point):
            return
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
    raise WorkspaceError(f"{point} stays a dead mount", hint=f"run: umount -l {point}")


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
