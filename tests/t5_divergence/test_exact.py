"""The exact test against scipy's, and its size and power by enumeration of every table."""

from fractions import Fraction
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import barnard_exact, binom, boschloo_exact, fisher_exact

from branchkit.divergence.exact import p_value, probability_found, reach

ALPHA = 0.05


def rejected(n: int, control_n: int) -> "np.ndarray[tuple[int, int], np.dtype[np.float64]]":
    """1 where the test rejects, from one p-value a table: independent of the region search."""
    return np.array(
        [
            [float(p_value(k, n, other, control_n) <= ALPHA) for other in range(control_n + 1)]
            for k in range(n + 1)
        ]
    )


def test_published_example() -> None:
    """The trial in scipy's documentation of Barnard's test: 7 of 15 against 12 of 15.

    One-sided p = 0.0341 there; with arms of equal size the two-sided p is twice that.
    """
    assert p_value(7, 15, 12, 15) == pytest.approx(2 * 0.0341, abs=1e-4)


@pytest.mark.parametrize(("n", "control_n"), [(30, 30), (17, 30), (12, 12), (5, 9)])
def test_false_alarms_stay_under_5_percent_at_every_rate(n: int, control_n: int) -> None:
    """R61: A/A, by exact enumeration at 1,999 rates that are not the test's own grid."""
    region = rejected(n, control_n)
    rates = np.linspace(0.0005, 0.9995, 1999)
    arm = binom.pmf(np.arange(n + 1)[:, None], n, rates)
    control = binom.pmf(np.arange(control_n + 1)[:, None], control_n, rates)
    alarms = np.einsum("ij,ij->j", arm, region @ control)
    assert alarms.max() <= ALPHA
    if n >= 30:
        assert alarms.max() > 0.04  # not so careful that it finds nothing


def test_power_at_30_branches_by_enumeration() -> None:
    """R61: power >= 80 % at 0.3 against 0.7 with n = 30, in whole-number arithmetic."""
    region = rejected(30, 30)

    def chance(k: int, rate: Fraction) -> Fraction:
        return comb(30, k) * rate**k * (1 - rate) ** (30 - k)

    low, high = Fraction(3, 10), Fraction(7, 10)
    power = sum(
        chance(k, high) * chance(other, low)
        for k in range(31)
        for other in range(31)
        if region[k, other]
    )
    assert float(power) == pytest.approx(0.88373, abs=5e-5)
    assert probability_found(30, 30, 0.7, 0.3, ALPHA) == pytest.approx(float(power), abs=1e-12)


def test_it_finds_more_than_fisher_and_boschloo() -> None:
    """R61: why this test was chosen; the figures in the module's docstring."""
    ks = range(31)

    def power(p_values: list[list[float]], rate: float, control_rate: float) -> float:
        region = np.array(p_values) <= ALPHA
        return float(binom.pmf(ks, 30, rate) @ region @ binom.pmf(ks, 30, control_rate))

    fisher = [[fisher_exact([[k, o], [30 - k, 30 - o]])[1] for o in ks] for k in ks]
    ours = [[p_value(k, 30, o, 30) for o in ks] for k in ks]
    assert power(ours, 0.7, 0.3) > power(fisher, 0.7, 0.3) + 0.04
    assert power(ours, 0.4, 0.1) > power(fisher, 0.4, 0.1) + 0.07
    # One table that decides against Boschloo at low rates: 0 against 5 of 30.
    assert p_value(0, 30, 5, 30) < boschloo_exact([[0, 5], [30, 25]]).pvalue


def exact_score(k: int, n: int, other: int, control_n: int) -> Fraction:
    total = k + other
    spread = total * (n + control_n - total)
    return Fraction((k * control_n - other * n) ** 2, spread) if spread else Fraction(0)


@pytest.mark.parametrize(("n", "control_n"), [(8, 8), (6, 11)])
def test_every_table_against_brute_force(n: int, control_n: int) -> None:
    """Tables ordered by fractions, the worst rate among 2,001; and never below scipy's p."""
    rates = np.linspace(0, 1, 2_001)
    arm = binom.pmf(np.arange(n + 1)[:, None], n, rates)
    control = binom.pmf(np.arange(control_n + 1)[:, None], control_n, rates)
    scores = [[exact_score(k, n, o, control_n) for o in range(control_n + 1)] for k in range(n + 1)]
    for k, row in enumerate(scores):
        for other, observed in enumerate(row):
            ours = p_value(k, n, other, control_n)
            region = np.array([[float(one >= observed) for one in line] for line in scores])
            assert ours == pytest.approx((arm * (region @ control)).sum(axis=0).max(), abs=1e-5)
            if observed:
                table = [[k, other], [n - k, control_n - other]]
                assert ours >= barnard_exact(table, n=64).pvalue - 1e-6


def test_ties_lost_in_rounding_would_be_false_alarms() -> None:
    """Why scipy's test is not called: 2 of 6 against 9 of 11 is no finding at 5 %."""
    assert p_value(2, 6, 9, 11) == pytest.approx(0.05273, abs=1e-5)
    assert barnard_exact([[2, 9], [4, 2]], n=1024).pvalue < 0.05


counts = st.integers(1, 25).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@given(counts, counts)
@settings(max_examples=60, deadline=None)
def test_p_is_symmetric(arm: tuple[int, int], control: tuple[int, int]) -> None:
    """Swapping the arms, or success with failure, changes nothing; p is a probability."""
    (k, n), (other, control_n) = arm, control
    p = p_value(k, n, other, control_n)
    assert 0 <= p <= 1
    assert p == pytest.approx(p_value(other, control_n, k, n), abs=1e-9)
    assert p == pytest.approx(p_value(n - k, n, control_n - other, control_n), abs=1e-9)


def test_without_data_p_is_1() -> None:
    assert p_value(0, 0, 3, 9) == p_value(3, 9, 0, 0) == 1.0


@pytest.mark.parametrize(("n", "control_n", "rate"), [(30, 30, 0.3), (20, 30, 0.5), (30, 30, 0.9)])
def test_reach_is_where_the_power_is_reached(n: int, control_n: int, rate: float) -> None:
    """R61: just outside the power is there, just inside it is not."""
    found = reach(n, control_n, rate, 0.8, ALPHA)
    assert found != (None, None)
    for edge, outward in ((found.fall, -1), (found.rise, +1)):
        if edge is not None:
            step = outward * 1e-4
            assert probability_found(n, control_n, edge + step, rate, ALPHA) >= 0.8
            assert probability_found(n, control_n, edge - step, rate, ALPHA) < 0.8


def test_nothing_can_be_found_with_three_branches() -> None:
    assert reach(3, 3, 0.5, 0.8, ALPHA) == (None, None)
    assert reach(0, 3, 0.5, 0.8, ALPHA) == (None, None)
