"""``NAME.pack``: everything a run needs beside its journal, in one file.

A pack is a ZIP with fixed time stamps, so that equal content gives equal bytes:
``blobs/<sha256>``            bulky results, and the files of the workspace
``workspace/bases/<id>.json`` the tree a run began with, by path
``workspace/snapshots/<id>.json`` what changed, snapshot by snapshot
A ``.git`` inside a workspace could not be committed as files; inside a pack it can.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Protocol

from branchkit import disk
from branchkit.errors import InputRefused
from branchkit.journal.blobs import checked
from branchkit.journal.file import SUFFIX

_EPOCH = (1980, 1, 1, 0, 0, 0)
# What zipfile raises on damaged bytes: a bad checksum or header, a broken stream, a cut member, a
# flag or method that it does not know, a name that is no text, an offset outside the file.
_DAMAGED = (
    OSError, zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError,
    ValueError,
)  # fmt: skip


def pack_path(journal: Path) -> Path:
    """The pack that belongs to ``journal``."""
    name = journal.name.removesuffix(SUFFIX)
    return journal.with_name(f"{name}.pack")


class Readable(Protocol):
    """A content that is read when its turn comes; a Path is one."""

    def read_bytes(self) -> bytes: ...


def write_pack(path: Path, members: Iterable[tuple[str, bytes | Readable]]) -> None:
    """Write ``members`` (name, content) to ``path`` in one durable step; equal names once.

    Equal members give equal bytes, in whatever order they come. Raises DiskFull.
    """
    temporary = disk.temporary_beside(path)
    by_name = dict(reversed(list(members)))  # of equal names the first counts
    try:
        fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w+b") as stream:
            _write_archive(stream, sorted(by_name.items()))
            stream.flush()
            disk.fdatasync(stream.fileno())
        disk.rename(temporary, path)
        disk.fsync_dir(path.parent)
    except OSError as error:
        disk.raise_if_full(error)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def _write_archive(stream: IO[bytes], members: Iterable[tuple[str, bytes | Readable]]) -> None:
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, content in members:
            data = content if isinstance(content, bytes) else content.read_bytes()
            info = zipfile.ZipInfo(name, _EPOCH)
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, data)


class Pack:
    """A pack opened for reading; members are read one by one, never unpacked as a whole."""

    def __init__(self, path: Path) -> None:
        try:
            self._archive = zipfile.ZipFile(path)
        except _DAMAGED as error:
            raise InputRefused(
                f"{path.name} cannot be read as a pack: {error}",
                hint="get it again from its source",
            ) from None
        self.path = path
        self.names = self._archive.namelist()

    def read(self, name: str) -> bytes:
        """The content of a member. Raises KeyError; InputRefused if it is damaged."""
        try:
            return self._archive.read(name)
        except _DAMAGED as error:
            raise InputRefused(
                f"{self.path.name}: {name}: {error}", hint="get the pack again from its source"
            ) from None

    def blob(self, sha256: str) -> bytes:
        """A blob by its address. Raises KeyError, BlobMissing."""
        return checked(sha256, self.read(f"blobs/{sha256}"))

    def close(self) -> None:
        """Close the file; nothing can be read any more."""
        self._archive.close()
