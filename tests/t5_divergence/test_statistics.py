"""Rates, differences, corrections and the sentence, against published values and laws."""

import random
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import betainc
from scipy.stats import binom, binomtest

from branchkit.divergence.power import detectable
from branchkit.divergence.statistics import (
    Rate,
    difference,
    difference_interval,
    holm,
    rate,
    rate_of,
    verdict,
)
from branchkit.errors import UsageError


@pytest.mark.parametrize(
    ("k", "n", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611),
     (1, 29, 0.0061, 0.1718)],
)  # fmt: skip
def test_wilson_published_is_contained(k: int, n: int, low: float, high: float) -> None:
    """R61: Newcombe, Statistics in Medicine 17 (1998) 857-872, table I, method 3.

    Below 1/2 Wilson's upper end is the outer one, and the mid-P lower end.
    """
    found = rate_of(k, n)
    assert found.high == pytest.approx(high, abs=5e-5)
    assert low - 0.005 < found.low <= low


def by_the_formulas(k: int, n: int) -> tuple[float, float]:
    """Wilson's interval and the exact or mid-P one by scipy and by halving, independent of ours."""
    wilson = binomtest(k, n).proportion_ci(0.95, method="wilson")
    full = binomtest(k, n).proportion_ci(0.95, method="exact")
    if n <= 6:
        return min(wilson.low, full.low), max(wilson.high, full.high)

    def bound(count: int) -> float:
        low, high = 0.0, 1.0
        for _ in range(60):
            rate = (low + high) / 2
            tail = binom.sf(count, n, rate) + binom.pmf(count, n, rate) / 2
            low, high = (rate, high) if tail < 0.025 else (low, rate)
        return low if count else 0.0

    return min(wilson.low, bound(k)), max(wilson.high, 1 - bound(n - k))


@pytest.mark.parametrize("n", [1, 2, 6, 7, 12, 30])
def test_interval_by_its_definition(n: int) -> None:
    """R61: Wilson's, moved out to the mid-P bounds; to the full exact bounds for n <= 6."""
    for k in range(n + 1):
        found = rate_of(k, n)
        assert [found.low, found.high] == pytest.approx(by_the_formulas(k, n), abs=1e-9)


@pytest.mark.parametrize(
    ("arm", "control", "low", "high"),
    [((56, 70), (48, 80), 0.0524, 0.3339), ((9, 10), (3, 10), 0.1705, 0.8090),
     ((8, 10), (4, 10), -0.0157, 0.6787), ((5, 56), (0, 29), -0.0381, 0.1926)],
)  # fmt: skip
def test_newcombe_published(
    arm: tuple[int, int], control: tuple[int, int], low: float, high: float
) -> None:
    """R61: Newcombe, Statistics in Medicine 17 (1998) 873-890, table II, method 10.

    That is of Wilson's intervals, which ours contain: the difference's does too, by little.
    """
    found = difference(rate_of(*arm), rate_of(*control))
    assert low - 0.03 < found.low <= low + 5e-5
    assert high - 5e-5 <= found.high < high + 0.03


def test_no_verdict_is_counted_apart() -> None:
    """R61: a time-out is neither a success nor a failure."""
    found = rate([True, None, False, True, None])
    assert (found.k, found.n, found.none) == (2, 3, 2)
    assert found[3:] == rate_of(2, 3)[3:]
    assert rate([None]) == Rate(0, 0, 1, 0.0, 1.0)
    assert rate([]).share is None


counts = st.integers(0, 80).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@given(counts)
@settings(deadline=None)
def test_a_rate_lies_in_its_interval(count: tuple[int, int]) -> None:
    found = rate_of(*count)
    assert 0 <= found.low <= found.high <= 1
    if found.share is not None:
        assert found.low <= found.share <= found.high
        mirror = rate_of(found.n - found.k, found.n)
        assert mirror.low == pytest.approx(1 - found.high, abs=1e-12)


@given(counts, counts)
@settings(deadline=None, max_examples=60)
def test_a_difference_is_antisymmetric(one: tuple[int, int], other: tuple[int, int]) -> None:
    there, back = (difference(rate_of(*a), rate_of(*b)) for a, b in ((one, other), (other, one)))
    assert -1 - 1e-12 <= there.low <= there.delta <= there.high <= 1 + 1e-12
    assert there.delta == pytest.approx(-back.delta)
    assert [there.low, there.high] == pytest.approx([-back.high, -back.low])
    assert there.p == pytest.approx(back.p, abs=1e-9)


def coverage_of_rates(n: int) -> tuple[float, float]:
    """Least and average probability, over every true rate, that the interval holds it.

    Exact, no grid. Between two neighbouring ends the counts whose intervals hold the rate are the
    same, and the probability of such a run of counts has no minimum inside, so the least stands
    just beside an end. The average is the integral of the binomial, which is a beta distribution.
    """
    ends = [rate_of(k, n) for k in range(n + 1)]
    low, high = np.array([one.low for one in ends]), np.array([one.high for one in ends])
    at = np.concatenate([low, high])
    rates = np.concatenate([at - 1e-9, at + 1e-9]).clip(0, 1)
    first = np.searchsorted(high, rates)  # counts whose interval ends below the rate
    last = np.searchsorted(low, rates, side="right") - 1
    holds = binom.cdf(last, n, rates) - np.where(first > 0, binom.cdf(first - 1, n, rates), 0.0)
    k = np.arange(n + 1)
    average = (betainc(k + 1, n - k + 1, high) - betainc(k + 1, n - k + 1, low)).mean()
    return float(holds.min()), float(average)


def test_coverage_of_rates_for_every_n_at_every_rate() -> None:
    """R61: never < 92 %; on average 93-97 % from 10 verdicts on, and more than that below."""
    found = {n: coverage_of_rates(n) for n in range(1, 201)}
    assert min(least for least, _ in found.values()) >= 0.92
    assert all(0.954 <= average <= 0.97 for n, (_, average) in found.items() if n >= 10)
    assert all(average > 0.97 for n, (_, average) in found.items() if n < 10)


@pytest.mark.parametrize(("n", "control_n"), [(10, 10), (30, 30), (10, 30), (100, 30)])
def test_coverage_of_differences_by_enumeration(n: int, control_n: int) -> None:
    """R61: 93-97 % on average, >= 92 % at every pair of rates from 1 to 99 %."""
    arms = [rate_of(k, n) for k in range(n + 1)]
    controls = [rate_of(k, control_n) for k in range(control_n + 1)]
    found = np.array([[difference_interval(arm, control) for control in controls] for arm in arms])
    low, high = found[:, :, 0], found[:, :, 1]
    rates = np.linspace(0.01, 0.99, 99)
    chances = binom.pmf(np.arange(n + 1)[:, None], n, rates)
    control_chances = binom.pmf(np.arange(control_n + 1)[:, None], control_n, rates)
    holds = []
    for p, chance in zip(rates, chances.T, strict=True):
        gaps = (p - rates)[:, None, None]
        inside = (low <= gaps + 1e-12) & (gaps - 1e-12 <= high)
        holds.append(np.einsum("i,pij,jp->p", chance, inside, control_chances))
    assert 0.93 <= np.mean(holds) <= 0.97
    assert np.min(holds) >= 0.92


def test_false_alarms_over_2000_simulated_experiments() -> None:
    """R61: A/A through the public door, branches without a verdict and all; seeded.

    ``test_exact`` enumerates the same at every rate, for arms where all branches have a verdict.
    """
    dice = random.Random("A/A")

    def arm(chance: float) -> list[bool | None]:
        return [None if dice.random() < 0.05 else dice.random() < chance for _ in range(30)]

    alarms = 0
    for chance in [0.1, 0.3, 0.5, 0.9] * 500:
        alarms += difference(rate(arm(chance)), rate(arm(chance))).p <= 0.05
    assert alarms <= 0.05 * 2000


def test_holm_by_hand() -> None:
    """R61: smallest times 3, next times 2, largest times 1, never descending (Holm 1979)."""
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.8]) == pytest.approx([1.0, 1.0])
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), max_size=6))
@settings(deadline=None, max_examples=10)
def test_holm_only_raises_and_keeps_the_order(ps: list[float]) -> None:
    found = holm(ps)
    assert all(p <= corrected <= 1 for p, corrected in zip(ps, found, strict=True))
    pairs = sorted(zip(ps, found, strict=True))
    assert [one[1] for one in pairs] == sorted(found)


def test_several_arms_need_a_larger_difference() -> None:
    """R61: what would be found is said for the strictest step of the correction."""
    alone, among = (verdict(rate_of(12, 30), rate_of(9, 30), arms=arms) for arms in (1, 5))
    assert "rate of 4 % or less or of 66 % or more would" in alone
    assert "rate of 0 % or less or of 74 % or more would" in among


def test_detectable() -> None:
    """R61: the effect that the chosen n can find; more branches find smaller ones."""
    found = [detectable(n, 0.3) for n in (3, 10, 30, 100)]
    assert found[0] is None
    sizes = [size for size in found if size is not None]
    assert len(sizes) == 3
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[1] == pytest.approx(0.358, abs=1e-3)  # a rise; a fall would be found from 0.26
    assert detectable(30, 0.1) == pytest.approx(detectable(30, 0.9) or 0, abs=1e-4)
    assert detectable(0, 0.3) is None


@pytest.mark.parametrize("bad", [(-1, 0.3), (30, 1.2), (30, float("nan"))])
def test_detectable_refuses_what_cannot_be(bad: tuple[int, float]) -> None:
    with pytest.raises(UsageError):
        detectable(*bad)


def test_counts_that_cannot_be_are_refused() -> None:
    for k, n, none in ((4, 3, 0), (-1, 3, 0), (0, 0, -1)):
        with pytest.raises(UsageError):
            rate_of(k, n, none)


def test_verdict_in_words() -> None:
    """R61: golden sentences: both halves of the truth, the noise floor beside them."""
    assert verdict(rate_of(21, 30), rate_of(9, 30)) == (
        "The arm succeeds more often: 21 of 30 (70 %) against 9 of 30 (30 %) in the control arm, "
        "+40 points (95 % interval +15 to +60, exact p = 0.003); noise floor: the control arm "
        "alone is worth 16-48 %, and two arms that do the same may lie 27 points apart; this holds "
        "for forks from this turn of this run, not for other runs."
    )
    assert verdict(rate_of(12, 30, 1), rate_of(9, 30)) == (
        "No difference may be concluded: 12 of 30 (40 %, 1 more without a verdict) against 9 of "
        "30 (30 %) in the control arm, +10 points (95 % interval -14 to +33, exact p = 0.530); "
        "noise floor: the control arm alone is worth 16-48 %, and two arms that do the same may "
        "lie 27 points apart; nor that the two are equal: against such a control, only a true arm "
        "rate of 4 % or less or of 66 % or more would be found 4 times in 5."
    )
    assert verdict(rate_of(0, 0, 5), rate_of(9, 30)) == (
        "Nothing may be concluded: no branch of the arm ended with a verdict."
    )
    assert "of the control arm ended" in verdict(rate_of(9, 30), rate_of(0, 0))
    assert "so few branches" in verdict(rate_of(2, 3), rate_of(1, 3))


def test_verdict_falls_with_the_correction() -> None:
    """R61: several arms against one control."""
    assert verdict(rate_of(21, 30), rate_of(9, 30), p=0.2).startswith("No difference may")
    said = verdict(rate_of(21, 30), rate_of(9, 30), p=0.009, arms=3)
    assert "corrected exact p = 0.009" in said
    said = verdict(rate_of(21, 30), rate_of(9, 30), p=0.009, test="paired exact")
    assert "points (95 % interval +15 to +60, paired exact p = 0.009)" in said


@pytest.mark.parametrize("mirrored", [False, True])
def test_verdict_says_when_missing_verdicts_could_undo_it(mirrored: bool) -> None:
    """R61: an arm that loses its failures to time-outs must not look better for it."""
    arm, control = rate_of(14, 20, 10), rate_of(9, 30)
    found = verdict(control, arm) if mirrored else verdict(arm, control)
    assert found.startswith("A difference shows, but may not be concluded")
    assert "10 branches without a verdict" in found


@given(counts, counts, st.integers(0, 5), st.integers(0, 5))
@settings(deadline=None, max_examples=40)
def test_verdict_is_always_one_sentence(
    one: tuple[int, int], other: tuple[int, int], none: int, more: int
) -> None:
    found = verdict(rate_of(*one, none), rate_of(*other, more))
    assert found.endswith(".")
    assert not re.search(r"[.!?] [A-Z]|nan|None|\n", found)
