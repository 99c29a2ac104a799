"""Reading ``NAME.journal.jsonl``: the good prefix and the damage after it (R1, R15).

A broken journal is a fact, not a crash: reading returns the intact prefix and a ``Damage`` for the
first thing that is wrong. Writing is in ``file.py``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from branchkit.errors import InputRefused, JournalDamaged
from branchkit.journal.chain import (
    HEAD,
    HEAD_BYTES,
    PREV,
    SEQ,
    TAIL,
    TAIL_KEY,
    TURN,
    Link,
    line_problem,
    link,
    parse_placed,
)
from branchkit.journal.events import Event
from branchkit.journal.format import HASH_PREFIX, ZERO_HASH

SUFFIX = ".journal.jsonl"
BLOCK_BYTES = 1 << 18  # read at once; a mapped file is slower, and counts as memory
_NEWLINE = ord("\n")


class Damage(NamedTuple):
    """The first thing wrong with a journal. ``line`` counts from 1, ``offset`` in bytes from 0."""

    seq: int
    line: int
    offset: int
    code: str
    detail: str


class Line(NamedTuple):
    """An intact line in its place in the chain."""

    raw: bytes
    offset: int
    seq: int
    turn: int
    event_hash: str
    tail: re.Match[bytes]  # the envelope behind the payload

    def event(self) -> Event:
        """The typed event. Raises InputRefused for a kind, version or shape that is not known."""
        return parse_placed(self.raw, self.tail, self.seq, self.turn, self.event_hash)


class Start(NamedTuple):
    """Where a scan begins: the event expected first, the hash before it, its place in bytes."""

    seq: int
    prev: str
    offset: int


START = Start(0, ZERO_HASH, 0)


class Verdict(NamedTuple):
    """What ``verify`` found. ``head`` is the hash of the last intact event."""

    ok: bool
    events: int
    head: str
    end: int
    damage: list[Damage]


def scan(path: Path) -> Iterator[Line | Damage]:
    """The intact lines of ``path`` in order, then at most one Damage; streams, holds one line."""
    try:
        stream = path.open("rb", buffering=BLOCK_BYTES)
    except OSError as error:
        raise InputRefused(
            f"{path} cannot be read: {error.strerror}", hint="give the path of a NAME.journal.jsonl"
        ) from None
    with stream:
        yield from scan_lines(stream)


def scan_lines(lines: Iterable[bytes], start: Start = START) -> Iterator[Line | Damage]:
    """``scan`` of lines with their newlines, wherever they come from."""
    seq, prev, offset = start.seq, start.prev.encode(), start.offset
    for raw in lines:
        end = len(raw) - 1
        digest = hashlib.sha256(b"{")
        digest.update(memoryview(raw)[HEAD_BYTES:end])
        hexdigest = digest.hexdigest()
        intact = raw.startswith(b'%b%b",' % (HEAD, hexdigest.encode())) and raw[end] == _NEWLINE
        tail = TAIL.fullmatch(raw, raw.rfind(TAIL_KEY), end) if intact else None
        # What is right is right in one way; to say what is wrong may take its time.
        if tail is None or tail.group(PREV, SEQ) != (prev, b"%d" % seq):
            problem = _place(raw, seq, prev.decode())
            assert isinstance(problem, _Problem)
            yield Damage(seq, seq + 1, offset, problem.code, problem.detail)
            return
        event_hash = HASH_PREFIX + hexdigest
        yield Line(raw[:end], offset, seq, int(tail[TURN]), event_hash, tail)
        seq, prev, offset = seq + 1, event_hash.encode(), offset + end + 1
    if seq == 0:
        yield Damage(0, 1, 0, "empty", "the file holds no event")


class _Problem(NamedTuple):
    code: str
    detail: str


def _place(raw: bytes, seq: int, prev: str) -> Link | _Problem:
    """The place of the line ``raw`` in the chain if it is event ``seq`` after ``prev``."""
    if not raw.endswith(b"\n"):
        if isinstance(_place(raw + b"\n", seq, prev), Link):
            return _Problem("lost_newline", f"event {seq} is whole but its newline is missing")
        return _Problem("torn_line", f"the last line ends after {len(raw)} bytes without a newline")
    line = raw[:-1]
    if problem := line_problem(line):
        return _Problem(problem, f"event {seq} is not what its hash says")
    place = link(line)
    if place is None:
        return _Problem("not_an_event", "the envelope is not one that branchkit writes")
    if place.seq != seq:
        code = "duplicate_seq" if place.seq < seq else "seq_gap"
        return _Problem(code, f"event {seq} was expected here, this is event {place.seq}")
    if place.prev_event_hash != prev:
        return _Problem("broken_link", f"event {seq} does not follow the event before it")
    return place


def verify(path: Path, *, anchor: str | None = None) -> Verdict:
    """Check the whole chain without parsing it; with ``anchor``, also that its tail is as known.

    ``anchor`` is an event hash kept elsewhere. It must be the hash of the last event, because a
    tail that was cut off or written anew is consistent in itself and shows in no other way. Events
    that follow the anchor are ``beyond_anchor``; an anchor that is nowhere is ``anchor_mismatch``.
    """
    events, head, end = 0, ZERO_HASH, 0
    damage: list[Damage] = []
    anchored = _Anchored(0, 0) if anchor == ZERO_HASH else None
    for item in scan(path):
        if isinstance(item, Damage):
            damage.append(item)
            continue
        events, head, end = events + 1, item.event_hash, item.offset + len(item.raw) + 1
        if head == anchor:
            anchored = _Anchored(events, end)
    if anchor is not None and not damage and head != anchor:
        damage.append(_anchor_damage(anchor, anchored, Verdict(False, events, head, end, [])))
    return Verdict(not damage, events, head, end, damage)


class _Anchored(NamedTuple):
    """How many events stand up to the anchor, and where they end."""

    events: int
    end: int


def _anchor_damage(anchor: str, anchored: _Anchored | None, found: Verdict) -> Damage:
    if anchored is None:
        detail = f"no event has the hash {anchor}: the tail was cut off or written anew"
        return Damage(found.events, found.events + 1, found.end, "anchor_mismatch", detail)
    extra = found.events - anchored.events
    detail = f"{extra} event{'s follow' if extra > 1 else ' follows'} the anchor {anchor}"
    return Damage(anchored.events, anchored.events + 1, anchored.end, "beyond_anchor", detail)


def read(path: Path) -> tuple[list[Event], list[Damage]]:
    """The typed events of the good prefix, and the damage after it (empty if there is none).

    Raises InputRefused, naming file, line and event, for an intact line of unknown kind or version.
    """
    events: list[Event] = []
    damage: list[Damage] = []
    for item in scan(path):
        if isinstance(item, Damage):
            damage.append(item)
            continue
        try:
            events.append(item.event())
        except InputRefused as error:
            raise InputRefused(
                f"{path.name} line {item.seq + 1}, event {item.seq}: {error.message}",
                hint=error.hint,
            ) from None
    return events, damage


def damage_error(path: Path, damage: Damage) -> JournalDamaged:
    """The error that a verb raises when it cannot work with a damaged journal."""
    return JournalDamaged(
        f"{path.name} line {damage.line}, byte {damage.offset}, event {damage.seq}: "
        f"{damage.code}: {damage.detail}",
        hint=_remedy(path, damage),
    )


def _remedy(path: Path, damage: Damage) -> str:
    if damage.code == "beyond_anchor":
        return "if the run went on after the anchor was kept, keep a new one; else cut them off"
    if damage.code == "anchor_mismatch":
        return "the chain in itself is intact: compare it with a copy, or look for the right anchor"
    if damage.seq == 0:
        return "no event is intact: get the file from a copy"
    intact = "event 0 is" if damage.seq == 1 else f"events 0..{damage.seq - 1} are"
    return f"{intact} intact: `branchkit show {path.name}` reads what is; get the rest from a copy"
