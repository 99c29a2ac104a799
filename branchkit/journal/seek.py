"""The events of a long journal, read where they stand and when they are asked for (R58)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import overload

from branchkit.journal.events import Event
from branchkit.journal.index import Place, TurnIndex, lines_between, place_of
from branchkit.journal.scan import Damage, Line, damage_error, scan

_STRETCHES = 256  # the turns whose lines are kept in memory


class SeekableEvents(Sequence[Event]):
    """All events of a journal whose turns are in order, in constant memory.

    One event costs the stretch of its turn: read, hashed, linked. Going through all of them checks
    the whole chain. Raises JournalDamaged where the file is not what it was when it was indexed.
    """

    def __init__(self, path: Path, index: TurnIndex) -> None:
        self._path, self._index = path, index
        self._lines: OrderedDict[int, list[Line]] = OrderedDict()
        self._parsed: dict[int, dict[int, Event]] = {}

    def __len__(self) -> int:
        return self._index.events

    def __iter__(self) -> Iterator[Event]:
        for item in scan(self._path):
            if isinstance(item, Damage):
                raise damage_error(self._path, item)
            yield item.event()
            if item.seq + 1 == len(self):  # what was appended since is not of this reading
                return

    @overload
    def __getitem__(self, seq: int) -> Event: ...
    @overload
    def __getitem__(self, seq: slice) -> list[Event]: ...
    def __getitem__(self, seq: int | slice) -> Event | list[Event]:
        if isinstance(seq, slice):
            return [self[one] for one in range(*seq.indices(len(self)))]
        if seq < 0:
            seq += len(self)
        if not 0 <= seq < len(self):
            raise IndexError(f"event {seq} of {len(self)}")
        begin, end = place_of(self._index, seq)
        return self._event(begin, end, seq)

    def of_turn(self, turn: int) -> list[Event]:
        """The events of a turn; none if the journal does not have it."""
        place = self._index.turns.get(turn)
        if place is None:
            return []
        begin, end = place_of(self._index, place.seq)
        return [self._event(begin, end, seq) for seq in range(begin.seq, end.seq)]

    def _event(self, begin: Place, end: Place, seq: int) -> Event:
        lines = self._stretch(begin, end)
        parsed = self._parsed[begin.seq]
        if seq not in parsed:
            parsed[seq] = lines[seq - begin.seq].event()
        return parsed[seq]

    def _stretch(self, begin: Place, end: Place) -> list[Line]:
        found = self._lines.get(begin.seq)
        if found is not None:
            self._lines.move_to_end(begin.seq)
            return found
        found = lines_between(self._path, begin, end)
        if len(self._lines) >= _STRETCHES:
            oldest, _ = self._lines.popitem(last=False)
            del self._parsed[oldest]
        self._lines[begin.seq], self._parsed[begin.seq] = found, {}
        return found
