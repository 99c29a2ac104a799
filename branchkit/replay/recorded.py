"""A run that lies on disk: journal, blobs and pack opened together."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from branchkit.errors import InputRefused, TurnOutside
from branchkit.journal.blobs import BlobReader, Blobs, first_of, store_directory
from branchkit.journal.events import (
    Compacted,
    ContextBuilt,
    Delivered,
    Event,
    Forked,
    InputReceived,
    Message,
    ModelReplied,
    TaskStarted,
)
from branchkit.journal.file import Damage, damage_error, read
from branchkit.journal.format import accumulate
from branchkit.journal.pack import Pack, pack_path
from branchkit.record.context import (
    ContextHash,
    Contexts,
    Seen,
    plain_tools,
    seen,
)
from branchkit.record.effective import effective
from branchkit.record.fold import fold
from branchkit.record.kept import Kept, open_kept
from branchkit.record.record import Record, Snapshot
from branchkit.record.seeking import Asked, SeekingContexts
from branchkit.record.unanswered import unanswered
from branchkit.workspace import Workspaces, adopt

PARENT_FILE = "parent.json"  # beside branch journals: where the parent's journal lies


class Looked(NamedTuple):
    """A context as messages, the same with where each comes from, and its hash."""

    messages: Sequence[Message]
    context: Sequence[Seen]
    context_hash: str


class Recorded:
    """A journal opened for reading; nothing here writes to it.

    ``turns`` is T, the number of replies. A branch counts on from its fork, and has its parent.
    """

    def __init__(
        self,
        path: Path,
        events: Sequence[Event],
        parent: Recorded | None,
        kept: Kept | None = None,
    ) -> None:
        self.path = path
        self.events = events
        self.parent = parent
        self._kept = kept
        self.pack = Pack(pack_path(path)) if pack_path(path).exists() else None
        self.blobs = _blob_reader(self.pack, parent)
        contexts = Contexts if kept is None else SeekingContexts
        self.contexts: Contexts = contexts(events, self.blobs, parent.contexts if parent else None)
        self.fork_turn = first.turn if isinstance(first := events[0].payload, Forked) else 0
        self.turns = self._last_reply()

    @classmethod
    def open(cls, path: Path | str, *, parent: Path | str | None = None) -> Recorded:
        """The run in ``path``: a long one is not read, but looked into where it is asked about.

        Raises JournalDamaged, InputRefused.
        """
        path = Path(path)
        kept = open_kept(path)
        if kept is not None:
            return cls(path, kept.events, None, kept)
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

    def _last_reply(self) -> int:
        if self._kept is None:
            replies = [event.turn for event in self.events if _is_reply(event)]
            return max(replies, default=self.fork_turn)
        turn = self._kept.last_turn
        while turn and not any(map(_is_reply, self._kept.events.of_turn(turn))):
            turn -= 1
        return turn

    @cached_property
    def record(self) -> Record:
        """The record at the end of what was recorded."""
        if self._kept is not None:
            end = self._kept.events.of_turn(self._kept.last_turn)
            return fold(self._kept.record_after(self._kept.last_turn), filter(_is_end, end))
        return fold(self._record_before(), self.events)

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
        events = self.events if self._kept is None else self.events[: self._kept.end_of(turn)]
        return [event for event in events if event.turn <= turn and not _is_end(event)]

    def last_event(self, turn: int) -> Event:
        """The last of ``events_until(turn)``."""
        if self._kept is None:
            return self.events_until(turn)[-1]
        seq = self._kept.end_of(turn) - 1
        while _is_end(self.events[seq]):
            seq -= 1
        return self.events[seq]

    def events_of(self, turn: int) -> list[Event]:
        """The events of ``turn`` that the run builds on, from the run that recorded it."""
        if self.parent and turn <= self.fork_turn:
            return self.parent.events_of(turn)
        if self._kept is not None:
            return self._kept.events.of_turn(turn)
        return [event for event in self._made if event.turn == turn]

    @cached_property
    def _made(self) -> list[Event]:
        return effective(self.events)

    def record_after(self, turn: int) -> Record:
        """The record at the end of ``turn`` (R58: no model, no tool, a fold)."""
        if self.parent and turn < self.fork_turn:
            return self.parent.record_after(turn)
        if self._kept is not None:
            return self._kept.record_after(turn)
        return fold(self._record_before(), self.events_until(turn))

    def snapshot_before(self, turn: int) -> Snapshot | None:
        """The workspace as the tools of the turns before ``turn`` left it."""
        if self._kept is not None:
            return self._kept.snapshot_before(turn)
        return self.record_after(turn - 1).snapshot_at(turn - 1)

    def cuts_before(self, turn: int) -> Sequence[Event]:
        """The deliveries of this run's turns before ``turn`` that left text out."""
        if self._kept is None:
            return [event for event in self.events if event.turn < turn and _is_cut(event)]
        seqs = self._kept.cuts[1]
        return Asked(
            self._kept.cuts_before(turn),
            lambda start, stop: [self.events[seq] for seq in seqs[start:stop]],
        )

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
        begin = self._built_before(turn)
        if (replaced := self._compacted_since(begin, turn)) is not None:
            return replaced
        context = list(self.contexts.at_seq(begin.seq)) if begin else []
        return context + self._said_since(begin, turn)

    def _built_before(self, turn: int) -> Event | None:
        begin = self.contexts.turns.get(turn - 1)
        if begin is None and self.parent is not None:
            raise TurnOutside(
                f"{self.path.name} ended before it had a context of its own",
                hint=f"what it began from is turn {turn} of its parent, {self.parent.path}",
            )
        return begin

    def _compacted_since(self, begin: Event | None, turn: int) -> list[Seen] | None:
        """What stands for the history since turn ``turn`` - 1 was asked, and what came after it.

        None where nothing was compacted (R10).
        """
        events = [e for e in self.events_of(turn - 1) if begin is None or e.seq > begin.seq]
        last = next((e for e in reversed(events) if isinstance(e.payload, Compacted)), None)
        if last is None or not isinstance(last.payload, Compacted):
            return None
        return [seen(one) for one in last.payload.messages] + self._said_since(last, turn)

    def _said_since(self, begin: Event | None, turn: int) -> list[Seen]:
        """The messages of the turn before ``turn`` after its context was built.

        A run that was cut off may have left calls unanswered; no provider takes them like that. An
        import is shown word for word.
        """
        said = [
            seen(self.contexts.message(event.seq), event.seq)
            for event in self.events_of(turn - 1)
            if (begin is None or event.seq > begin.seq) and _is_message(event)
        ]
        return said if self.imported else [*said, *unanswered(said)]

    def seen_before(self, turn: int) -> Looked:
        """``context_before`` with its hash; of a long run only the messages that are looked at."""
        if self._kept is None:
            return self._looked(self.context_before(turn))
        built = self.contexts.turns.get(turn)
        begin = built or self._built_before(turn)
        replaced = None if built else self._compacted_since(begin, turn)
        if replaced is not None:
            return self._looked(replaced)
        said = [] if built else self._said_since(begin, turn)
        if begin is None:
            return self._looked(said)
        payload = begin.payload
        assert isinstance(payload, ContextBuilt)
        held, hashed = payload.messages, payload.context_hash
        for item in said:
            hashed = accumulate(hashed, item.message_hash)

        def part(start: int, stop: int) -> list[Seen]:
            found = self.contexts.part_of(begin.seq, min(start, held), min(stop, held))
            return found + said[max(0, start - held) : max(0, stop - held)]

        context = Asked(held + len(said), part)
        messages = Asked(
            len(context), lambda start, stop: [item.message for item in context[start:stop]]
        )
        return Looked(messages, context, hashed)

    def _looked(self, context: list[Seen]) -> Looked:
        hashed = ContextHash(plain_tools(self.started.tools)).of(context)
        return Looked([item.message for item in context], context, hashed)

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


def _is_reply(event: Event) -> bool:
    return isinstance(event.payload, ModelReplied)


def _is_cut(event: Event) -> bool:
    return isinstance(event.payload, Delivered) and event.payload.text is not None


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
