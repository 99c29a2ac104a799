"""The record at any turn of a long run without folding all of it (R58, H05).

Every FRAME_TURNS turns the record is put down as it is then. Its lists of calls and snapshots grow
with the run, so a frame holds only what came to them since the frame before: all frames together
are as long as the record, not its square. The record after turn t is the last frame before it and
at most FRAME_TURNS turns of events.
"""

from __future__ import annotations

import zlib
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from branchkit.journal.events import (
    Delivered,
    Event,
    Resumed,
    TaskFinished,
    TaskStarted,
)
from branchkit.journal.scan import Line
from branchkit.journal.sidefile import Block, SideFile
from branchkit.record.fold import apply, fold
from branchkit.record.record import CallState, Record, Snapshot

FRAME_TURNS = 20


class _Growth(msgspec.Struct):
    """What a frame adds to the lists that grow."""

    calls: dict[str, CallState]
    snapshots: list[Snapshot]


class FrameWriter:
    """Frames of a run while it is read once from its beginning, in memory that does not grow."""

    def __init__(self) -> None:
        self.usable = True
        self.data = bytearray()
        self.frames = tuple(array("Q") for _ in range(5))  # turn, seq, offset, length, crc32
        self.cuts = (array("Q"), array("Q"))  # turn and seq of each delivery that left text out
        self._record = Record()

    def see(self, line: Line) -> None:
        """Take the next line of the journal. Raises InputRefused for one that is not ours."""
        event = line.event()
        payload, record = event.payload, self._record
        if isinstance(payload, Resumed) or (isinstance(payload, TaskStarted) and event.seq):
            self.usable = False  # it takes back what came before, which frames cannot
        if event.turn > record.turn and event.turn % FRAME_TURNS == 0 and self.usable:
            self._frame(event)
        if isinstance(payload, Delivered) and payload.text is not None:
            self.cuts[0].append(event.turn)
            self.cuts[1].append(event.seq)
        apply(record, event)

    def _frame(self, event: Event) -> None:
        record = self._record
        if any(call.proposed < 0 for call in record.calls.values()):
            self.usable = False  # something was added to a call of an earlier frame
            return
        own = record.copy()
        own.components, own.tools, own.versions, own.volatile = {}, [], {}, []
        try:
            data = msgspec.msgpack.encode(own)
        except (UnicodeEncodeError, OverflowError):
            self.usable = False
            return
        facts = (event.turn, event.seq, len(self.data), len(data), zlib.crc32(data))
        for column, fact in zip(self.frames, facts, strict=True):
            column.append(fact)
        self.data += data
        record.calls = {name: call for name, call in record.calls.items() if call.result is None}
        record.snapshots = []


class Frames(NamedTuple):
    """The frames that a side file holds."""

    side: SideFile
    frames: tuple[array[int], ...]

    def record_after(self, turn: int, events: Sequence[Event], until: int) -> Record | None:
        """The record after the events before seq ``until``, the end of ``turn``.

        None if a frame is damaged.
        """
        turns, seqs, offsets, lengths, sums = self.frames
        last = bisect_right(turns, turn) - 1
        begin = fold(None, [events[0]])
        if last < 0:
            return fold(begin, _without_end(events[1:until]))
        places = [Block(offsets[at], lengths[at], sums[at]) for at in range(last + 1)]
        blocks = self.side.blocks(places)
        if blocks is None:
            return None
        record = msgspec.msgpack.decode(blocks[-1], type=Record)
        calls, snapshots = dict[str, CallState](), list[Snapshot]()
        for block in blocks:
            growth = msgspec.msgpack.decode(block, type=_Growth)
            calls.update(growth.calls)
            snapshots += growth.snapshots
        record.calls, record.snapshots = calls, snapshots
        record.components, record.tools = begin.components, begin.tools
        record.versions, record.volatile = begin.versions, begin.volatile
        for event in _without_end(events[seqs[last] : until]):
            apply(record, event)
        return record


def _without_end(events: Iterable[Event]) -> Iterable[Event]:
    return (event for event in events if not isinstance(event.payload, TaskFinished))
