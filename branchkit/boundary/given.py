"""The messages that a harness hands in, turn after turn, as what is known of them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from branchkit.journal.events import Message
from branchkit.record.context import Seen, seen

_ATOMS = {str, int, float, bool, type(None)}


class _Hashed(NamedTuple):
    """A message as it was handed in, a copy of it as it was then, and what is known of it."""

    given: Message
    copied: Message
    item: Seen


class Given:
    """What was handed in last, and which event each message stands in."""

    def __init__(self, redact: Callable[[Any], Any], known: Iterable[Seen]) -> None:
        self._redact = redact
        self._known = {item.message_hash: item for item in known}
        self._last: list[_Hashed] = []  # the last context as it was handed in
        self._copies: list[Message] = []  # its messages as they were then
        self._items: list[Seen] = []  # and as they are known
        # By identity: what was handed out and has not come back in a context yet.
        self._fresh: dict[int, _Hashed] = {}

    def remember(self, message: Message, seq: int) -> None:
        """``message`` stands in event ``seq``: a context that holds it refers to it."""
        copied = _copy(message)
        item = seen(copied, seq)
        self._known[item.message_hash] = item
        self._fresh[id(message)] = _Hashed(message, copied, item)

    def seen(self, messages: Sequence[Message]) -> list[Seen]:
        """The messages with their hashes and events; what was in the last context is not rehashed.

        A loop hands its whole growing list in at every turn: hashing it all would be quadratic. An
        object counts as the same only while it equals the copy taken of it, so a message that was
        changed in place is seen anew.
        """
        given, count = list(messages), len(self._copies)
        if self._copies != given[:count]:  # compared in C, some nanoseconds a message
            by_id = {id(known.given): known for known in self._last}
            kept = [by_id.get(id(message)) for message in given]
            self._last = []
            for known, message in zip(kept, given, strict=True):
                same = known is not None and known.copied == message
                self._last.append(known if known and same else self._hashed(message))
            self._copies = [known.copied for known in self._last]
            self._items = [known.item for known in self._last]
        else:
            new = [self._hashed(message) for message in given[count:]]
            self._last += new
            self._copies += [known.copied for known in new]
            self._items += [known.item for known in new]
        self._fresh.clear()
        return list(self._items)

    def _hashed(self, message: Message) -> _Hashed:
        fresh = self._fresh.get(id(message))
        if fresh is not None and fresh.copied == message:
            return fresh
        copied = _copy(message)
        item = seen(copied)
        known = self._known.get(item.message_hash)
        if known is None:  # else it has been redacted before
            clean = self._redact(copied)
            item = item if clean is copied else seen(clean)
            known = self._known.get(item.message_hash, item)
        return _Hashed(message, copied, known)


def _copy(value: Any) -> Any:
    """A copy of a JSON value; ``copy.deepcopy`` takes ten times as long."""
    if type(value) is dict:
        return {key: _copy(item) for key, item in value.items()}
    if type(value) is list:
        return [_copy(item) for item in value]
    return value if type(value) in _ATOMS else copy.deepcopy(value)
