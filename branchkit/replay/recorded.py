"""A run that lies on disk: journal, blobs and pack opened together."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from branchkit.errors import InputRefused, TurnOutside
from branchkit.journal.blobs import BlobReader, Blobs, first_of, store_directory
from branchkit.journal.events import (
    Delivered,
    Event,
    Forked,
    InputReceived,
    ModelReplied,
    TaskStarted,
)
from branchkit.journal.file import Damage, damage_error, read
from branchkit.journal.pack import Pack, pack_path
from branchkit.record.context import Contexts, Seen, seen
from branchkit.record.fold import fold
from branchkit.record.record import Record
from branchkit.workspace import Workspaces, adopt

PARENT_FILE = "parent.json"  # beside branch journals: where the parent's journal lies


class Recorded:
    """A journal opened for reading; nothing here writes to it.

    ``turns`` is T, the number of replies. A branch counts on from its fork, and has its parent.
    """

    def __init__(self, path: Path, events: Sequence[Event], parent: Recorded | None) -> None:
        self.path = path
        self.events = events
        self.parent = parent
        self.pack = Pack(pack_path(path)) if pack_path(path).exists() else None
        self.blobs = _blob_reader(self.pack, parent)
        self.contexts: Contexts = Contexts(events, self.blobs, parent.contexts if parent else None)
        self.fork_turn = first.turn if isinstance(first := events[0].payload, Forked) else 0
        self.record = fold(self._record_before(), events)
        replies = [event.turn for event in events if isinstance(event.payload, ModelReplied)]
        self.turns = max(replies, default=self.fork_turn)

    @classmethod
    def open(cls, path: Path | str, *, parent: Path | str | None = None) -> Recorded:
        """The run in ``path``. Raises JournalDamaged, InputRefused."""
        path = Path(path)
        events, damage = read(path)
        if damage:
            raise damage_error(path, damage[0])
        return cls(path, events, _open_parent(path, events, parent))

    @classmethod
    def good_prefix(cls, path: Path | str) -> tuple[Recorded | None, list[Damage]]:
        """What is intact of ``path`` (None if nothing is), and the damage after it."""
        path = Path(path)
        events, damage = read(path)
        return (cls(path, events, _open_parent(path, events, None)) if events else None), damage

    def _record_before(self) -> Record | None:
        return self.parent.record_after(self.fork_turn) if self.parent else None

    @property
    def started(self) -> TaskStarted:
        """The first event of the run, or of the run that this one branched from."""
        root = self
        while root.parent is not None:
            root = root.parent
        first = root.events[0].payload
        if not isinstance(first, TaskStarted):
            raise InputRefused(
                f"{root.path.name} begins with {root.events[0].kind}, not with TaskStarted",
                hint="a branch needs its parent's journal: give --parent FILE",
            )
        return first

    @property
    def imported(self) -> bool:
        """Whether the harness that made this run was not ours."""
        return self.started.origin is not None

    def owner(self, turn: int) -> Recorded:
        """The run that recorded ``turn``: this one, or one that it branched from."""
        run = self
        while run.parent is not None and turn < run.fork_turn:
            run = run.parent
        return run

    def events_until(self, turn: int) -> list[Event]:
        """The events of turns 0..``turn``, without the run's end."""
        return [event for event in self.events if event.turn <= turn and not _is_end(event)]

    def record_after(self, turn: int) -> Record:
        """The record at the end of ``turn`` (R58: no model, no tool, a fold)."""
        if self.parent and turn < self.fork_turn:
            return self.parent.record_after(turn)
        return fold(self._record_before(), self.events_until(turn))

    def check_turn(self, turn: int, first: int, last: int) -> None:
        """Raise TurnOutside unless ``first <= turn <= last``."""
        if not first <= turn <= last:
            raise TurnOutside(
                f"turn {turn} is outside {first}..{last} of {self.path.name}",
                hint=f"the run has {self.turns} turns (replies); turn 0 is its start",
            )

    def context_before(self, turn: int) -> list[Seen]:
        """The context of reply ``turn``: as recorded, or as the recorded harness would go on."""
        if self.parent and turn <= self.fork_turn:
            return self.parent.context_before(turn)
        if turn in self.contexts.turns:
            return list(self.contexts.at_turn(turn))
        begin = self.contexts.turns.get(turn - 1)
        if begin is None and self.parent is not None:
            raise TurnOutside(
                f"{self.path.name} ended before it had a context of its own",
                hint=f"what it began from is turn {turn} of its parent, {self.parent.path}",
            )
        context = list(self.contexts.at_seq(begin.seq)) if begin else []
        for event in self.events:
            after = begin is None or event.seq > begin.seq
            if after and event.turn == turn - 1 and _is_message(event):
                context.append(seen(self.contexts.message(event.seq), event.seq))
        return context

    def close(self) -> None:
        """Close the pack."""
        if self.pack is not None:
            self.pack.close()

    def adopt_workspace(self, workspaces: Workspaces) -> None:
        """Unpack the run's base and snapshots into a store, once."""
        if self.parent is not None:
            self.parent.adopt_workspace(workspaces)
        if self.pack is not None:
            adopt(workspaces, read=self.pack.read, names=self.pack.names)


def _is_end(event: Event) -> bool:
    return event.kind == "TaskFinished"


def _is_message(event: Event) -> bool:
    return isinstance(event.payload, InputReceived | ModelReplied | Delivered)


def _blob_reader(pack: Pack | None, parent: Recorded | None) -> BlobReader:
    readers: list[BlobReader] = [Blobs(store_directory() / "blobs").get]
    if pack is not None:
        readers.insert(0, pack.blob)
    if parent is not None:
        readers.append(parent.blobs)
    return first_of(*readers)


def _open_parent(path: Path, events: Sequence[Event], given: Path | str | None) -> Recorded | None:
    first = events[0].payload
    if not isinstance(first, Forked):
        return None
    note = path.with_name(PARENT_FILE)
    if given is None and note.exists():
        given = json.loads(note.read_text(encoding="utf-8"))["journal"]
    if given is None:
        raise InputRefused(
            f"{path.name} is a branch of run {first.parent_run_id}, whose journal was not found",
            hint="give it: --parent FILE",
        )
    parent = Recorded.open(given)
    if parent.events[first.parent_seq].event_hash != first.parent_event_hash:
        raise InputRefused(
            f"{parent.path.name} is not the run that {path.name} branched from",
            hint=f"find run {first.parent_run_id}",
        )
    return parent
