"""Agreement with the record over the turns, and outcome groups."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from branchkit.divergence.align import TurnHashes
from branchkit.divergence.outcomes import (
    BranchEnd,
    Group,
    Stay,
    Step,
    agreement,
    outcome_groups,
    stay,
)


def test_agreement_by_hand() -> None:
    """R61: four branches, parting at 5, 6, 6 and never."""
    stays = [Stay(5), Stay(6), Stay(None), Stay(6)]
    assert agreement(stays, range(4, 8)) == [
        Step(4, 4, 0, 0, 1.0), Step(5, 4, 1, 0, 0.75), Step(6, 3, 2, 0, 0.25),
        Step(7, 1, 0, 0, 0.25),
    ]  # fmt: skip
    assert [one.agree for one in agreement([], range(4, 8))] == [None] * 4


def test_agreement_of_branches_that_were_cut_off() -> None:
    """R61: Kaplan and Meier by hand: 1 of 4 leaves, one is cut off, then 1 of the 2 left leaves."""
    stays = [Stay(5), Stay(None, 5), Stay(7), Stay(None, 7)]
    found = agreement(stays, range(4, 10))
    assert [one.agree for one in found] == [1.0, 0.75, 0.75, 0.375, None, None]
    assert [one.censored for one in found] == [0, 1, 0, 1, 0, 0]
    assert [one.agree for one in agreement([Stay(5), Stay(5)], range(4, 8))] == [1.0, 0, 0, 0]


def test_a_branch_that_a_limit_ended_has_not_left() -> None:
    """R61: one that ended by itself has, at the first turn it lacks; so has one that went on."""
    record = tuple(TurnHashes(turn, "c", "a", "o", None, "m") for turn in range(1, 9))
    branch, other = record[3:6], (*record[3:5], record[5]._replace(action="b"))
    assert stay(branch, record, start=4, limited=True) == Stay(None, 6)
    assert stay(branch, record, start=4, limited=False) == Stay(7)
    assert stay(other, record, start=4, limited=True) == Stay(6)
    assert stay(record[3:], record[:6], start=4, limited=True) == Stay(7)
    assert stay((), record, start=4, limited=True) == Stay(None, 3)
    assert stay(record[3:], record, start=4, limited=True) == Stay(None)


@given(st.lists(st.none() | st.integers(1, 20), min_size=1))
def test_agreement_only_falls(t_divs: list[int | None]) -> None:
    """R61: with nothing cut off it is the plain fraction."""
    steps = agreement([Stay(t_div) for t_div in t_divs], range(21))
    found = [one.agree for one in steps if one.agree is not None]
    assert found == sorted(found, reverse=True)
    assert found[0] == 1.0
    there = [sum(left is None or left > turn for left in t_divs) for turn in range(21)]
    assert found == pytest.approx([count / len(t_divs) for count in there])


def test_planted_groups() -> None:
    """R67: equal end workspaces are counted together, largest first, one example each."""
    ends = [
        BranchEnd("b4", "sha256:2", True),
        BranchEnd("b3", "sha256:1", False),
        BranchEnd("b2", "sha256:2", True),
        BranchEnd("b1", "sha256:2", None),
        BranchEnd("b0", "sha256:0", False),
    ]
    assert outcome_groups(ends) == [
        Group("sha256:2", 3, True, "b2", passed=2, failed=0),
        Group("sha256:0", 1, False, "b0", passed=0, failed=1),
        Group("sha256:1", 1, False, "b3", passed=0, failed=1),
    ]


def test_equal_workspaces_with_different_verdicts_show_a_check_that_varies() -> None:
    """R67."""
    found = outcome_groups([BranchEnd("a", "sha256:1", True), BranchEnd("b", "sha256:1", False)])
    assert found == [Group("sha256:1", 2, None, "a", passed=1, failed=1)]


def test_workspaces_that_were_not_hashed_stand_apart_and_last() -> None:
    found = outcome_groups([BranchEnd("a", None, True), BranchEnd("b", "sha256:1", None)])
    assert [(one.workspace, one.ok) for one in found] == [("sha256:1", None), (None, True)]


ends = st.lists(
    st.builds(
        BranchEnd,
        st.integers(0, 99).map(str),
        st.none() | st.sampled_from(["sha256:1", "sha256:2", "sha256:3"]),
        st.none() | st.booleans(),
    )
)


@given(ends, st.randoms(use_true_random=False))
def test_groups_do_not_depend_on_the_order_of_arrival(
    branches: list[BranchEnd], dice: "st.DataObject"
) -> None:
    """R67: the same fork, the same page."""
    found = outcome_groups(branches)
    shuffled = sorted(branches, key=lambda _: dice.random())  # type: ignore[attr-defined]
    assert outcome_groups(shuffled) == found
    assert sum(one.count for one in found) == len(branches)
