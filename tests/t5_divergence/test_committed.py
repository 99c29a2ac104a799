"""The search for the point of commitment, on chances that are planted turn by turn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from branchkit.divergence.committed import Finding, conclude, costs, next_probe
from branchkit.divergence.statistics import Rate, rate_of

N = 20


def search(ks: list[int], end_ok: bool | None = False, n: int = N) -> tuple[Finding, list[int]]:
    """What is found where ``ks[t]`` of ``n`` branches from turn t succeed; and the probed turns."""
    known: dict[int, Rate] = {}
    last = len(ks) - 1
    while (turn := next_probe(known, last, end_ok)) is not None:
        assert turn not in known
        known[turn] = rate_of(ks[turn], n)
    return conclude(known, last, end_ok), list(known)


@given(st.integers(1, 200), st.data())
@settings(deadline=None, max_examples=60)
def test_a_clear_drop_is_found_at_every_turn(last: int, data: st.DataObject) -> None:
    """Whatever turn it is, with as many probes as were announced at most."""
    turn = data.draw(st.integers(0, last - 1))
    found, probed = search([N] * (turn + 1) + [0] * (last - turn))
    assert (found.kind, found.turn, found.low, found.high) == ("committed", turn, turn, turn)
    assert f"Reply {turn + 1} committed" in found.sentence
    most, dearest = costs(last, False, lambda at: last - at + 10)
    assert len(probed) <= most <= last.bit_length() + 4
    assert sum(last - at + 10 for at in probed) <= dearest


def test_a_slow_fall_gives_a_range_and_not_a_turn() -> None:
    ks = [20, 19, 18, 17, 15, 13, 12, 11, 9, 8, 6, 4, 2, 1, 0]
    found, _ = search(ks)
    assert (found.kind, found.turn) == ("unclear", 7)
    assert found.low <= 4
    assert found.high >= 9
    assert "intervals contain 1/2" in found.sentence


def test_a_chance_that_comes_back_has_no_point() -> None:
    """The turn behind the boundary where nobody had looked is probed once, and tells."""
    found, probed = search([20] * 4 + [0] * 8 + [20] * 4 + [0])
    assert found.kind == "not monotone"
    assert found.turn is None
    assert 12 in probed
    assert "succeeds again" in found.sentence


@pytest.mark.parametrize(
    ("ks", "end_ok", "kind", "turn", "probed"),
    [
        ([0] * 9, False, "never above", None, [0]),
        ([9] * 9, False, "unclear", None, [0]),
        ([10] * 9, False, "unclear", None, [0]),
        ([20] * 9, True, "not lost", 8, []),
        ([20] * 9, None, "not lost", 8, [0, 8]),
        ([20] * 4 + [0] * 5, None, "committed", 3, [0, 8, 4, 2, 3, 1, 6]),
        ([20, 0], False, "committed", 0, [0]),
        ([0], False, "never above", None, [0]),
    ],
)
def test_every_kind_of_answer(
    ks: list[int], end_ok: bool | None, kind: str, turn: int | None, probed: list[int]
) -> None:
    found, turns = search(ks, end_ok)
    assert (found.kind, found.turn, turns) == (kind, turn, probed)
    assert found.sentence.endswith(".")


def test_few_branches_never_make_it_clear() -> None:
    """What the plan says beforehand: with fewer than 6 no interval leaves 1/2 out."""
    assert search([5, 5, 5, 0, 0], n=5)[0].kind == "unclear"
    assert search([6, 6, 6, 0, 0], n=6)[0].kind == "committed"


def test_branches_without_any_verdict() -> None:
    known = {0: rate_of(0, 0, 20)}
    found = conclude(known, 8, False)
    assert found.kind == "unclear"
    assert "no branch" in found.sentence


def test_a_search_that_was_cut_short_says_what_would_have_been_next() -> None:
    known = {0: rate_of(20, 20)}
    found = conclude(known, 8, False)
    assert (found.kind, found.turn, found.low, found.high) == ("unfinished", None, 0, 7)
    assert found.sentence == "The search was cut short after 1 probe; turn 4 would have been next."


def test_the_range_holds_the_truth() -> None:
    """R61: 1,000 runs whose chance falls by a drawn curve; seeded.

    A range is wrong where one of some eight intervals is, at 1/2 and on the wrong side: 2.5 % each
    at most, and only those near 1/2 can be.
    """
    dice, wrong, clear = np.random.default_rng(7), 0, 0
    for _ in range(1_000):
        middle, width = dice.uniform(2, 38), dice.choice([0.3, 2.0, 6.0])
        chance = 1 / (1 + np.exp((np.arange(41) - middle) / width))
        true = int((chance > 0.5).sum()) - 1
        found, _ = search(dice.binomial(N, chance).tolist())
        if found.kind in ("committed", "unclear"):
            wrong += not found.low <= true <= found.high
            clear += found.kind == "committed"
    assert wrong <= 50
    assert clear >= 100
