"""Masks learned from two results: what they cover, and what they must not."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from branchkit.divergence.volatile import Mask, Observed, learn, masked


def learned(one: str, other: str) -> tuple[str, ...]:
    found = learn([Observed("t0001.1", "ls", one, other)])
    return tuple(mask.pattern for mask in found.masks)


@pytest.mark.parametrize(
    ("one", "other", "pattern"),
    [
        ("took 12 ms", "took 340 ms", r"took\ \d+\ ms"),
        ("at 2026-01-01T10:00:00Z: ok", "at 2026-01-02T11:30:09Z: ok", r"at\ [\d.,:TZ+/-]+\ ok"),
        ("commit 9fe1a2", "commit 00c4d1", r"commit\ [0-9a-f]+"),
        ("in /tmp/ab3x", "in /tmp/q9", r"in\ \S+"),
    ],
)
def test_the_narrowest_shape_of_the_words_that_differ(one: str, other: str, pattern: str) -> None:
    assert learned(one, other) == (pattern,)


def test_only_the_line_that_varies_is_masked() -> None:
    found = learn([Observed("t0001.1", "ls", "pid 7\nfiles 3", "pid 8\nfiles 3")])
    assert found.differing == ("t0001.1",)
    assert found.left == ()
    assert masked(found.masks, "ls", "pid 99\nfiles 4") == "pid\\ \\d+\nfiles 4"
    assert masked(found.masks, "cat", "pid 99") == "pid 99", "another tool's results stay"


@pytest.mark.parametrize(("one", "other"), [("a\nb", "a"), ("a b", "a"), ("a", "a b c")])
def test_what_is_added_or_lost_is_behaviour(one: str, other: str) -> None:
    found = learn([Observed("t0002.1", "ls", one, other)])
    assert (found.masks, found.left) == ((), ("t0002.1",))


def test_equal_results_teach_nothing() -> None:
    assert learn([Observed("t0001.1", "ls", "a 1", "a 1")]) == ((), (), ())


words = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), max_size=6)


@given(words, words)
def test_a_mask_matches_both_lines_that_it_was_learned_from(one: list[str], two: list[str]) -> None:
    """Whatever stands in them; and where none is learned the place is left."""
    found = learn([Observed("p", "t", " ".join(one), " ".join(two))])
    for mask in found.masks:
        re.compile(mask.pattern)
    covered = [masked(found.masks, "t", " ".join(side)) for side in (one, two)]
    assert (covered[0] == covered[1]) == (not found.left)
    assert len(set(found.masks)) == len(found.masks)
    assert masked([Mask("t", "a.")], "t", "ab\nba") == "a.\nba"
