"""The text map: golden pictures and laws."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from branchkit.divergence.align import TurnHashes, Vector
from branchkit.divergence.textmap import text_map
from branchkit.errors import UsageError


def vector(actions: str, first: int = 1, context: str = "c") -> Vector:
    """A capital action is one in another context."""
    return tuple(
        TurnHashes(turn, "other" if action.isupper() else context, action.lower(), "o", None, "m")
        for turn, action in enumerate(actions, first)
    )


RECORD = vector("rrrrrrrrrr")


def test_golden_map() -> None:
    """R81: letters by frequency, lower case for another context, equal rows once, arms apart."""
    rows = [
        ("control", vector("rrrrrr", 5)),
        ("prompt=@short", vector("ryZZ", 5)),
        ("control", vector("rrrrrr", 5)),
        ("prompt=@short", vector("xRRRRRR", 5)),
        ("prompt=@short", vector("rxRRRR", 5)),
        ("prompt=@short", vector("rxRRRR", 5)),
    ]
    assert text_map(rows, RECORD, width=80) == (
        "turn   5    10\nrecord ......\ncontrol (2 branches)\n     = .......  ×2\n".replace(
            ".......", "...... "
        )
        + "prompt=@short (4 branches)\n"
        "    t5 A.....a\n"
        "    t6 .A....   ×2\n"
        "    t6 .Baa\n"
        "\n"
        ".  the record's action     A B C  another action of that turn, the commonest\n"
        "first\n"
        "a b c  as A B C, the context differed too     space  no such turn     ×n  n\n"
        "equal branches\n"
        "left: the turn of the first divergence, = where there is none\n"
    )


def test_no_live_turns() -> None:
    assert text_map([], RECORD) == "No live turns to show.\n"
    assert text_map([("a", ())], ()) == "No live turns to show.\n"


def test_a_branch_that_forked_later_is_the_record_until_then() -> None:
    found = text_map([("a", vector("rr", 5)), ("b", vector("xx", 9))], RECORD)
    assert "    t7 ..\n" in found
    assert "    t9 ....AA\n" in found


def test_a_turn_with_more_than_26_other_actions_says_so() -> None:
    rows = [("a", (TurnHashes(1, "c", f"x{at:02}", "o", None, "m"),)) for at in range(28)]
    found = text_map(rows, RECORD[:1])
    assert found.count(" #\n") == 0
    assert " #  ×2\n" in found
    assert "after the 26th" in found
    assert "after the 26th" not in text_map(rows[:26], RECORD[:1])


def test_a_wide_map_goes_on_below() -> None:
    record = vector("r" * 60)
    found = text_map([("a", vector("r" * 40 + "x" * 20))], record, width=40)
    lines = found.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("turn ")] == ["1", "30", "59"]
    assert [len(line) - 7 for line in lines if line.startswith("record ")] == [29, 29, 2]
    assert found.count("A") >= 20


def test_too_narrow_is_refused() -> None:
    with pytest.raises(UsageError, match="24 or more, not 10"):
        text_map([], RECORD, width=10)


branches = st.lists(
    st.tuples(
        st.sampled_from(["control", "model=a"]),
        st.builds(vector, st.text("rxyzRX", max_size=12), st.integers(3, 5)),
    ),
    max_size=8,
)


@given(branches, st.randoms(use_true_random=False), st.integers(24, 120))
def test_same_branches_same_bytes(
    rows: list[tuple[str, Vector]], dice: "st.DataObject", width: int
) -> None:
    """R81: the order in which the branches of an arm ended does not show; no line is too long."""
    rows = sorted(rows, key=lambda one: one[0])
    found = text_map(rows, RECORD, width=width)
    shuffled = sorted(rows, key=lambda one: (one[0], dice.random()))  # type: ignore[attr-defined]
    assert text_map(shuffled, RECORD, width=width) == found
    assert max(map(len, found.splitlines())) <= width
    assert all(line == line.rstrip() for line in found.splitlines())
