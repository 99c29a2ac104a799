"""``NAME.index``: what was worked out about a long journal, kept beside it (R58).

Never truth: it can be made anew from the journal at any time, and is, when it is not of this very
file as it is now, not of this version, or damaged in any byte. It is bound to the journal's size,
time of change and last line; its tables carry a hash, its blocks a checksum each.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from branchkit import disk
from branchkit.journal.chain import line_problem, link
from branchkit.journal.scan import SUFFIX

VERSION = 1
_LENGTH_BYTES = 8
_MAX_LINE_BYTES = 1 << 26


class Block(NamedTuple):
    """A part of the side file that is read when it is asked for."""

    offset: int
    length: int
    crc32: int


class _Footer(msgspec.Struct):
    version: int
    size: int
    changed_ns: int
    head: str
    facts: dict[str, int]
    tables: dict[str, Block]
    blocks: int  # the tables begin there
    sha256: str  # of all tables


class SideFile(NamedTuple):
    """An index that fits its journal: numbers, tables, and the file that holds the blocks."""

    path: Path
    facts: dict[str, int]
    head: str
    tables: dict[str, bytes]

    def blocks(self, places: Sequence[Block]) -> list[bytes] | None:
        """The contents of blocks that stand one after the other; None if one is damaged."""
        if not places:
            return []
        begin, last = places[0].offset, places[-1]
        with self.path.open("rb") as stream:
            stream.seek(begin)
            data = stream.read(last.offset + last.length - begin)
        found = [data[one.offset - begin : one.offset - begin + one.length] for one in places]
        right = all(map(_is_right, found, places))
        return found if right else None


def _is_right(data: bytes, place: Block) -> bool:
    return len(data) == place.length and zlib.crc32(data) == place.crc32


def index_path(journal: Path) -> Path:
    """``NAME.index`` of ``NAME.journal.jsonl``."""
    return journal.with_name(f"{journal.name.removesuffix(SUFFIX)}.index")


def write_side_file(
    journal: Path,
    *,
    state: os.stat_result,
    head: str,
    facts: Mapping[str, int],
    blocks: bytes,
    tables: Mapping[str, bytes],
) -> None:
    """Keep an index of ``journal`` as it was at ``state``.

    A folder in which nothing can be written keeps none: it is then made anew each time.
    """
    parts, places, offset = [blocks], {}, len(blocks)
    digest = hashlib.sha256()
    for name, data in tables.items():
        places[name] = Block(offset, len(data), zlib.crc32(data))
        digest.update(data)
        parts.append(data)
        offset += len(data)
    footer = msgspec.msgpack.encode(
        _Footer(
            VERSION, state.st_size, state.st_mtime_ns, head, dict(facts), places, len(blocks),
            digest.hexdigest(),
        )
    )  # fmt: skip
    parts += [footer, len(footer).to_bytes(_LENGTH_BYTES, "big")]
    with contextlib.suppress(OSError):
        disk.write_durably(index_path(journal), b"".join(parts))


def open_side_file(journal: Path) -> SideFile | None:
    """The index kept beside ``journal`` if it is of the file as it is now; else None."""
    path = index_path(journal)
    try:
        with path.open("rb") as stream:
            end = stream.seek(0, os.SEEK_END)
            stream.seek(max(0, end - _LENGTH_BYTES))
            length = int.from_bytes(stream.read(), "big")
            if length > end - _LENGTH_BYTES:
                return None
            stream.seek(end - _LENGTH_BYTES - length)
            footer = msgspec.msgpack.decode(stream.read(length), type=_Footer)
            if not _fits(journal, footer):
                return None
            stream.seek(footer.blocks)
            data = stream.read(end - _LENGTH_BYTES - length - footer.blocks)
    except (OSError, msgspec.DecodeError):
        return None
    if hashlib.sha256(data).hexdigest() != footer.sha256:
        return None
    tables = {}
    for name, place in footer.tables.items():
        begin = place.offset - footer.blocks
        tables[name] = data[begin : begin + place.length]
    return SideFile(path, footer.facts, footer.head, tables)


def _fits(journal: Path, footer: _Footer) -> bool:
    state = journal.stat()
    if footer.version != VERSION:
        return False
    if (state.st_size, state.st_mtime_ns) != (footer.size, footer.changed_ns):
        return False
    line = _last_line(journal, footer.size)
    place = link(line)
    return line_problem(line) is None and place is not None and place.event_hash == footer.head


def _last_line(journal: Path, size: int) -> bytes:
    """The last line without its newline; what there is of it if it is longer than lines are."""
    with journal.open("rb") as stream:
        length = min(size, 1 << 13)
        while True:
            stream.seek(size - length)
            data = stream.read(length)
            begin = data.rfind(b"\n", 0, -1) + 1
            if begin or length == size or length > _MAX_LINE_BYTES:
                return data[begin:].removesuffix(b"\n")
            length = min(size, length * 4)
