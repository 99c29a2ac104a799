"""Where each turn begins in a journal, so that one turn can be read without the others (R58).

The index is built from raw lines in the pass that checks the chain; ``sidefile`` keeps it. A turn
is a stretch of the file: it begins at the first event that names it and ends where a later turn
begins. An event that names an earlier turn belongs to the stretch in which it was written.
"""

from __future__ import annotations

import io
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from branchkit.errors import JournalDamaged, TurnOutside
from branchkit.journal.chain import HEAD_BYTES, link
from branchkit.journal.events import Event
from branchkit.journal.format import ZERO_HASH
from branchkit.journal.scan import Damage, Line, Start, scan, scan_lines

_CHECKPOINT = b'"kind":"Checkpoint"'


class Place(NamedTuple):
    """The first event of a turn: its number, and where its line begins, in bytes."""

    seq: int
    offset: int


class Turns(Mapping[int, Place]):
    """Turn to the place of its first event, in the order of the file; 32 bytes a turn.

    ``checkpoints`` has, for each turn, one more than the seq of the last Checkpoint before it, or 0
    where there is none. ``in_order``: no turn begins before a lower one.
    """

    def __init__(self, columns: tuple[array[int], ...] | None = None) -> None:
        made = columns or tuple(array("Q") for _ in range(4))
        self.numbers, self.seqs, self.offsets, self.checkpoints = made
        self.in_order = all(a < b for a, b in zip(self.numbers, self.numbers[1:], strict=False))
        self._positions: dict[int, int] | None = None

    def add(self, turn: int, place: Place, checkpoint: int) -> None:
        """Put a turn at the end, if it is not there yet."""
        if self.numbers and turn <= self.numbers[-1]:
            if turn in self:
                return
            self.in_order = False
        if self._positions is not None:
            self._positions[turn] = len(self.numbers)
        self.numbers.append(turn)
        self.seqs.append(place.seq)
        self.offsets.append(place.offset)
        self.checkpoints.append(checkpoint)

    def position(self, turn: int) -> int | None:
        """Which of the turns of the file it is, from 0."""
        if self.in_order:
            found = bisect_left(self.numbers, turn)
            return found if found < len(self.numbers) and self.numbers[found] == turn else None
        if self._positions is None:
            self._positions = {number: at for at, number in enumerate(self.numbers)}
        return self._positions.get(turn)

    def __getitem__(self, turn: int) -> Place:
        at = self.position(turn)
        if at is None:
            raise KeyError(turn)
        return Place(self.seqs[at], self.offsets[at])

    def __iter__(self) -> Iterator[int]:
        return iter(self.numbers)

    def __len__(self) -> int:
        return len(self.numbers)


class TurnIndex(NamedTuple):
    """Turn to the place of its first event, for the intact prefix of a journal.

    ``events`` and ``end`` (bytes) say how long that prefix is, ``head`` is the hash of its last
    event, ``damage`` what follows it. ``monotone``: no event names a turn before an earlier one's,
    so each turn is one stretch and a turn's events are nowhere else.
    """

    turns: Turns
    events: int
    end: int
    head: str
    damage: list[Damage]
    monotone: bool


def build_index(path: Path, each: Callable[[Line], None] = lambda line: None) -> TurnIndex:
    """The index of the intact prefix of ``path``, from one pass that also checks the chain.

    ``each`` is shown every intact line.
    """
    turns = Turns()
    events, end, head, highest, checkpoint = 0, 0, ZERO_HASH, 0, 0
    damage: list[Damage] = []
    monotone = True
    for item in scan(path):
        if isinstance(item, Damage):
            damage.append(item)
            continue
        turn = item.turn
        if turn != highest or not events:
            turns.add(turn, Place(item.seq, item.offset), checkpoint)
            monotone = monotone and turn >= highest
            highest = max(highest, turn)
        if item.raw.startswith(_CHECKPOINT, HEAD_BYTES):
            checkpoint = item.seq + 1
        each(item)
        events, end, head = events + 1, item.offset + len(item.raw) + 1, item.event_hash
    return TurnIndex(turns, events, end, head, damage, monotone)


def events_between(path: Path, index: TurnIndex, first_turn: int, last_turn: int) -> list[Event]:
    """The events of turns ``first_turn``..``last_turn``, both included; nothing else is read.

    Raises TurnOutside if the journal has none of these turns, JournalDamaged if the file is not
    what it was when the index was built.
    """
    begin, end = _stretch(path, index, first_turn, last_turn)
    return [line.event() for line in lines_between(path, begin, end)]


def lines_between(path: Path, begin: Place, end: Place) -> list[Line]:
    """The lines from ``begin`` to before ``end``, each with the right hash and linked to the next.

    Raises JournalDamaged if they are not there.
    """
    with path.open("rb") as stream:
        stream.seek(begin.offset)
        data = stream.read(end.offset - begin.offset)
    first = link(data.partition(b"\n")[0])
    if first is None:
        raise _changed(path, begin.seq)
    found: list[Line] = []
    start = Start(begin.seq, first.prev_event_hash, begin.offset)
    for item in scan_lines(io.BytesIO(data), start):
        if isinstance(item, Damage):
            raise _changed(path, item.seq)
        found.append(item)
    if len(found) != end.seq - begin.seq:
        raise _changed(path, begin.seq + len(found))
    return found


def place_of(index: TurnIndex, seq: int) -> tuple[Place, Place]:
    """The stretch in which event ``seq`` stands, in a journal whose turns are in order."""
    turns = index.turns
    at = bisect_right(turns.seqs, seq) - 1
    begin = Place(turns.seqs[at], turns.offsets[at])
    if at + 1 < len(turns):
        return begin, Place(turns.seqs[at + 1], turns.offsets[at + 1])
    return begin, Place(index.events, index.end)


def _stretch(path: Path, index: TurnIndex, first_turn: int, last_turn: int) -> tuple[Place, Place]:
    turns = index.turns
    # The usual case, in constant time: a long run is asked for one turn after the other.
    known = first_turn in turns and last_turn + 1 in turns
    if turns.in_order and known and first_turn <= last_turn:
        return turns[first_turn], turns[last_turn + 1]
    named = [place for turn, place in turns.items() if first_turn <= turn <= last_turn]
    if not named:
        there = f"{min(turns)}..{max(turns)}" if turns else "no turn"
        raise TurnOutside(
            f"turns {first_turn}..{last_turn} are outside {there} of {path.name}",
            hint="a branch's journal begins at its fork; earlier turns are in its parent's",
        )
    begin, last = min(named), max(named)
    later = [place for turn, place in turns.items() if turn > last_turn and place > last]
    return begin, min(later, default=Place(index.events, index.end))


def _changed(path: Path, seq: int) -> JournalDamaged:
    return JournalDamaged(
        f"{path.name}: event {seq} is not where it was when the file was indexed",
        hint=f"run `branchkit verify {path.name}`; a journal is only ever appended to",
    )
