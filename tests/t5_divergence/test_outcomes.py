"""Agreement with the record over the turns, and outcome groups."""

from hypothesis import given
from hypothesis import strategies as st

from branchkit.divergence.outcomes import BranchEnd, Group, agreement, outcome_groups


def test_agreement_by_hand() -> None:
    """R61: four branches, parting at 5, 6, 6 and never."""
    assert agreement([5, 6, None, 6], range(4, 8)) == [1.0, 0.75, 0.25, 0.25]
    assert agreement([], range(4, 8)) == []


@given(st.lists(st.none() | st.integers(1, 20), min_size=1))
def test_agreement_only_falls(t_divs: list[int | None]) -> None:
    found = agreement(t_divs, range(21))
    assert found == sorted(found, reverse=True)
    assert found[0] == 1.0
    assert found[-1] == t_divs.count(None) / len(t_divs)


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
