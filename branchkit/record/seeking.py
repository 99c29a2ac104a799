"""Contexts of a long run, from the events that they need and no others (R58)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar, overload

from branchkit.journal.events import ContextBuilt, Event, ToolResult
from branchkit.journal.seek import SeekableEvents
from branchkit.record.context import Contexts, Seen

_CALL = re.compile(r"t(\d+)\.\d+")
Item = TypeVar("Item")


class Asked(Sequence[Item]):
    """A list of which only what is asked for is made, by ``load(start, stop)``."""

    def __init__(self, length: int, load: Callable[[int, int], list[Item]]) -> None:
        self._length, self._load = length, load
        self._whole: list[Item] | None = None

    def __len__(self) -> int:
        return self._length

    def _all(self) -> list[Item]:
        if self._whole is None:
            self._whole = self._load(0, self._length)
        return self._whole

    def __iter__(self) -> Iterator[Item]:
        return iter(self._all())

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> list[Item]: ...
    def __getitem__(self, index: int | slice) -> Item | list[Item]:
        if isinstance(index, slice):
            start, stop, step = index.indices(self._length)
            if self._whole is not None or step != 1:
                return self._all()[index]
            return self._load(start, stop) if start < stop else []
        at = range(self._length)[index]  # a negative one, or an IndexError
        return self._load(at, at + 1)[0] if self._whole is None else self._whole[at]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, list | Asked) and self._all() == list(other)

    __hash__ = None  # type: ignore[assignment]  # as a list has none

    def __repr__(self) -> str:
        return repr(self._all())


class SeekingContexts(Contexts):
    """The contexts of a run without parent whose turns can each be read alone."""

    _events: SeekableEvents

    def _look_through(self, events: Sequence[Event]) -> None:
        assert isinstance(events, SeekableEvents)
        self.turns = _Built(events)

    def at_seq(self, seq: int) -> list[Seen]:
        return self.part_of(seq, 0, self._built_at(seq).payload.messages)

    def _result_of(self, call_id: str) -> Event | None:
        # A call's result stands in its turn, except where somebody else's journal says otherwise.
        call = _CALL.fullmatch(call_id)
        near = self._events.of_turn(int(call[1])) if call else []
        for events in (reversed(near), self._events):
            for event in events:
                if isinstance(event.payload, ToolResult) and event.payload.call_id == call_id:
                    return event
        return None


class _Built(Mapping[int, Event]):
    """Turn to its last ContextBuilt."""

    def __init__(self, events: SeekableEvents) -> None:
        self._events = events

    def __getitem__(self, turn: int) -> Event:
        for event in reversed(self._events.of_turn(turn)):
            if isinstance(event.payload, ContextBuilt) and event.turn == turn:
                return event
        raise KeyError(turn)

    def __iter__(self) -> Iterator[int]:
        return (event.turn for event in self._events if isinstance(event.payload, ContextBuilt))

    def __len__(self) -> int:
        return sum(1 for _ in self)
