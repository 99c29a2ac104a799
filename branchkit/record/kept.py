"""A long run opened without reading it: what its side file knows, and the rest where it stands."""

from __future__ import annotations

import os
from array import array
from bisect import bisect_left
from pathlib import Path
from typing import NamedTuple

from branchkit.journal.events import Checkpoint, Event, TaskStarted
from branchkit.journal.index import TurnIndex, Turns, build_index
from branchkit.journal.seek import SeekableEvents
from branchkit.journal.sidefile import SideFile, open_side_file, write_side_file
from branchkit.record.fold import fold
from branchkit.record.keyframes import Frames, FrameWriter
from branchkit.record.record import Record, Snapshot

LONG_BYTES = 1 << 20  # below, reading all of it takes no longer than a look at a side file
_TURNS = ("numbers", "seqs", "offsets", "checkpoints")
_FRAMES = ("frame_turns", "frame_seqs", "frame_offsets", "frame_lengths", "frame_sums")
_CUTS = ("cut_turns", "cut_seqs")


class Kept(NamedTuple):
    """A run whose turns can each be looked at alone."""

    places: TurnIndex
    events: SeekableEvents
    frames: Frames
    cuts: tuple[array[int], ...]  # turn and seq of each delivery that left text out

    @property
    def last_turn(self) -> int:
        """The last turn that any event names."""
        return self.places.turns.numbers[-1]

    def end_of(self, turn: int) -> int:
        """The seq after the last event of turns up to ``turn``."""
        turns = self.places.turns
        after = bisect_left(turns.numbers, turn + 1)
        return turns.seqs[after] if after < len(turns) else self.places.events

    def record_after(self, turn: int) -> Record:
        """The record at the end of ``turn``."""
        until = self.end_of(turn)
        found = self.frames.record_after(turn, self.events, until)
        if found is None:  # a frame is damaged, or its side file was replaced
            return fold(None, (e for e in self.events[:until] if e.kind != "TaskFinished"))
        return found

    def snapshot_before(self, turn: int) -> Snapshot | None:
        """The workspace as the turns before ``turn`` left it."""
        turns = self.places.turns
        at = bisect_left(turns.numbers, turn)
        if at < len(turns):
            seq = turns.checkpoints[at] - 1
            return None if seq < 0 else _snapshot(self.events[seq])
        last = self.events.of_turn(self.last_turn)
        taken = [event for event in last if isinstance(event.payload, Checkpoint)]
        return _snapshot(taken[-1]) if taken else self.snapshot_before(self.last_turn)

    def cuts_before(self, turn: int) -> int:
        """How many deliveries of turns before ``turn`` left text out."""
        return bisect_left(self.cuts[0], turn)


def open_kept(path: Path) -> Kept | None:
    """The run in ``path``, from its side file, which is made if need be.

    None for one that has to be read as a whole: a short one, a branch, one that was damaged, or
    resumed, or goes back to earlier turns. Raises InputRefused.
    """
    state = path.stat() if path.exists() else None
    if state is None or state.st_size < LONG_BYTES:
        return None
    side = open_side_file(path)
    if side is None and os.access(path.parent, os.W_OK):
        _make(path, state)
        side = open_side_file(path)
    if side is None or not side.facts["usable"]:
        return None
    turns = Turns(_columns(side, _TURNS))
    places = TurnIndex(turns, side.facts["events"], state.st_size, side.head, [], True)
    frames = Frames(side, _columns(side, _FRAMES))
    return Kept(places, SeekableEvents(path, places), frames, _columns(side, _CUTS))


def _make(path: Path, state: os.stat_result) -> None:
    frames = FrameWriter()
    index = build_index(path, frames.see)
    if index.damage or index.end != state.st_size:  # damaged, or still being written
        return
    turns = index.turns
    first = SeekableEvents(path, index)[0] if index.monotone else None
    root = first is not None and isinstance(first.payload, TaskStarted)
    columns = zip(
        (*_TURNS, *_FRAMES, *_CUTS),
        (turns.numbers, turns.seqs, turns.offsets, turns.checkpoints, *frames.frames, *frames.cuts),
        strict=True,
    )
    write_side_file(
        path,
        state=state,
        head=index.head,
        facts={"events": index.events, "usable": int(frames.usable and root)},
        blocks=bytes(frames.data),
        tables={name: column.tobytes() for name, column in columns},
    )


def _columns(side: SideFile, names: tuple[str, ...]) -> tuple[array[int], ...]:
    return tuple(array("Q", side.tables[name]) for name in names)


def _snapshot(event: Event) -> Snapshot:
    taken = event.payload
    assert isinstance(taken, Checkpoint)
    return Snapshot(event.seq, event.turn, taken.snapshot, taken.tree_hash)
