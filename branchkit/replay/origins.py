"""Why a message is in a context: the event that put it there, what it hides, what it replaced.

Read from the journal when it is asked for, and only for the messages that are asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from branchkit.errors import BlobMissing
from branchkit.journal.events import Compacted, Delivered, Event
from branchkit.journal.format import value_hash
from branchkit.record.context import Dropped, Seen
from branchkit.replay.hidden import Hidden, cut_of
from branchkit.replay.recorded import Recorded

if TYPE_CHECKING:
    import pandas as pd

LOOK_BACK_CONTEXTS = 500  # for messages that were dropped: a fraction of a second


class Origin(NamedTuple):
    """Where one message comes from. ``seq`` is None where no event of the run holds it.

    ``kind`` is the event's kind, "harness" where the harness made the message of its own (the
    system prompt, a reminder), "Compacted" where it stands for others.
    """

    seq: int | None
    kind: str
    turn: int | None
    step_id: str
    journal: str
    hidden: Hidden | None

    def __str__(self) -> str:
        """In words: ``event 214, Delivered, t0022.1``."""
        if self.seq is None:
            return "made by the harness"
        return f"event {self.seq}, {self.kind}, {self.step_id or f'turn {self.turn}'}"


class Origins:
    """The origins of the messages of one context."""

    def __init__(
        self, recorded: Recorded, turn: int, context: Sequence[Seen], hidden: Sequence[Hidden]
    ) -> None:
        self._recorded, self._turn = recorded, turn
        self._context, self._hidden = context, hidden

    def __len__(self) -> int:
        return len(self._context)

    def part(self, start: int, stop: int) -> list[Origin]:
        """The origins of messages ``start`` to before ``stop``, which count from 0."""
        return [self._of(item) for item in self._context[start:stop]]

    def _of(self, item: Seen) -> Origin:
        run = self._recorded
        if item.in_parent and run.parent is not None:
            run = run.parent
        if item.seq is not None:
            event = run.events[item.seq]
            return _origin(run, event, self._cut(run, event, item))
        if self._compaction is not None and item.message_hash in self._summary_hashes:
            return _origin(run, self._compaction, None)
        name = run.path.name
        return Origin(None, "harness", None, "", name, self._anew.get(_call_id(item)))

    def _cut(self, run: Recorded, event: Event, item: Seen) -> Hidden | None:
        if isinstance(event.payload, Delivered) and event.payload.text is not None:
            return cut_of(run, event)
        return self._anew.get(_call_id(item))

    @cached_property
    def _anew(self) -> dict[str, Hidden]:
        """Cuts that no event of this run holds: a branch delivered results of its prefix anew."""
        if self._recorded.parent is None:
            return {}
        return {hidden.call_id: hidden for hidden in self._hidden}

    @cached_property
    def dropped(self) -> Dropped | None:
        """What compaction, or the harness itself, took out of the context last."""
        run = self._recorded
        if run.parent is not None and self._turn <= run.fork_turn:
            run = run.parent
        built = run.contexts.turns.get(self._turn) or run.contexts.turns.get(self._turn - 1)
        if built is None:
            return None
        try:
            return run.contexts.last_dropped(built.seq, contexts=LOOK_BACK_CONTEXTS)
        except BlobMissing:
            return None

    @cached_property
    def _compaction(self) -> Event | None:
        if self.dropped is None:
            return None
        between = self._recorded.events[self.dropped.since + 1 : self.dropped.seq]
        return next((e for e in reversed(between) if isinstance(e.payload, Compacted)), None)

    @property
    def reason(self) -> str:
        """Why ``dropped`` was: the compaction's reason, or that the harness left it out."""
        found = self._compaction
        if found is None or not isinstance(found.payload, Compacted):
            return "left out by the harness"
        return f"replaced by event {found.seq}, Compacted: {found.payload.reason}"

    @cached_property
    def _summary_hashes(self) -> set[str]:
        found = self._compaction
        if found is None or not isinstance(found.payload, Compacted):
            return set()
        return {value_hash(message) for message in found.payload.messages}

    def table(self) -> pd.DataFrame:
        """One row a message: role, then the fields of ``Origin``."""
        import pandas as pd

        rows = []
        for item, origin in zip(self._context, self.part(0, len(self)), strict=True):
            cut = origin.hidden
            rows.append(
                {
                    "role": str(item.message.get("role", "?")),
                    **{name: getattr(origin, name) for name in Origin._fields[:-1]},
                    "hidden_lines": cut.omitted_lines if cut else 0,
                    "hidden_bytes": cut.omitted_bytes if cut else 0,
                }
            )
        columns = ["role", *Origin._fields[:-1], "hidden_lines", "hidden_bytes"]
        return pd.DataFrame(rows, columns=columns).astype({"seq": "Int64", "turn": "Int64"})


def _origin(run: Recorded, event: Event, hidden: Hidden | None) -> Origin:
    return Origin(event.seq, event.kind, event.turn, event.step_id, run.path.name, hidden)


def _call_id(item: Seen) -> str:
    return str(item.message.get("tool_call_id", ""))
