"""The port of ten file operations: all that durable code may do to a disk.

``fsync``, ``rename`` and ``lock`` live here and nowhere else, so that a test can put a faulty or a
simulated disk in their place and so that a reader finds every ordering rule in one file.
``crash_point(name)`` is a no-op outside tests; a test names one in ``BRANCHKIT_CRASH_AT`` and the
process kills itself there with SIGKILL (R21, R25).
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
from pathlib import Path

from branchkit.errors import DiskFull, JournalLocked


def open_append(path: Path) -> int:
    """A descriptor positioned at the end of ``path``, created with mode 0600 if it is new."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def write_all(fd: int, data: bytes) -> None:
    """Write every byte of ``data``; a short write goes on where it stopped.

    Raises DiskFull on ENOSPC or EDQUOT. What part of ``data`` arrived is for the caller to cut off.
    """
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(fd, view) :]
    except OSError as error:
        raise_if_full(error)
        raise


def fdatasync(fd: int) -> None:
    """Return once the data of ``fd`` is on stable storage."""
    os.fdatasync(fd)


def fsync_dir(directory: Path) -> None:
    """Make the names in ``directory`` durable: needed after every create and rename."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def rename(source: Path, target: Path) -> None:
    """Put ``source`` in the place of ``target`` in one step (not yet durable: see fsync_dir)."""
    os.replace(source, target)


def truncate(fd: int, length_bytes: int) -> None:
    """Cut the file of ``fd`` to ``length_bytes``."""
    os.ftruncate(fd, length_bytes)


def size_bytes(fd: int) -> int:
    """The length of the file of ``fd``."""
    return os.fstat(fd).st_size


def write_durably(path: Path, data: bytes) -> None:
    """Replace ``path`` by ``data``: after a crash either the old or the new content is there."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        write_all(fd, data)
        fdatasync(fd)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)
    rename(temporary, path)
    fsync_dir(path.parent)


def lock(path: Path) -> int:
    """An exclusive lock on ``path``, held until the descriptor is closed or the process dies.

    Raises JournalLocked, naming the holder, when another process has it.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(fd)
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise
        raise JournalLocked(
            f"{path.name} is held by process {holder}",
            hint="wait for that process, or stop it; the lock goes away with it",
        ) from None
    os.ftruncate(fd, 0)
    os.pwrite(fd, str(os.getpid()).encode(), 0)
    return fd


def raise_if_full(error: OSError) -> None:
    """Raise DiskFull in place of ENOSPC and EDQUOT; return for any other error."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        raise DiskFull(
            f"no space left while writing: {error.strerror}",
            hint="free some space; everything acknowledged before is safe, run `branchkit verify`",
        ) from error


def crash_point(name: str) -> None:
    """Die here by SIGKILL if a test asked for it by ``BRANCHKIT_CRASH_AT=name``; else do nothing."""
    if os.environ.get("BRANCHKIT_CRASH_AT") == name:
        os.kill(os.getpid(), signal.SIGKILL)
