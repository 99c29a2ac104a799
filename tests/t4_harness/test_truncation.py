"""Truncation rules: within the limit, whole characters, nothing lost that is not counted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from branchkit.errors import UsageError
from branchkit.harness.truncation import GAP, Truncation, parse

# Lone surrogates included: what a tool decoded badly must not break a journal.
TEXTS = st.text(st.characters() | st.sampled_from("\n\r\0é€😀\ud800\udfff"), max_size=200)
RULES = st.builds(
    Truncation,
    st.sampled_from(["head", "tail", "middle"]),
    st.integers(1, 60),
    st.sampled_from(["l", "b"]),
)


def size_bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))


def line_count(text: str) -> int:
    return text.count("\n") + (not text.endswith("\n") and text != "")


LONG = "".join(f"line {n}\n" for n in range(1, 63))


@pytest.mark.parametrize(
    ("spec", "text", "expected"),
    [
        ("none", LONG, LONG),
        ("head:62l", LONG, LONG),
        ("head:2l", "a\nb\nc", "a\nb\n[1 more line cut by head:2l]"),
        ("tail:2l", "a\nb\nc\nd", "c\nd\n[2 earlier lines cut by tail:2l]"),
        ("middle:3l", "a\nb\nc\nd\ne\n", "a\nb\n[...]\ne\n[2 middle lines cut by middle:3l]"),
        ("middle:1l", "a\nb\n", "a\n[1 middle line cut by middle:1l]"),
        ("head:4b", "abcdef", "abcd\n[2 more bytes cut by head:4b]"),
        ("head:4b", "ab€f", "ab\n[4 more bytes cut by head:4b]"),
        ("tail:4b", "x€€", "€\n[4 earlier bytes cut by tail:4b]"),
        ("head:1b", "😀", "[4 more bytes cut by head:1b]"),
        ("head:3b", "\ud800x", "\ufffd\n[1 more byte cut by head:3b]"),
        ("head:3b", "\ud800", "\ud800"),  # it fits: returned as it is
        ("head:1l", "a\r\nb", "a\r\n[1 more line cut by head:1l]"),
    ],
)
def test_what_each_rule_shows(spec: str, text: str, expected: str) -> None:
    assert parse(spec).cut(text).text == expected


def test_the_marker_counts_what_is_missing() -> None:
    cut = parse("head:40l").cut(LONG)
    assert cut.text.endswith("line 40\n[22 more lines cut by head:40l]")
    assert (cut.omitted_lines, cut.omitted_bytes) == (22, 22 * len("line 41\n"))


@pytest.mark.parametrize("spec", ["none", "head:40l", "tail:1b", "middle:4000b"])
def test_a_rule_is_written_as_it_was_read(spec: str) -> None:
    assert str(parse(spec)) == spec


NONSENSE = ["", "head", "head:", "head:0l", "head:-1l", "head:4", "head:4k", "HEAD:4l", "both:4l"]


@pytest.mark.parametrize("spec", [*NONSENSE, "head:4l\n", " head:4l", "head:４l", "none:4l"])
def test_nonsense_is_refused_with_the_grammar(spec: str) -> None:
    with pytest.raises(UsageError, match="is not a rule") as caught:
        parse(spec)
    assert "head:40l" in caught.value.hint


@given(TEXTS, RULES)
def test_kept_and_omitted_make_the_whole(text: str, rule: Truncation) -> None:
    head, omitted, tail = rule.split(text)
    assert head + omitted + tail == text
    cut = rule.cut(text)
    assert (cut.omitted_lines, cut.omitted_bytes) == (line_count(omitted), size_bytes(omitted))


@given(TEXTS, RULES)
def test_what_is_kept_is_within_the_limit(text: str, rule: Truncation) -> None:
    head, _, tail = rule.split(text)
    kept = line_count(head) + line_count(tail) if rule.unit == "l" else size_bytes(head + tail)
    assert kept <= rule.limit
    if rule.unit == "b" and kept < min(rule.limit, size_bytes(text)):
        assert rule.limit - kept <= 6  # at most one character on each side did not fit


@given(TEXTS, RULES)
def test_a_cut_text_is_the_kept_parts_and_one_marker_line(text: str, rule: Truncation) -> None:
    cut = rule.cut(text)
    if cut.omitted_bytes == 0:
        assert cut.text == text
        return
    body, _, marker = cut.text.rpartition("\n")
    assert marker.endswith(f" cut by {rule}]")
    assert cut.text.encode()  # no lone surrogate is left
    head, _, tail = rule.split(text)
    added = size_bytes(GAP) + 2  # the gap, and a newline to end each part
    assert size_bytes(body) <= size_bytes(head + tail) + added


@given(TEXTS, RULES)
def test_a_text_that_fits_is_untouched_however_often(text: str, rule: Truncation) -> None:
    if not rule.split(text).omitted:
        assert rule.cut(text) == (text, 0, 0)
        assert rule.cut(rule.cut(text).text).text == text


@given(TEXTS)
def test_none_changes_nothing(text: str) -> None:
    assert parse("none").cut(text) == (text, 0, 0)
