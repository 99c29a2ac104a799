"""The byte reader: every undamaged record is found, nothing is made up, nothing is silent (R80)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from branchkit.errors import InputRefused
from branchkit.imports.claude_records import is_record
from branchkit.imports.reader import Reading, read_document, read_lines

GOOD = {"type": "user", "uuid": "u1", "message": {"role": "user", "content": 'say {"a": [1]} ü\n'}}
NEXT = {"type": "user", "uuid": "u2", "message": {"role": "user", "content": "next"}}


def line(value: Any) -> bytes:
    return json.dumps(value).encode()


def read(data: bytes) -> Reading:
    return read_lines(data, is_record)


def facts(reading: Reading) -> list[tuple[str, int | None, int | None]]:
    return [(issue.code, issue.line, issue.bytes) for issue in reading.issues]


def values(reading: Reading) -> list[Any]:
    return [entry.value for entry in reading.entries]


def test_a_whole_file_has_no_issues() -> None:
    reading = read(line(GOOD) + b"\r\n\n  \n" + line(NEXT) + b"\n")
    assert values(reading) == [GOOD, NEXT]
    assert facts(reading) == []
    assert [(entry.line, entry.offset) for entry in reading.entries] == [
        (1, 0),
        (4, len(line(GOOD)) + 6),
    ]


def test_a_byte_order_mark_is_reported() -> None:
    reading = read(b"\xef\xbb\xbf" + line(GOOD))
    assert (values(reading), facts(reading)) == ([GOOD], [("bom", 1, 3)])


@pytest.mark.parametrize("cut", [1, 9, 25, 40, len(line(GOOD)) - 1])
def test_a_torn_prefix_gives_the_good_record_behind_it(cut: int) -> None:
    reading = read(line(NEXT) + b"\n" + line(GOOD)[:cut] + line(NEXT) + b"\n" + line(GOOD))
    assert values(reading) == [NEXT, NEXT, GOOD]
    assert facts(reading) == [("torn_prefix", 2, cut)]
    assert reading.issues[0].detail == f"at byte {len(line(NEXT)) + 1}"


def test_a_lost_newline_gives_both_records() -> None:
    reading = read(line(GOOD) + line(NEXT) + b" " + line(GOOD) + b"\n")
    assert values(reading) == [GOOD, NEXT, GOOD]
    assert facts(reading) == [("missing_newline", 1, None)] * 2


def test_nul_runs_are_taken_out_and_measured() -> None:
    reading = read(line(GOOD) + b"\n" + b"\0" * 512 + line(NEXT) + b"\n" + b"\0" * 7)
    assert values(reading) == [GOOD, NEXT]
    assert facts(reading) == [("nul_run", 2, 512), ("nul_run", 3, 7)]


def test_a_nul_run_inside_a_record_loses_that_record_only() -> None:
    hit = line(GOOD)[:30] + b"\0" * 8 + line(GOOD)[38:]
    reading = read(line(NEXT) + b"\n" + hit + b"\n" + line(NEXT))
    assert values(reading) == [NEXT, NEXT]
    assert [code for code, _, _ in facts(reading)] == ["torn_line", "nul_run", "torn_line"]


def test_a_raw_newline_in_a_string_is_joined_again() -> None:
    broken = line({**NEXT, "text": "one@two@three"}).replace(b"@", b"\n")
    reading = read(line(GOOD) + b"\n" + broken + b"\n" + line(GOOD))
    assert values(reading) == [GOOD, {**NEXT, "text": "one\ntwo\nthree"}, GOOD]
    assert facts(reading) == [("raw_newline", 2, None)]
    assert reading.issues[0].detail == "lines 2 to 4"
    assert [entry.line for entry in reading.entries] == [1, 2, 5]
    assert reading.entries[2].offset == len(line(GOOD)) + len(broken) + 2


def test_a_torn_line_does_not_eat_the_lines_after_it() -> None:
    cut = line(GOOD)[:60]
    reading = read(cut + b"\n" + line(NEXT) + b"\n" + line(GOOD))
    assert (values(reading), facts(reading)) == ([NEXT, GOOD], [("torn_line", 1, 60)])


def test_a_cut_tail_is_no_record_even_where_a_part_of_it_is_complete() -> None:
    """Cut just before its last brace: the inner object is whole, and is nobody's record."""
    reading = read(line(NEXT) + b"\n" + line(GOOD)[:-1])
    assert values(reading) == [NEXT]
    assert facts(reading) == [("torn_line", 2, len(line(GOOD)) - 1)]


def test_what_strict_parsers_refuse_is_kept() -> None:
    text = b'{"type":"user","uuid":"u","a":NaN,"b":123456789012345678901234567890,"c":"\\ud83d!"}'
    reading = read(text)
    value = reading.entries[0].value
    assert value["a"] != value["a"]
    assert value["b"] == 123456789012345678901234567890
    assert value["c"] == "\ud83d!"
    assert facts(reading) == [("lone_surrogate", 1, None)]


def test_bytes_that_are_no_utf8_are_kept_and_said() -> None:
    reading = read(b'{"type":"user","uuid":"u","a":"caf\xe9"}')
    assert reading.entries[0].value["a"] == "caf\udce9"
    assert facts(reading) == [("invalid_utf8", 1, None)]


# Strings that look like structure, and objects that look like records but for one key.
tricky = st.text(max_size=6) | st.sampled_from(['{"', '"}', "{}", "\n", "\\", '{"type":"x"}', "\0"])
nested = st.recursive(
    st.none() | st.integers(-(2**70), 2**70) | tricky,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "a", "b"]), inner, max_size=3)
    ),
    max_leaves=6,
)
records = st.builds(
    lambda number, content: {"type": "user", "uuid": f"u{number}", "message": content},
    st.integers(0, 99),
    nested,
)
damages = st.sampled_from(["none", "splice", "lost newline", "nul before", "nul after", "cut"])


@given(st.lists(st.tuples(records, damages, st.integers(1, 10**6)), max_size=6), st.booleans())
def test_random_damage_loses_only_what_it_hit(
    parts: list[tuple[dict[str, Any], str, int]], with_bom: bool
) -> None:
    """R80: whatever is done to other lines, an undamaged record is there, once, in its place."""
    data, kept = b"\xef\xbb\xbf" if with_bom else b"", []
    for record, damage, where in parts:
        text = line(record)
        cut = text[: where % (len(text) - 1) + 1]
        match damage:
            case "splice":
                data += cut + text + b"\n"
            case "lost newline":
                data += text
            case "nul before":
                data += b"\0" * (where % 9 + 1) + text + b"\n"
            case "nul after":
                data += text + b"\0" * (where % 9 + 1) + b"\n"
            case "cut":
                data += cut + b"\n"
            case _:
                data += text + b"\n"
        if damage != "cut":
            kept.append(record)
    reading = read(data)
    assert values(reading) == kept
    if any(damage in ("splice", "nul before", "nul after", "cut") for _, damage, _ in parts):
        assert reading.issues


@given(st.lists(records, min_size=1, max_size=4), st.data())
def test_random_bytes_never_raise_and_invent_nothing(
    originals: list[dict[str, Any]], data: st.DataObject
) -> None:
    text = bytearray(b"\n".join(map(line, originals)))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text) - 1))
        span = data.draw(st.integers(0, 5))
        text[at : at + span] = b"\xff" * span  # no byte of any JSON text
    found = [value for value in values(read(bytes(text))) if "\\udcff" not in json.dumps(value)]
    assert [value for value in found if value not in originals] == []


@given(st.lists(records, min_size=1, max_size=5), st.integers(1, 10**6))
def test_of_a_cut_document_whole_elements_are_kept(
    elements: list[dict[str, Any]], where: int
) -> None:
    text = line({"head": {"a": 1}, "messages": elements, "tail": [1, 2]})
    cut = text[: where % (len(text) - 1) + 1]
    value, issues = read_document(cut)
    assert [issue.code for issue in issues] == ["truncated_json"]
    assert issues[0].bytes is not None
    assert value.get("head") in (None, {"a": 1})
    kept = value.get("messages", [])
    assert kept == elements[: len(kept)]
    assert value.get("tail", []) in ([], [1], [1, 2])


def test_brackets_in_a_string_that_was_cut_are_no_structure() -> None:
    value, issues = read_document(b'{"messages": [{"a": 1}, {"a": "}]')
    assert (value, [issue.code for issue in issues]) == (
        {"messages": [{"a": 1}]},
        ["truncated_json"],
    )


def test_a_document_that_is_broken_in_its_middle_is_refused_with_the_place() -> None:
    with pytest.raises(InputRefused, match=r"not JSON: .*line 1 column 9"):
        read_document(b'{"a": 1 } } ]'.replace(b"} }", b"]"))


def test_a_document_with_old_bytes_behind_its_end_is_read() -> None:
    value, issues = read_document(b'{"a": 1}\n"old": 2}')
    assert (value, [(issue.code, issue.bytes) for issue in issues]) == (
        {"a": 1},
        [("torn_line", 10)],
    )
