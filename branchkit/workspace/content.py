"""The contents of one live branch's files: inline, in host files, or still in the base.

State is per inode, never per handle: all handles of a file share one descriptor, so a reader that
opened it before its copy-up sees what is written later.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
from pathlib import Path

from branchkit import disk
from branchkit.workspace.base import Base
from branchkit.workspace.layers import Hosted, InBase, Rec
from branchkit.workspace.scan import CHUNK_BYTES

_FICLONE = 0x40049409


class Contents:
    """Host files of a store's layers, and the descriptors that are open on them."""

    def __init__(self, layers: Path, base: Base) -> None:
        self._layers = layers
        self._base = base
        self._open: dict[int, tuple[Hosted | InBase, int]] = {}

    def host_path(self, layer: str, fid: int) -> Path:
        """Where layer ``layer`` keeps the content of ``fid`` when it is big."""
        return self._layers / layer / str(fid)

    def fd(self, fid: int, data: Hosted | InBase) -> int:
        """A descriptor on the content; only that of the top layer's own file may be written."""
        cached = self._open.get(fid)
        if cached is not None:
            if cached[0] is data:
                return cached[1]
            self.release(fid)
        if isinstance(data, InBase):
            fd = self._base.open(data)
        else:
            fd = os.open(self.host_path(data.layer, fid), os.O_RDWR | os.O_CLOEXEC)
        self._open[fid] = (data, fd)
        return fd

    def release(self, fid: int) -> None:
        """Close the descriptor of ``fid``, if there is one."""
        cached = self._open.pop(fid, None)
        if cached is not None:
            os.close(cached[1])

    def close(self) -> None:
        """Close every descriptor."""
        for fid in list(self._open):
            self.release(fid)

    def read(self, fid: int, rec: Rec, offset: int, size: int) -> bytes:
        """Up to ``size`` bytes at ``offset``; fewer only at the end of the file."""
        if isinstance(rec.data, bytearray):
            return bytes(rec.data[offset : offset + size])
        if rec.data is None:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        size = min(size, rec.size - offset)
        return os.pread(self.fd(fid, rec.data), size, offset) if size > 0 else b""

    def whole(self, fid: int, rec: Rec) -> bytes:
        """All of a small file."""
        return self.read(fid, rec, 0, rec.size)

    def make_host(self, layer: str, fid: int, rec: Rec) -> int:
        """A host file in ``layer`` with the content of ``rec``; a descriptor of the caller's.

        On any error (ENOSPC) nothing is left behind.
        """
        path = self.host_path(layer, fid)
        path.parent.mkdir(exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            if isinstance(rec.data, bytearray):
                pwrite_all(fd, rec.data, 0)
            elif rec.data is not None:
                clone(self.fd(fid, rec.data), fd, rec.size)
        except BaseException:
            os.close(fd)
            path.unlink()
            raise
        return fd

    def sha(self, fid: int, rec: Rec) -> bytes:
        """The sha256 of a regular file's content, remembered in its record."""
        if rec.sha is None:
            if isinstance(rec.data, InBase):
                rec.sha = self._base.sha(rec.data)
            else:
                rec.sha = self._digest(fid, rec)
        return rec.sha

    def _digest(self, fid: int, rec: Rec) -> bytes:
        digest = hashlib.sha256()
        for offset in range(0, rec.size, CHUNK_BYTES):
            digest.update(self.read(fid, rec, offset, CHUNK_BYTES))
        return digest.digest()


def pwrite_all(fd: int, data: bytes | bytearray, offset: int) -> None:
    """Write every byte of ``data`` at ``offset``."""
    done = os.pwrite(fd, data, offset)
    view = memoryview(data)
    while done < len(data):
        done += os.pwrite(fd, view[done:], offset + done)


def clone(source: int, target: int, size: int) -> None:
    """Copy ``size`` bytes between files: shared extents if the file system can, else a copy."""
    try:
        fcntl.ioctl(target, _FICLONE, source)
        disk.truncate(target, size)
        return
    except OSError as error:
        disk.raise_if_full(error)  # anything else: this pair of files cannot share extents
    offset = 0
    while offset < size:
        try:
            copied = os.copy_file_range(source, target, size - offset, offset, offset)
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS):
                raise
            copied = 0
        if not copied:
            chunk = os.pread(source, min(CHUNK_BYTES, size - offset), offset)
            if not chunk:
                raise OSError(errno.EIO, "the source ended early")
            pwrite_all(target, chunk, offset)
            copied = len(chunk)
        offset += copied
