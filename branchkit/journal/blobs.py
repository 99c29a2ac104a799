"""Bulky text by content address: written once, found in the store or in the pack (R12)."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path

from branchkit import disk
from branchkit.errors import BlobMissing

INLINE_LIMIT_BYTES = 2048
_ADDRESS = re.compile("[0-9a-f]{64}")  # nothing else may become a path
BlobReader = Callable[[str], bytes]  # sha256 (bare hex) -> content; raises KeyError


class Blobs:
    """The blobs of one store directory, ``blobs/ab/cdef…`` by the SHA-256 of their content."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def _path(self, sha256: str) -> Path:
        return self.directory / sha256[:2] / sha256[2:]

    def put(self, content: bytes) -> str:
        """The content's address; durable when it returns, written only if it is not there yet."""
        sha256 = hashlib.sha256(content).hexdigest()
        path = self._path(sha256)
        if not path.exists():
            disk.make_directory(path.parent)
            disk.write_durably(path, content)
        return sha256

    def get(self, sha256: str) -> bytes:
        """The content. Raises KeyError if it is not here, BlobMissing if it is not what it was."""
        if not _ADDRESS.fullmatch(sha256):
            raise KeyError(sha256)
        try:
            content = self._path(sha256).read_bytes()
        except FileNotFoundError:
            raise KeyError(sha256) from None
        return checked(sha256, content)


def checked(sha256: str, content: bytes) -> bytes:
    """``content`` if that is its hash. Raises BlobMissing."""
    if hashlib.sha256(content).hexdigest() != sha256:
        raise BlobMissing(
            f"blob {sha256} has other content than its address says",
            hint="the store or pack is damaged: restore it from a copy",
        )
    return content


def first_of(*readers: BlobReader) -> BlobReader:
    """A reader that asks each of ``readers`` in turn."""

    def read(sha256: str) -> bytes:
        for reader in readers:
            try:
                return reader(sha256)
            except KeyError:
                continue
        raise KeyError(sha256)

    return read


def store_directory() -> Path:
    """Where branches, blobs and unpacked workspaces go: ``$BRANCHKIT_STORE`` or ``.branchkit/``."""
    return Path(os.environ.get("BRANCHKIT_STORE") or ".branchkit").absolute()
