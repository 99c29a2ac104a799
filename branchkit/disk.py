"""The port of ten file operations: all that durable code may do to a disk.

``fsync``, ``rename`` and ``lock`` live here and nowhere else, so that a test can put a faulty or a
simulated disk in their place and so that a reader finds every ordering rule in one file.
``crash_point(name)`` is a no-op outside tests; a test names one in ``BRANCHKIT_CRASH_AT`` and the
process kills itself there with SIGKILL (R21, R25).
"""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import signal
from pathlib import Path

from branchkit.errors import DiskFull, JournalLocked

# Two threads may store the same blob at once; each needs a temporary file of its own.
_temporary_numbers = itertools.count()


def open_append(path: Path) -> int:
    """A descriptor positioned at the end of ``path``, created with mode 0600 if it is new."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)


def open_plain(path: Path) -> int:
    """A descriptor for reading and for writing in place, created with mode 0600 if it is new."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def read_whole(fd: int) -> bytes:
    """All of the file of ``fd``."""
    return os.pread(fd, os.fstat(fd).st_size, 0)


def write_at(fd: int, data: bytes, offset: int) -> None:
    """Overwrite in place; not durable before an fdatasync."""
    os.pwrite(fd, data, offset)


def close(fd: int) -> None:
    """Let ``fd`` go."""
    os.close(fd)


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


def make_directory(path: Path) -> None:
    """Create ``path`` with its parents, each durable: a synced file in a lost folder is lost."""
    if path.is_dir():
        return
    make_directory(path.parent)
    path.mkdir(exist_ok=True)
    fsync_dir(path.parent)


def temporary_beside(path: Path) -> Path:
    """A name in the folder of ``path`` that nobody else uses, to be renamed to ``path``."""
    return path.with_name(f".{path.name}.{os.getpid()}-{next(_temporary_numbers)}.tmp")


def write_durably(path: Path, data: bytes) -> None:
    """Replace ``path`` by ``data``: after a crash either the old or the new content is there."""
    temporary = temporary_beside(path)
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        try:
            write_all(fd, data)
            fdatasync(fd)
        finally:
            os.close(fd)
        rename(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fsync_dir(path.parent)


def lock(path: Path) -> int:
    """An exclusive lock on ``path``, held until the descriptor is closed or the process dies.

    Raises JournalLocked, naming the holder, when another process has it.
    """
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _flock(fd, path)
        except BaseException:
            os.close(fd)
            raise
        if _is_still(fd, path):
            break
        # A holder that lets go removes the name. Between our open and our lock it did so: this is
        # the lock of a file that nobody else will ever open.
        os.close(fd)
    os.ftruncate(fd, 0)
    os.pwrite(fd, str(os.getpid()).encode(), 0)
    return fd


def lock_when_free(path: Path) -> int:
    """An exclusive lock on ``path``; waits until nobody has it, Ctrl-C ends the waiting.

    A process that inherits the descriptor holds the lock too: it is free when the last one is gone.
    """
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
        except BaseException:
            os.close(fd)
            raise
        if _is_still(fd, path):
            return fd
        os.close(fd)


def unlock(fd: int, path: Path) -> None:
    """Let go of what ``lock(path)`` gave, and remove the name while it is still held."""
    path.unlink(missing_ok=True)
    os.close(fd)


def _flock(fd: int, path: Path) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise
        holder = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
        raise JournalLocked(
            f"{path.name} is held by process {holder}",
            hint="wait for that process, or stop it; the lock goes away with it",
        ) from None


def _is_still(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False


def raise_if_full(error: OSError) -> None:
    """Raise DiskFull in place of ENOSPC and EDQUOT; return for any other error."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        raise DiskFull(
            f"no space left while writing: {error.strerror}",
            hint="free some space; everything acknowledged before is safe, run `branchkit verify`",
        ) from error


def crash_point(name: str) -> None:
    """Die here by SIGKILL if a test set ``BRANCHKIT_CRASH_AT`` to ``name``; else do nothing."""
    if os.environ.get("BRANCHKIT_CRASH_AT") == name:
        os.kill(os.getpid(), signal.SIGKILL)
