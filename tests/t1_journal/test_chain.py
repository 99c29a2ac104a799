"""Sealing and parsing back every kind of event, whatever stands in it; and the limits of a line."""

from __future__ import annotations

import copy
import hashlib
import math
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from journals import NOW, journal, replied
from wild import any_json, names, payloads, structs

from branchkit.errors import InputRefused
from branchkit.journal import chain
from branchkit.journal.chain import HEAD, HEAD_BYTES, Sealed, line_problem, link, parse_line, seal
from branchkit.journal.events import (
    KINDS,
    EnvironmentRead,
    Payload,
    ToolResult,
    logical_hash,
    payload_json,
)
from branchkit.journal.format import ZERO_HASH, digest, escaped_canonical, value_hash


def sealed(payload: Payload, **changes: Any) -> Sealed:
    place: dict[str, Any] = {
        "seq": 3,
        "turn": 1,
        "step_id": "t0001",
        "recorded_at": NOW,
        "run_id": "r",
        "prev_event_hash": ZERO_HASH,
    }
    return seal(payload, **(place | changes))


def as_json(value: Any) -> bytes:
    """Canonical bytes: the equality in which NaN equals itself and 1 equals 1.0."""
    return escaped_canonical(value)


@pytest.mark.parametrize("kind", sorted(KINDS))
@settings(max_examples=25)
@given(data=st.data())
def test_every_kind_comes_back_as_it_was_written(kind: str, data: st.DataObject) -> None:
    """R1, R2, B02: lone surrogates, NaN, huge numbers, `$json` keys and deep nesting included."""
    payload = data.draw(structs(KINDS[kind]))
    event, line = sealed(payload)
    assert line_problem(line[:-1]) is None
    back = parse_line(line[:-1])
    assert type(back.payload) is KINDS[kind]
    assert as_json(payload_json(back.payload)) == as_json(payload_json(payload))
    assert back._replace(payload=payload) == event
    assert logical_hash(back) == logical_hash(event)
    assert sealed(back.payload).line == line


@settings(max_examples=200)
@given(payloads)
def test_the_fast_ways_give_what_the_careful_ones_give(payload: Payload) -> None:
    """R6, R7: parsing by a typed decoder, and logical hashes without guards, on wild values."""
    event, line = sealed(payload)
    tail = chain._tail(line[:-1])
    assert tail is not None
    quick = chain._parsed(line[:-1], tail, event.seq, event.turn, event.event_hash)
    careful = chain._parsed_with_care(line[:-1])
    if quick is not None:
        assert as_json(payload_json(quick.payload)) == as_json(payload_json(careful.payload))
        assert quick._replace(payload=payload) == careful._replace(payload=payload) == event
    content = payload_json(payload)
    for field in payload.VOLATILE:
        del content[field]
    assert logical_hash(event) == value_hash([event.kind, event.turn, event.step_id, content])


@settings(max_examples=150)
@given(payloads, names, names, names, st.integers(0, 10**9), st.integers(0, 10**9))
def test_the_envelope_is_found_without_a_parser(
    payload: Payload, run_id: str, step_id: str, recorded_at: str, seq: int, turn: int
) -> None:
    """R6: 88 fixed bytes in front, and the place in the chain at the end, whatever is between."""
    event, line = sealed(
        payload, run_id=run_id, step_id=step_id, recorded_at=recorded_at, seq=seq, turn=turn
    )
    assert line.startswith(HEAD)
    assert line.count(b"\n") == 1
    assert line.endswith(b"}\n")
    assert event.event_hash == digest(b"{" + line[HEAD_BYTES:-1])
    assert link(line[:-1]) == (seq, turn, event.event_hash, ZERO_HASH)
    assert parse_line(line[:-1])._replace(payload=payload) == event


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb", "\ud800", "x" * 129])
@pytest.mark.parametrize("field", ["run_id", "step_id", "recorded_at"])
def test_a_name_that_a_reader_could_not_find_is_refused(field: str, name: str) -> None:
    with pytest.raises(ValueError, match="cannot be a name"):
        sealed(replied(1), **{field: name})


@pytest.mark.parametrize("place", [{"seq": -1}, {"turn": -1}])
def test_a_negative_place_is_refused(place: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must not be negative"):
        sealed(replied(1), **place)


def test_a_payload_that_no_reader_would_accept_is_refused_before_it_is_written() -> None:
    """A struct does not check itself: a misspelt status made a journal that could not be opened."""
    wrong: Any = "complete"
    result = ToolResult(call_id="t0001.1", status=wrong, sha256="0" * 64, bytes=0)
    with pytest.raises(ValueError, match=r"ToolResult: .*status"):
        sealed(result)


@pytest.mark.parametrize("value", [b"x", {1: 2}, Decimal("1.5"), {"a": {3: 4}}])
def test_a_value_that_is_not_json_is_refused_not_converted(value: Any) -> None:
    """msgspec alone would write bytes as base64 and numbers as strings without a word."""
    payload = EnvironmentRead(source="now", request_hash="", arguments=[], value=value)
    with pytest.raises(TypeError):
        sealed(payload)


@given(any_json)
def test_halves_of_a_character_hash_like_the_character(value: Any) -> None:
    """Chunks of a stream leave surrogate pairs as two code points; JSON cannot tell them apart."""
    split = EnvironmentRead(
        source="\ud83d\ude00", request_hash="", arguments=["\ud83d\ude00"], value=value
    )
    whole = EnvironmentRead(
        source="\U0001f600", request_hash="", arguments=["\U0001f600"], value=copy.deepcopy(value)
    )
    assert sealed(split).line == sealed(whole).line
    assert logical_hash(sealed(split).event) == logical_hash(sealed(whole).event)


def test_keys_that_spell_the_same_are_refused_rather_than_one_lost() -> None:
    payload = EnvironmentRead(
        source="", request_hash="", arguments=[], value={"\U0001f600": 1, "\ud83d\ude00": 2}
    )
    with pytest.raises(ValueError, match="two keys"):
        sealed(payload)


def test_nesting_beyond_the_stack_is_a_clear_error() -> None:
    value: Any = 0
    for _ in range(5000):
        value = [value]
    with pytest.raises(ValueError, match="nested too deeply"):
        sealed(EnvironmentRead(source="", request_hash="", arguments=[], value=value))


def forged(body: bytes) -> bytes:
    """A line with a right hash over ``body``, as somebody else's program might write it."""
    return HEAD + hashlib.sha256(body).hexdigest().encode() + b'",' + body[1:]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b'"kind":"ModelReplied"', b'"kind":"ModelDreamt"', "unknown kind"),
        (b'"schema_version":1', b'"schema_version":2', "schema version 2"),
        (b'"finish_reason"', b'"finish_raeson"', "ModelReplied"),
        (b'"kind":"ModelReplied",', b"", "other keys"),
        (b'"kind":"ModelReplied"', b'"kind":NaN', "not canonical JSON"),
        (b'"turn":1}', b'"turn":01}', "not canonical JSON"),
        (b'"content":"reply 1"', b'"content":{"$json":5}', "not canonical JSON"),
    ],
)
def test_an_intact_line_of_a_stranger_is_refused_with_its_reason(
    old: bytes, new: bytes, message: str
) -> None:
    """R8, M39: unknown kind, version or shape is an explicit error, never skipped."""
    body = b"{" + sealed(replied(1)).line[HEAD_BYTES:-1]
    assert old in body
    line = forged(body.replace(old, new))
    assert line_problem(line) is None
    with pytest.raises(InputRefused, match=message):
        parse_line(line)


def test_a_nan_keeps_its_place(tmp_path: Any) -> None:
    event, line = sealed(replied(1, duration_ms=math.nan))
    back = parse_line(line[:-1]).payload
    assert math.isnan(back.duration_ms)  # type: ignore[attr-defined]
    assert journal(tmp_path).read_bytes().count(b"\n") == 19
    assert event.kind == "ModelReplied"
