"""Contexts: written as differences, read back whole, with one hash however they came about."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from journals import NOW, replied
from wild import any_json

from branchkit.errors import BlobMissing, JournalDamaged
from branchkit.journal.blobs import Blobs
from branchkit.journal.events import (
    ContextBuilt,
    Copied,
    Delivered,
    Event,
    FromEvent,
    FromParent,
    InputReceived,
    New,
    Part,
    Payload,
    ToolResult,
)
from branchkit.journal.format import ZERO_HASH
from branchkit.record.context import (
    ContextHash,
    Contexts,
    Seen,
    as_in_parent,
    difference,
    seen,
    tool_message,
)


def nothing(sha256: str) -> bytes:
    raise KeyError(sha256)


class Run:
    """Events of a run, appended one by one."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def add(self, payload: Payload, turn: int = 0) -> int:
        """The seq of the event."""
        seq = len(self.events)
        self.events.append(Event(seq, turn, "s", payload, NOW, "r", ZERO_HASH, ZERO_HASH))
        return seq

    def say(self, text: str, turn: int = 0) -> Seen:
        """A message that stands in an event."""
        message = {"role": "user", "content": text}
        return seen(message, self.add(InputReceived(message=message), turn))

    def build(
        self,
        turn: int,
        base: Sequence[Seen],
        context: Sequence[Seen],
        base_seq: int | None,
        **more: Any,
    ) -> int:
        """The seq of the ContextBuilt that describes ``context``."""
        return self.add(self.built(difference(base, context), len(context), base_seq, **more), turn)

    @staticmethod
    def built(
        parts: list[Part], messages: int, base_seq: int | None = None, **more: Any
    ) -> ContextBuilt:
        return ContextBuilt(
            parts=parts,
            messages=messages,
            context_hash="",
            request_hash="",
            sampling={},
            base_seq=base_seq,
            **more,
        )

    def contexts(self, parent: Contexts | None = None) -> Contexts:
        return Contexts(self.events, nothing, parent)


# What a harness may do to a context between two turns; indices are taken modulo the length.
edits = st.one_of(
    st.tuples(st.just("say"), st.sampled_from("abc")),
    st.tuples(st.just("new"), st.sampled_from("abxy")),
    st.tuples(st.just("drop"), st.integers(0, 9)),
    st.tuples(st.just("repeat"), st.integers(0, 9)),
    st.tuples(st.just("swap"), st.integers(0, 9)),
    st.tuples(st.just("front"), st.sampled_from("abxy")),
    st.tuples(st.just("cut"), st.integers(0, 9)),
)


def edited(run: Run, context: list[Seen], edit: tuple[str, Any]) -> list[Seen]:
    """``context`` after one edit."""
    what, value = edit
    index = value % max(1, len(context)) if isinstance(value, int) else 0
    match what:
        case "say":
            return [*context, run.say(value)]
        case "new":
            return [*context, seen({"role": "user", "content": value})]
        case "front":
            return [seen({"role": "system", "content": value}), *context]
        case "drop":
            return context[:index] + context[index + 1 :]
        case "repeat":
            return context + context[index : index + 1]
        case "swap":
            return context[index:] + context[:index]
        case _:
            return context[:index]


@settings(max_examples=200)
@given(st.lists(st.lists(edits, max_size=6), min_size=1, max_size=6))
def test_any_edit_of_a_context_reads_back(turns: list[list[tuple[str, Any]]]) -> None:
    """R9, G06: message by message, and with the same hash as if it were the first one asked for."""
    run, context, base_seq = Run(), list[Seen](), None
    tools = [{"type": "function"}]
    growing, expected = ContextHash(tools), []
    for turn, changes in enumerate(turns, start=1):
        base = context
        for change in changes:
            context = edited(run, context, change)
        base_seq = run.build(turn, base, context, base_seq)
        assert growing.of(context) == ContextHash(tools).of(context)
        expected.append(context)
    contexts = run.contexts()
    for turn, wanted in enumerate(expected, start=1):
        found = contexts.at_turn(turn)
        assert [item.message for item in found] == [item.message for item in wanted]
        assert [item.message_hash for item in found] == [item.message_hash for item in wanted]
        for item in found:
            assert item.seq is None or contexts.message(item.seq) == item.message


@settings(max_examples=100)
@given(st.lists(st.integers(0, 3), max_size=12), st.lists(st.integers(0, 3), max_size=12))
def test_a_difference_is_short_and_in_order(old: list[int], new: list[int]) -> None:
    """R13: no two parts could be one, and copies go forward only."""
    base = [seen({"content": number}) for number in old]
    context = [seen({"content": number}) for number in new]
    parts = difference(base, context)
    at = 0
    for part in parts:
        if isinstance(part, Copied):
            assert at <= part.start < part.stop
            at = part.stop
    for one, two in pairwise(parts):
        if isinstance(one, Copied) and isinstance(two, Copied):
            assert one.stop < two.start


@given(any_json, any_json)
def test_the_hash_depends_on_messages_tools_and_order(one: Any, two: Any) -> None:
    """R42: not on how the context was built."""
    a, b = seen({"content": [one, "a"]}), seen({"content": [two, "b"]})
    hashes = ContextHash([])
    assert len({hashes.of(c) for c in ([], [a], [b], [a, b], [b, a], [a, a, b])}) == 6
    assert ContextHash([{"name": "t"}]).of([a]) != hashes.of([a])
    assert hashes.of([a, b]) == ContextHash([]).of((a, b))


# ---- long runs ----


def calls_during(action: Callable[[], Any]) -> int:
    """How many function calls ``action`` made, C functions included: a cost without a clock."""
    count = 0

    def tick(_frame: object, kind: str, _argument: object) -> None:
        nonlocal count
        count += kind in ("call", "c_call")

    sys.setprofile(tick)
    try:
        action()
    finally:
        sys.setprofile(None)
    return count


class LongRun:
    """An append-only run of ``turns`` turns, with the cost of writing its contexts down."""

    def __init__(self, turns: int) -> None:
        self.run, self.context = Run(), list[Seen]()
        self.said = [self.run.say(str(turn)) for turn in range(turns)]
        self.hash = ContextHash([])
        self.cost = calls_during(self.write_down)

    def write_down(self) -> None:
        base_seq = None
        for turn, message in enumerate(self.said, start=1):
            base, self.context = self.context, [*self.context, message]
            self.hash.of(self.context)
            parts = difference(base, self.context)
            base_seq = self.run.add(Run.built(parts, len(self.context), base_seq), turn)


def test_the_cost_of_a_context_is_its_length() -> None:
    """R13, R58: 10 times the turns, 10 times the calls, to write all down and to read one back."""
    short, long = LongRun(1000), LongRun(10_000)
    assert long.cost <= 11 * short.cost
    reading = [
        calls_during(lambda turns=turns, run=run: run.run.contexts().at_turn(turns))  # type: ignore[misc]
        for turns, run in ((1000, short), (10_000, long))
    ]
    assert reading[1] <= 11 * reading[0]
    assert len(long.run.contexts().at_turn(10_000)) == 10_000


def test_many_equal_messages_are_no_harder() -> None:
    """A harness that says "continue" 4,000 times: each was looked for among all the others."""
    costs = []
    for count in (400, 4000):
        base = [seen({"content": "first"})] + [seen({"content": "continue"}) for _ in range(count)]
        costs.append(calls_during(lambda base=base: difference(base, base[1:])))  # type: ignore[misc]
    assert costs[1] <= 11 * costs[0]


# ---- results and blobs ----


def test_a_result_is_delivered_whole_or_in_part(tmp_path: Path) -> None:
    """R9, R12, B07: what truncation dropped is still there, in the event or in the blobs."""
    blobs, run = Blobs(tmp_path), Run()
    big = "long \ud83d " * 1000
    address = blobs.put(big.encode("utf-8", "surrogatepass"))
    run.add(ToolResult(call_id="c1", status="completed", sha256="", bytes=5, text="short"), 1)
    run.add(ToolResult(call_id="c2", status="completed", sha256=address, bytes=9, blob=address), 1)
    whole = [run.add(Delivered(call_id=call, rule="none"), 1) for call in ("c1", "c2")]
    part = run.add(Delivered(call_id="c2", rule="head:1l", text="long"), 1)
    contexts = Contexts(run.events, blobs.get)
    assert contexts.message(whole[0]) == tool_message("c1", "short")
    assert contexts.message(whole[1]) == tool_message("c2", big)
    assert contexts.message(part) == tool_message("c2", "long")
    assert contexts.full_text("c2") == big
    plain = run.add(Delivered(call_id="c1", rule="none", role="user"), 1)
    assert contexts.message(plain) == {"role": "user", "content": "short"}
    word = {"role": "tool", "content": [{"type": "text", "text": "as imported"}]}
    assert contexts.message(run.add(Delivered(call_id="c1", rule="none", message=word), 1)) == word


def test_a_text_that_is_nowhere_names_its_turn(tmp_path: Path) -> None:
    """ARCHITECTURE, fork(t): an error that names its turn."""
    run = Run()
    result = ToolResult(call_id="c1", status="completed", sha256="ab" * 32, bytes=9000)
    run.add(result, turn=23)
    delivered = run.add(Delivered(call_id="c1", rule="none"), 23)
    with pytest.raises(BlobMissing, match="turn 23: the full text of call c1"):
        run.contexts().message(delivered)
    with pytest.raises(BlobMissing, match="c9 has no recorded result"):
        run.contexts().full_text("c9")
    not_text = Contexts(run.events, lambda _: b"\xff\xfe")
    with pytest.raises(BlobMissing, match="turn 23: the blob of call c1 is no text"):
        not_text.full_text("c1")


# ---- branches ----


def test_a_branch_refers_to_its_parent_and_to_itself() -> None:
    """A reference reaches one generation up, and no seq is taken for one of another run."""
    parent, child, grandchild = Run(), Run(), Run()
    first, second = parent.say("one"), parent.say("two")
    base = parent.build(1, [], [first, second], None)
    of_parent = parent.contexts()

    inherited = as_in_parent(of_parent.at_turn(1))
    own = child.say("three", 2)
    built = child.build(2, inherited, [*inherited, own], base, base_in_parent=True)
    reply = child.add(replied(2), 2)
    said = seen(replied(2).message, reply)
    child.build(3, [*inherited, own], [inherited[1], own, said, inherited[0]], built)
    of_child = child.contexts(of_parent)
    texts = [item.message["content"] for item in of_child.at_turn(2)]
    assert texts == ["one", "two", "three"]
    assert [item.in_parent for item in of_child.at_turn(2)] == [True, True, False]
    last = of_child.at_turn(3)
    assert [item.message["content"] for item in last] == ["two", "three", "reply 2", "one"]
    assert (last[3].seq, last[3].in_parent) == (0, True)

    as_seen = as_in_parent(last)
    assert [(item.seq, item.in_parent) for item in as_seen] == [
        (None, False), (own.seq, True), (reply, True), (None, False),
    ]  # fmt: skip
    grandchild.build(4, [], as_seen, None)
    found = grandchild.contexts(of_child).at_turn(4)
    assert [item.message for item in found] == [item.message for item in last]
    parts = difference([], as_seen)
    assert [type(part) for part in parts] == [New, FromParent, FromParent, New]


def test_a_branch_without_its_parent_says_so() -> None:
    run = Run()
    run.add(Run.built([FromParent(0)], 1), 1)
    run.add(Run.built([Copied(0, 1)], 1, 0, base_in_parent=True), 2)
    for turn in (1, 2):
        with pytest.raises(BlobMissing, match="its parent's journal"):
            run.contexts().at_turn(turn)


# ---- journals that somebody else wrote ----


@pytest.mark.parametrize(
    ("built", "message"),
    [
        (Run.built([], 0, 1), "based on a later one"),
        (Run.built([], 0, 7), "event 7 is outside"),
        (Run.built([], 0, -1), "event -1 is outside"),
        (Run.built([], 0, 0), "not ContextBuilt"),
        (Run.built([Copied(0, 1)], 1), "copies messages 0:1 of 0"),
        (Run.built([Copied(1, 0)], 0), "copies messages 1:0 of 0"),
        (Run.built([FromEvent(1)], 1), "stands for no message"),
        (Run.built([FromEvent(9)], 1), "event 9 is outside"),
        (Run.built([New({})], 2), "says 2 messages, but has 1"),
    ],
)
def test_a_reference_that_leads_nowhere_is_damage(built: ContextBuilt, message: str) -> None:
    """STYLE 8: no endless loop, no wrong event, no shorter context without a word."""
    run = Run()
    run.say("hello")
    run.add(built, 1)
    with pytest.raises(JournalDamaged, match=message):
        run.contexts().at_turn(1)


def test_a_turn_that_never_began_has_no_context() -> None:
    with pytest.raises(KeyError):
        Run().contexts().at_turn(1)
