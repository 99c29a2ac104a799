"""What a base held when it was added: one file, read directory by directory.

    "bkindex1" · a block for each directory · table · trailer

A block is the directory's rows, sorted by name; the table says where each block lies. Both are
msgpack. A branch reads the blocks of the directories that it looks into, so the first freeze on a
base of 100,000 files costs what it costs on one of 1,000.
"""

from __future__ import annotations

import mmap
import os
import stat
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from branchkit import disk
from branchkit.errors import WorkspaceError
from branchkit.workspace.scan import Entry

_MAGIC = b"bkindex1"
_TRAILER = struct.Struct("<QII")  # where the table lies, its bytes, its crc32


class Row(NamedTuple):
    """One name of a base's directory."""

    name: bytes
    fid: int
    mode: int
    size: int
    mtime_ns: int
    sha: bytes
    digest: bytes
    target: bytes
    rdev: int
    xattrs: dict[bytes, bytes]
    link: int
    inode: int
    ctime_ns: int


class _Block(NamedTuple):
    offset: int
    size: int
    crc: int


class _Table(NamedTuple):
    root: Row
    blocks: dict[bytes, _Block]


_encode = msgspec.msgpack.Encoder().encode
_decode_rows = msgspec.msgpack.Decoder(list[Row]).decode
_decode_table = msgspec.msgpack.Decoder(_Table).decode


class Index:
    """The file, mapped: what was replaced by a later `write` stays readable here."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows: dict[str, dict[bytes, Row]] = {}
        with path.open("rb", buffering=0) as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        at = len(self._map) - _TRAILER.size
        if at < len(_MAGIC) or self._map[: len(_MAGIC)] != _MAGIC:
            raise self._damaged()
        self._table = _decode_table(self._checked(_Block(*_TRAILER.unpack_from(self._map, at))))

    def _checked(self, block: _Block) -> bytes:
        data = self._map[block.offset : block.offset + block.size]
        if len(data) != block.size or zlib.crc32(data) != block.crc:
            raise self._damaged()
        return data

    def _damaged(self) -> WorkspaceError:
        return WorkspaceError(
            f"{self._path.name} is damaged: it does not match its checksums",
            hint="remove it and add the directory again, or restore the store from its pack",
        )

    @property
    def root(self) -> Row:
        """The row of the base itself; its name is empty."""
        return self._table.root

    def rows(self, path: str) -> Mapping[bytes, Row]:
        """The names in the directory ``path``; none if that is no directory of the base."""
        rows = self._rows.get(path)
        if rows is None:
            block = self._table.blocks.get(os.fsencode(path))
            found = _decode_rows(self._checked(block)) if block is not None else []
            rows = self._rows[path] = {row.name: row for row in found}
        return rows

    def row(self, path: str) -> Row | None:
        """What was at ``path``."""
        if not path:
            return self.root
        parent, _, name = path.rpartition("/")
        return self.rows(parent).get(os.fsencode(name))

    def entries(self) -> Iterator[Entry]:
        """Everything as `scan.scan` gave it: a directory before what is in it, sorted."""
        waiting = [("", self.root)]
        while waiting:
            path, row = waiting.pop()
            yield _entry(path, row)
            if stat.S_ISDIR(row.mode):
                prefix = path + "/" if path else ""
                below = [(prefix + os.fsdecode(n), r) for n, r in self.rows(path).items()]
                waiting += reversed(below)


def write(
    path: Path, entries: Sequence[Entry], digests: Mapping[str, bytes], fids: Mapping[str, int]
) -> None:
    """Write the index of a base durably; ``fids`` are those that are not the inode numbers."""
    below: dict[str, list[Row]] = {entry.path: [] for entry in entries if entry.is_dir}
    root: Row | None = None
    for entry in entries:
        parent, _, name = entry.path.rpartition("/")
        row = _row(name, entry, digests[entry.path], fids.get(entry.path, entry.inode))
        if entry.path:
            below[parent].append(row)
        else:
            root = row
    if root is None:
        raise ValueError("a base has a root")
    blocks: dict[bytes, _Block] = {}
    parts = [_MAGIC]
    offset = len(_MAGIC)
    for folder, rows in below.items():
        data = _encode(sorted(rows))
        blocks[os.fsencode(folder)] = _Block(offset, len(data), zlib.crc32(data))
        parts.append(data)
        offset += len(data)
    table = _encode(_Table(root, blocks))
    disk.write_durably(
        path, b"".join((*parts, table, _TRAILER.pack(offset, len(table), zlib.crc32(table))))
    )


def _row(name: str, entry: Entry, digest: bytes, fid: int) -> Row:
    return Row(
        os.fsencode(name), fid, entry.mode, entry.size, entry.mtime_ns, bytes.fromhex(entry.sha),
        digest, os.fsencode(entry.target), entry.rdev, entry.raw_xattrs(), entry.link, entry.inode,
        entry.ctime_ns,
    )  # fmt: skip


def _entry(path: str, row: Row) -> Entry:
    xattrs = {os.fsdecode(name): value.hex() for name, value in row.xattrs.items()}
    return Entry(
        path, row.mode, row.size, row.mtime_ns, row.sha.hex(), os.fsdecode(row.target), row.rdev,
        xattrs, row.link, row.inode, row.ctime_ns,
    )  # fmt: skip
