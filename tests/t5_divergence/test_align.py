"""First divergence, common turns and distinct vectors: laws and planted cases."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from branchkit.divergence.align import (
    TurnHashes,
    Vector,
    common_turns,
    distinct,
    first_divergence,
)


def vector(actions: str, first: int = 1, model: str = "m") -> Vector:
    """One turn a letter, the letter being the action."""
    return tuple(
        TurnHashes(turn, f"c{turn}", action, "o", "w", model)
        for turn, action in enumerate(actions, first)
    )


def test_planted_divergence_at_turn_6_is_found_there() -> None:
    """R62, I04: t_div is the first turn with another tool action."""
    assert first_divergence(vector("abcdexgh"), vector("abcdefgh")) == 6


def test_replayed_turns_before_the_first_live_one_are_not_compared() -> None:
    assert first_divergence(vector("defg", first=4), vector("abcdefg")) is None
    assert first_divergence(vector("dxfg", first=4), vector("abcdefg")) == 5


def test_a_turn_that_only_one_has_counts_as_different() -> None:
    assert first_divergence(vector("abc"), vector("abcde")) == 4
    assert first_divergence(vector("abcde"), vector("abc")) == 4
    assert first_divergence(vector("x", first=8), vector("abc")) == 8


def test_a_branch_that_never_replied_is_compared_from_the_turn_that_is_said() -> None:
    assert first_divergence((), vector("abc"), start=3) == 3
    assert first_divergence((), vector("abc"), start=4) is None
    assert first_divergence((), vector("abc")) == 1
    assert first_divergence((), ()) is None


def test_turns_out_of_order_are_a_bug_and_say_so() -> None:
    rows = vector("ab")
    with pytest.raises(ValueError, match="must ascend"):
        first_divergence((rows[1], rows[0]), rows)


def test_common_turns() -> None:
    assert common_turns(vector("defg", first=4), vector("abcde")) == (4, 5)


def test_the_name_of_the_model_makes_no_other_vector() -> None:
    same = [vector("abc", model=name) for name in ("m", "n")]
    assert distinct(same) == 1
    assert distinct([*same, vector("abd"), vector("ab")]) == 3
    assert distinct([]) == 0


words = st.text("ab", max_size=8)


@given(words)
def test_equal_vectors_never_part(actions: str) -> None:
    """R62: t_div of equal vectors is null."""
    assert first_divergence(vector(actions), vector(actions)) is None


@given(words, words)
def test_whole_runs_part_at_the_same_turn_from_either_side(left: str, right: str) -> None:
    found = first_divergence(vector(left), vector(right))
    assert found == first_divergence(vector(right), vector(left))
    if found is None:
        assert left == right
    else:
        assert left[: found - 1] == right[: found - 1]
        assert left[found - 1 : found] != right[found - 1 : found]
