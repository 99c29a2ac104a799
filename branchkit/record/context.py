"""What the model saw at turn t, rebuilt from the journal; and how a context is written down.

The journal holds each context as a difference to an earlier one (R9, R12): a message stands once,
in the event that it came from, and every later context refers to it. ``Contexts`` resolves the
references, ``difference`` makes them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
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
from branchkit.journal.format import ZERO_HASH, accumulate, accumulated, value_hash


class Seen(NamedTuple):
    """One message of a context, with the event that it came from (None: no event)."""

    message: Message
    message_hash: str
    seq: int | None = None
    in_parent: bool = False


def seen(message: Message, seq: int | None = None, *, in_parent: bool = False) -> Seen:
    """``message`` with its hash."""
    return Seen(message, value_hash(message), seq, in_parent)


def as_in_parent(context: Sequence[Seen]) -> list[Seen]:
    """The messages of a run's context as a branch of that run refers to them.

    A reference reaches one generation up. A message that the run itself has from its parent
    belongs to no event that the branch could name.
    """
    return [
        item._replace(seq=None, in_parent=False)
        if item.in_parent
        else item._replace(in_parent=item.seq is not None)
        for item in context
    ]


def tool_message(call_id: str, text: str, role: str = "tool") -> Message:
    """A tool's result as the model is shown it."""
    if role == "user":
        return {"role": "user", "content": text}
    return {"role": "tool", "tool_call_id": call_id, "content": text}


# What branchkit declares of a tool beside its schema; no model is sent it.
_DECLARED = ("effect", "settle")


def plain_tools(tools: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Tool schemas as the model is sent them, without what branchkit declares beside."""
    return [{key: value for key, value in tool.items() if key not in _DECLARED} for tool in tools]


class ContextHash:
    """The context hash of a growing list of messages: only what is new is hashed."""

    def __init__(self, tools: Sequence[dict[str, Any]]) -> None:
        self._start = accumulate(ZERO_HASH, value_hash(list(tools)))
        self._last: list[Seen] = []
        self._after: list[str] = []  # the accumulator after each message of ``_last``

    def of(self, context: Sequence[Seen]) -> str:
        """The hash of ``context``; the common prefix with the last context asked for is reused."""
        same = common_prefix(self._last, context)
        del self._last[same:], self._after[same:]
        begin = self._after[-1] if self._after else self._start
        new = context[same:]
        self._last += new
        self._after += accumulated(begin, [message.message_hash for message in new])
        return self._after[-1] if self._after else begin


def common_prefix(a: Sequence[Seen], b: Sequence[Seen]) -> int:
    """How many messages ``a`` and ``b`` have in common from the start.

    Most often one continues the other, made of the same objects. Comparing those as lists takes
    nanoseconds a message; a loop in Python over each context of a long run takes minutes.
    """
    length = min(len(a), len(b))
    if list(a[:length]) == list(b[:length]):
        return length
    for index in range(length):
        if a[index].message_hash != b[index].message_hash:
            return index
    return length


def difference(base: Sequence[Seen], context: Sequence[Seen]) -> list[Part]:
    """``context`` as parts: runs copied from ``base``, references to events, and new messages."""
    same = common_prefix(base, context)
    places: dict[str, list[int]] = {}
    for index in range(same, len(base)):
        places.setdefault(base[index].message_hash, []).append(index)
    parts: list[Part] = [Copied(0, same)] if same else []
    next_in_base = same
    index = same
    while index < len(context):
        place = _place(places, context[index].message_hash, next_in_base)
        if place is None:
            parts.append(_reference(context[index]))
            index += 1
            continue
        length = _in_step(base, place, context, index)
        index, next_in_base = index + length, place + length
        last = parts[-1] if parts else None
        if isinstance(last, Copied) and last.stop == place:
            parts[-1] = Copied(last.start, next_in_base)
        else:
            parts.append(Copied(place, next_in_base))
    return parts


def _in_step(base: Sequence[Seen], at: int, context: Sequence[Seen], index: int) -> int:
    """How many messages are the same from ``base[at]`` and ``context[index]`` on; at least one."""
    length, most = 1, min(len(base) - at, len(context) - index)
    while length < most and (
        base[at + length] is context[index + length]
        or base[at + length].message_hash == context[index + length].message_hash
    ):
        length += 1
    return length


def _place(places: dict[str, list[int]], message_hash: str, at_least: int) -> int | None:
    found = places.get(message_hash, [])
    index = bisect_left(found, at_least)
    return found[index] if index < len(found) else None


def _reference(message: Seen) -> Part:
    if message.seq is None:
        return New(message.message)
    return FromParent(message.seq) if message.in_parent else FromEvent(message.seq)


class Dropped(NamedTuple):
    """Messages that a context no longer holds though the one before it did.

    ``seq`` is the ContextBuilt event of the first context without them, ``since`` that of the last
    one with them; a Compacted event between the two says what took their place.
    """

    since: int
    seq: int
    messages: list[Seen]


class _Built(NamedTuple):
    seq: int
    payload: ContextBuilt


class Contexts:
    """The contexts of one run. ``parent`` gives those of the run that it branched from."""

    def __init__(
        self, events: Sequence[Event], blobs: BlobReader, parent: Contexts | None = None
    ) -> None:
        self._events = events
        self._blobs = blobs
        self._parent = parent
        self._hashes: dict[int, str] = {}  # seq -> hash of the message that it stands for
        self.turns: Mapping[int, Event] = {}  # turn -> its last ContextBuilt
        self._results: dict[str, Event] = {}
        self._look_through(events)

    def _look_through(self, events: Sequence[Event]) -> None:
        turns: dict[int, Event] = {}
        for event in events:
            if isinstance(event.payload, ContextBuilt):
                turns[event.turn] = event
            elif isinstance(event.payload, ToolResult):
                self._results[event.payload.call_id] = event
        self.turns = turns

    def at_turn(self, turn: int) -> list[Seen]:
        """The context of reply ``turn``. Raises KeyError if the run never got there."""
        return self.at_seq(self.turns[turn].seq)

    def at_seq(self, seq: int) -> list[Seen]:
        """The context that the ContextBuilt event ``seq`` describes.

        Raises BlobMissing, and JournalDamaged if the event describes none.
        """
        chain = [self._built_at(seq)]
        while not chain[-1].payload.base_in_parent and chain[-1].payload.base_seq is not None:
            before = self._built_at(chain[-1].payload.base_seq)
            if before.seq >= chain[-1].seq:
                raise _foreign(f"the context of event {chain[-1].seq} is based on a later one")
            chain.append(before)
        context: list[Seen] = []
        first = chain[-1].payload
        if first.base_in_parent and first.base_seq is not None:
            context = as_in_parent(self._parent_contexts().at_seq(first.base_seq))
        for built in reversed(chain):
            context = self._applied(context, built)
        return context

    def last_dropped(self, seq: int, *, contexts: int) -> Dropped | None:
        """What was left out last on the way to the context of event ``seq``.

        Looks back over at most ``contexts`` contexts of this run; None where all were kept.
        """
        built = self._built_at(seq)
        for _ in range(contexts):
            payload = built.payload
            if payload.base_in_parent or payload.base_seq is None:
                return None
            before = self._built_at(payload.base_seq)
            kept = {
                at
                for part in payload.parts
                if isinstance(part, Copied)
                for at in range(part.start, part.stop)
            }
            if len(kept) < before.payload.messages:
                held = enumerate(self.at_seq(before.seq))
                return Dropped(before.seq, built.seq, [m for at, m in held if at not in kept])
            built = before
        return None

    def _applied(self, base: list[Seen], built: _Built) -> list[Seen]:
        parts = built.payload.parts
        for part in parts:
            if isinstance(part, Copied) and not 0 <= part.start <= part.stop <= len(base):
                raise _foreign(
                    f"event {built.seq} copies messages {part.start}:{part.stop} of {len(base)}"
                )
        # Append-only contexts are by far the most: the list is extended in place, so resolving
        # turn t costs t messages and not t squared.
        if parts and isinstance(parts[0], Copied) and parts[0].start == 0:
            rest = [self._resolved(base, part) for part in parts[1:]]
            del base[parts[0].stop :]
        else:
            rest, base = [self._resolved(base, part) for part in parts], []
        for messages in rest:
            base.extend(messages)
        if len(base) != built.payload.messages:
            raise _foreign(
                f"event {built.seq} says {built.payload.messages} messages, but has {len(base)}"
            )
        return base

    def _resolved(self, base: list[Seen], part: Part) -> list[Seen]:
        if isinstance(part, Copied):
            return base[part.start : part.stop]
        if isinstance(part, New):
            return [seen(part.message)]
        if isinstance(part, FromParent):
            return as_in_parent([self._parent_contexts().seen(part.seq)])
        return [self.seen(part.seq)]

    def part_of(self, seq: int, start: int, stop: int) -> list[Seen]:
        """Messages ``start`` to before ``stop`` of ``at_seq(seq)``; only what they need is read.

        For a run without parent.
        """
        found: dict[int, Seen] = {}
        wanted = [(seq, start, stop, 0)]  # those of the context of seq, and where they go
        while wanted:
            seq, start, stop, at = wanted.pop()
            built, position = self._built_at(seq), 0
            for part in built.payload.parts:
                length = part.stop - part.start if isinstance(part, Copied) else 1
                low, high = max(start, position), min(stop, position + length)
                where = at + low - start
                if low < high and isinstance(part, Copied):
                    base, shift = _base_of(built), part.start - position
                    wanted.append((base, low + shift, high + shift, where))
                elif low < high:
                    (found[where],) = self._resolved([], part)
                position += length
            if position < stop or position != built.payload.messages:
                raise _foreign(f"event {seq} says another number of messages than it has")
        return [found[at] for at in sorted(found)]

    def seen(self, seq: int) -> Seen:
        """The message that event ``seq`` stands for, with its hash, which is computed once."""
        message = self.message(seq)
        if seq not in self._hashes:
            self._hashes[seq] = value_hash(message)
        return Seen(message, self._hashes[seq], seq)

    def message(self, seq: int) -> Message:
        """The message that event ``seq`` stands for. Raises BlobMissing, JournalDamaged."""
        payload = self._event(seq).payload
        if isinstance(payload, InputReceived | ModelReplied):
            return payload.message
        if isinstance(payload, Delivered):
            if payload.message is not None:
                return payload.message
            text = payload.text
            shown = self.full_text(payload.call_id) if text is None else text
            return tool_message(payload.call_id, shown, payload.role)
        raise _foreign(f"event {seq} ({self._events[seq].kind}) stands for no message")

    def full_text(self, call_id: str) -> str:
        """The whole result of a call. Raises BlobMissing, naming the turn."""
        event = self._result_of(call_id)
        if event is None:
            raise BlobMissing(
                f"call {call_id} has no recorded result", hint="the run ended before it came back"
            )
        result = event.payload
        assert isinstance(result, ToolResult)
        if result.text is not None:
            return result.text
        try:
            return self._blobs(result.blob or result.sha256).decode("utf-8", "surrogatepass")
        except KeyError:
            raise BlobMissing(
                f"turn {event.turn}: the full text of call {call_id} ({result.bytes} bytes, sha256 "
                f"{result.sha256}) is neither in the journal nor in its blobs",
                hint="put the run's NAME.pack beside the journal, or set BRANCHKIT_STORE",
            ) from None
        except UnicodeDecodeError as error:
            raise BlobMissing(
                f"turn {event.turn}: the blob of call {call_id} is no text: {error}",
                hint="the journal was not written by branchkit",
            ) from None

    def _result_of(self, call_id: str) -> Event | None:
        return self._results.get(call_id)

    def _event(self, seq: int) -> Event:
        if not 0 <= seq < len(self._events):
            raise _foreign(f"event {seq} is outside 0..{len(self._events) - 1}")
        return self._events[seq]

    def _built_at(self, seq: int) -> _Built:
        event = self._event(seq)
        if not isinstance(event.payload, ContextBuilt):
            raise _foreign(f"event {seq} is {event.kind}, not ContextBuilt")
        return _Built(seq, event.payload)

    def _parent_contexts(self) -> Contexts:
        if self._parent is None:
            raise BlobMissing(
                "this branch refers to its parent's journal, which was not found",
                hint="keep the parent's journal beside the branch's, or give --parent",
            )
        return self._parent


def _base_of(built: _Built) -> int:
    base = built.payload.base_seq
    if base is None or base >= built.seq:
        raise _foreign(f"the context of event {built.seq} is based on no earlier one")
    return base


def _foreign(message: str) -> JournalDamaged:
    return JournalDamaged(
        message, hint="a context refers to it: the journal was not written by branchkit"
    )
