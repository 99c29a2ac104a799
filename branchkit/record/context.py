"""What the model saw at turn t, rebuilt from the journal; and how a context is written down.

The journal holds each context as a difference to an earlier one (R9, R12): a message stands once,
in the event that it came from, and every later context refers to it. ``Contexts`` resolves the
references, ``difference`` makes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from branchkit.errors import BlobMissing, JournalDamaged
from branchkit.journal.blobs import BlobReader
from branchkit.journal.events import (
    ContextBuilt,
    Copied,
    Delivered,
    Event,
    FromEvent,
    FromParent,
    InputReceived,
    Message,
    ModelReplied,
    New,
    Part,
    ToolResult,
)
from branchkit.journal.format import ZERO_HASH, accumulate, value_hash


class Seen(NamedTuple):
    """One message of a context, with the event that it came from (None: no event)."""

    message: Message
    message_hash: str
    seq: int | None = None
    in_parent: bool = False


def seen(message: Message, seq: int | None = None, *, in_parent: bool = False) -> Seen:
    """``message`` with its hash."""
    return Seen(message, value_hash(message), seq, in_parent)


def tool_message(call_id: str, text: str) -> Message:
    """A tool's result as the model is shown it."""
    return {"role": "tool", "tool_call_id": call_id, "content": text}


class ContextHash:
    """The context hash of a growing list of messages: only what is new is hashed."""

    def __init__(self, tools: Sequence[dict[str, Any]]) -> None:
        self._start = accumulate(ZERO_HASH, value_hash(list(tools)))
        self._after: list[tuple[str, str]] = []  # (message hash, accumulator after it)

    def of(self, context: Sequence[Seen]) -> str:
        """The hash of ``context``; the common prefix with the last context asked for is reused."""
        same = 0
        for message, (known, _) in zip(context, self._after, strict=False):
            if message.message_hash != known:
                break
            same += 1
        del self._after[same:]
        value = self._after[-1][1] if self._after else self._start
        for message in context[same:]:
            value = accumulate(value, message.message_hash)
            self._after.append((message.message_hash, value))
        return value


def difference(base: Sequence[Seen], context: Sequence[Seen]) -> list[Part]:
    """``context`` as parts: runs copied from ``base``, references to events, and new messages."""
    places: dict[str, list[int]] = {}
    for index, message in enumerate(base):
        places.setdefault(message.message_hash, []).append(index)
    parts: list[Part] = []
    next_in_base = 0
    for message in context:
        place = _place(places, message.message_hash, next_in_base)
        if place is None:
            parts.append(_reference(message))
            continue
        next_in_base = place + 1
        last = parts[-1] if parts else None
        if isinstance(last, Copied) and last.stop == place:
            parts[-1] = Copied(last.start, next_in_base)
        else:
            parts.append(Copied(place, next_in_base))
    return parts


def _place(places: dict[str, list[int]], message_hash: str, at_least: int) -> int | None:
    return next((i for i in places.get(message_hash, ()) if i >= at_least), None)


def _reference(message: Seen) -> Part:
    if message.seq is None:
        return New(message.message)
    return FromParent(message.seq) if message.in_parent else FromEvent(message.seq)


class Contexts:
    """The contexts of one run. ``parent`` gives those of the run that it branched from."""

    def __init__(
        self, events: Sequence[Event], blobs: BlobReader, parent: Contexts | None = None
    ) -> None:
        self._events = events
        self._blobs = blobs
        self._parent = parent
        self._results: dict[str, ToolResult] = {}
        self.turns: dict[int, Event] = {}  # turn -> its last ContextBuilt
        self._built: list[Event] = []
        for event in events:
            if isinstance(event.payload, ContextBuilt):
                self.turns[event.turn] = event
                self._built.append(event)
            elif isinstance(event.payload, ToolResult):
                self._results[event.payload.call_id] = event.payload

    def at_turn(self, turn: int) -> list[Seen]:
        """The context of reply ``turn``. Raises KeyError if the run never got there."""
        return self.at_seq(self.turns[turn].seq)

    def at_seq(self, seq: int) -> list[Seen]:
        """The context that the ContextBuilt event ``seq`` describes."""
        chain = [self._context_event(seq)]
        while (base := _own_base(chain[-1])) is not None:
            chain.append(self._context_event(base))
        context: list[Seen] = []
        first = chain[-1].payload
        if isinstance(first, ContextBuilt) and first.base_in_parent and first.base_seq is not None:
            context = self._parent_contexts().at_seq(first.base_seq)
        for event in reversed(chain):
            assert isinstance(event.payload, ContextBuilt)
            context = self._applied(context, event.payload.parts)
        return context

    def _applied(self, base: list[Seen], parts: Sequence[Part]) -> list[Seen]:
        # Append-only contexts are by far the most: the list is extended in place, so resolving
        # turn t costs t messages and not t squared.
        if parts and isinstance(parts[0], Copied) and parts[0].start == 0:
            rest = [self._resolved(base, part) for part in parts[1:]]
            del base[parts[0].stop :]
        else:
            rest, base = [self._resolved(base, part) for part in parts], []
        for messages in rest:
            base.extend(messages)
        return base

    def _resolved(self, base: list[Seen], part: Part) -> list[Seen]:
        if isinstance(part, Copied):
            return base[part.start : part.stop]
        if isinstance(part, New):
            return [seen(part.message)]
        if isinstance(part, FromParent):
            return [seen(self._parent_contexts().message(part.seq), part.seq, in_parent=True)]
        return [seen(self.message(part.seq), part.seq)]

    def message(self, seq: int) -> Message:
        """The message that event ``seq`` stands for. Raises BlobMissing, JournalDamaged."""
        payload = self._events[seq].payload
        if isinstance(payload, InputReceived | ModelReplied):
            return payload.message
        if isinstance(payload, Delivered):
            text = payload.text
            return tool_message(
                payload.call_id, self.full_text(payload.call_id) if text is None else text
            )
        raise JournalDamaged(
            f"event {seq} ({self._events[seq].kind}) stands for no message",
            hint="a context refers to it: the journal was not written by branchkit",
        )

    def full_text(self, call_id: str) -> str:
        """The whole result of a call. Raises BlobMissing, naming the turn."""
        result = self._results.get(call_id)
        if result is None:
            raise BlobMissing(
                f"call {call_id} has no recorded result", hint="the run ended before it came back"
            )
        if result.text is not None:
            return result.text
        try:
            return self._blobs(result.blob or result.sha256).decode("utf-8", "surrogatepass")
        except KeyError:
            raise BlobMissing(
                f"the full text of call {call_id} ({result.bytes} bytes, sha256 {result.sha256}) is "
                f"neither in the journal nor in its blobs",
                hint="put the run's NAME.pack beside the journal, or set BRANCHKIT_STORE",
            ) from None

    def _context_event(self, seq: int) -> Event:
        event = self._events[seq]
        if not isinstance(event.payload, ContextBuilt):
            raise JournalDamaged(
                f"event {seq} is {event.kind}, not ContextBuilt",
                hint="a context refers to it: the journal was not written by branchkit",
            )
        return event

    def _parent_contexts(self) -> Contexts:
        if self._parent is None:
            raise BlobMissing(
                "this branch refers to its parent's journal, which was not found",
                hint="keep the parent's journal beside the branch's, or give --parent",
            )
        return self._parent


def _own_base(event: Event) -> int | None:
    payload = event.payload
    assert isinstance(payload, ContextBuilt)
    return None if payload.base_in_parent else payload.base_seq
