"""Where each turn begins in a journal, so that one turn can be read without the others (R58).

The index is built from raw lines, without parsing a payload, and kept in memory. A turn is a
stretch of the file: it begins at the first event that names it and ends where a later turn begins.
An event that names an earlier turn belongs to the stretch in which it was written.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from branchkit.errors import JournalDamaged, TurnOutside
from branchkit.journal.chain import line_problem, link, parse_line
from branchkit.journal.events import Event
from branchkit.journal.format import ZERO_HASH
from branchkit.journal.scan import Damage, scan


class Place(NamedTuple):
    """The first event of a turn: its number, and where its line begins, in bytes."""

    seq: int
    offset: int


class TurnIndex(NamedTuple):
    """Turn to the place of its first event, for the intact prefix of a journal.

    ``events`` and ``end`` (bytes) say how long that prefix is, ``head`` is the hash of its last
    event, ``damage`` what follows it. ``in_order``: no turn begins before a lower one.
    """

    turns: dict[int, Place]
    events: int
    end: int
    head: str
    damage: list[Damage]
    in_order: bool


def build_index(path: Path) -> TurnIndex:
    """The index of the intact prefix of ``path``, from one pass that also checks the chain."""
    turns: dict[int, Place] = {}
    events, end, head = 0, 0, ZERO_HASH
    damage: list[Damage] = []
    for item in scan(path):
        if isinstance(item, Damage):
            damage.append(item)
            continue
        if item.turn not in turns:
            turns[item.turn] = Place(item.seq, item.offset)
        events, end, head = events + 1, item.offset + len(item.raw) + 1, item.event_hash
    in_order = all(one < two for one, two in pairwise(turns))
    return TurnIndex(turns, events, end, head, damage, in_order)


def events_between(path: Path, index: TurnIndex, first_turn: int, last_turn: int) -> list[Event]:
    """The events of turns ``first_turn``..``last_turn``, both included; nothing else is read.

    Raises TurnOutside if the journal has none of these turns, JournalDamaged if the file is not
    what it was when the index was built.
    """
    begin, end = _stretch(path, index, first_turn, last_turn)
    with path.open("rb") as stream:
        stream.seek(begin.offset)
        data = stream.read(end.offset - begin.offset)
    events: list[Event] = []
    for seq, line in enumerate(data.split(b"\n")[:-1], start=begin.seq):
        place = link(line)
        follows = not events or (place and place.prev_event_hash == events[-1].event_hash)
        if line_problem(line) or place is None or place.seq != seq or not follows:
            raise _changed(path, seq)
        events.append(parse_line(line))
    if len(events) != end.seq - begin.seq:
        raise _changed(path, begin.seq + len(events))
    return events


def _stretch(path: Path, index: TurnIndex, first_turn: int, last_turn: int) -> tuple[Place, Place]:
    turns = index.turns
    # The usual case, in constant time: a long run is asked for one turn after the other.
    if (
        index.in_order
        and first_turn in turns
        and last_turn + 1 in turns
        and first_turn <= last_turn
    ):
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
