"""A directory made into a workspace store, or found to be one; its locks."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from branchkit import disk
from branchkit.errors import UsageError, WorkspaceError

VERSION = "branchkit-workspace 2\n"
_DIRECTORIES = ("bases", "layers", "mnt", "copies")


def prepare(path: Path) -> Path:
    """Make ``path`` a store, or check that it is one of this version; returns it resolved."""
    path.mkdir(parents=True, exist_ok=True)
    path = path.resolve()
    version = path / "version"
    if not version.exists():
        _refuse_foreign(path)
        _make_store(path, version)
    found = version.read_text()
    if found != VERSION:
        raise WorkspaceError(
            f"{path} is a store of version {found.strip()!r}, this is {VERSION.strip()!r}",
            hint="open it with the branchkit that made it, or start a new store",
        )
    return path


def _refuse_foreign(path: Path) -> None:
    """Raise UsageError when ``path`` has folders of our names that are somebody else's.

    Other parts of branchkit keep blobs and the like in the same directory: those may be there.
    """
    for name in _DIRECTORIES:
        if (path / name).exists() and not ((path / name).is_dir() and _is_empty(path / name)):
            raise UsageError(
                f"{path} is no workspace store, and its {name!r} would be in the way of one",
                hint="name an empty or a new directory as store",
            )


def _is_empty(directory: Path) -> bool:
    return next(directory.iterdir(), None) is None


def _make_store(path: Path, version: Path) -> None:
    """Under ``open.lock``: several processes may find that there is no store yet."""
    with hold(path / "open.lock"):
        if not version.exists():
            for name in _DIRECTORIES:
                (path / name).mkdir(exist_ok=True)
            disk.write_durably(version, VERSION.encode())  # last: it says that the rest is there


@contextmanager
def hold(path: Path) -> Iterator[None]:
    """Have the exclusive lock ``path``; waits for it, gives it back when the block ends."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
