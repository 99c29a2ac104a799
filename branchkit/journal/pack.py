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
from collections.abc import Iterable
from pathlib import Path

from branchkit import disk
from branchkit.errors import InputRefused
from branchkit.journal.blobs import checked
from branchkit.journal.file import SUFFIX

_EPOCH = (1980, 1, 1, 0, 0, 0)


def pack_path(journal: Path) -> Path:
    """The pack that belongs to ``journal``."""
    name = journal.name.removesuffix(SUFFIX)
    return journal.with_name(f"{name}.pack")


def write_pack(path: Path, members: Iterable[tuple[str, bytes | Path]]) -> None:
    """Write ``members`` (name, content) to ``path`` in one durable step; equal names once."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    seen: set[str] = set()
    ordered = sorted(members, key=lambda member: member[0])
    try:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            for name, content in ordered:
                if name in seen:
                    continue
                seen.add(name)
                data = content if isinstance(content, bytes) else content.read_bytes()
                info = zipfile.ZipInfo(name, _EPOCH)
                info.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(info, data)
        fd = os.open(temporary, os.O_RDONLY)
        disk.fdatasync(fd)
        os.close(fd)
        disk.rename(temporary, path)
        disk.fsync_dir(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


class Pack:
    """A pack opened for reading; members are read one by one, never unpacked as a whole."""

    def __init__(self, path: Path) -> None:
        try:
            self._archive = zipfile.ZipFile(path)
        except (OSError, zipfile.BadZipFile) as error:
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
        except zipfile.BadZipFile as error:
            raise InputRefused(
                f"{self.path.name}: {name}: {error}", hint="get the pack again from its source"
            ) from None

    def blob(self, sha256: str) -> bytes:
        """A blob by its address. Raises KeyError, BlobMissing."""
        return checked(sha256, self.read(f"blobs/{sha256}"))

    def close(self) -> None:
        self._archive.close()
