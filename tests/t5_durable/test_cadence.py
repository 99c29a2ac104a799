"""Cadence: the worked example to its last digit, and where printed figures differ (R31, R32)."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from branchkit.durable.cadence import (
    KIB,
    MIB,
    Load,
    amplification,
    curve,
    daly2006,
    daly_seed,
    explain,
    overhead,
    young,
)
from branchkit.notebook.cadence_chart import cadence_figure

M = 4 * 3600.0
SECONDS = st.floats(1e-3, 1e3)
HOURS = st.floats(1e4, 1e7)


def test_the_optima_of_the_worked_example() -> None:
    """R32, F10, F11: 120 s, 119.501 s (119.751 with 60 s to recover), 119.667 s."""
    assert young(0.5, M) == pytest.approx(120.0)
    assert daly_seed(0.5, M) == pytest.approx(119.501, abs=5e-4)
    assert daly_seed(0.5, M, recovery_s=60) == pytest.approx(119.751, abs=5e-4)
    assert daly2006(0.5, M) == pytest.approx(119.667, abs=5e-4)
    assert daly2006(10.0, 5.0) == 5.0


CHOICES = [
    ("every turn", 1, 0.04208, 0.5, 6, 0.008625),
    ("half the optimum", 5, 0.01042, 2.5, 30, 0.043125),
    ("optimum", 10, 0.00833, 5, 60, 0.08625),
    ("twice the optimum", 20, 0.01042, 10, 120, 0.1725),
    ("every 100 turns", 100, 0.04208, 50, 600, 0.8625),
]


@pytest.mark.parametrize("expected", CHOICES, ids=lambda row: str(row[0]))
def test_the_choices_of_the_worked_example(
    expected: tuple[str, float, float, float, float, float],
) -> None:
    """R32, F12: overhead, and turns, time and money that a crash loses beside the prefill."""
    name, turns, share, lost_turns, lost_s, lost_usd = expected
    choice = next(one for one in explain().choices if one.name == name)
    assert choice.interval_turns == pytest.approx(turns)
    assert choice.overhead == pytest.approx(share, abs=5e-6)
    assert choice.paused + choice.redone == pytest.approx(choice.overhead)
    assert (choice.lost_turns, choice.lost_s) == pytest.approx((lost_turns, lost_s))
    assert choice.lost_usd == pytest.approx(lost_usd)


def test_the_advice_in_words() -> None:
    """R32: ten turns, 0.83 %, 0.12 $ to read the context again."""
    advice = explain()
    assert advice.turns == 10
    assert advice.prefill_usd == pytest.approx(0.12)
    text = str(advice)
    for figure in ("every 10 turns", "0.83%", "120.00", "119.50", "119.67", "0.12 $", "0.86 $"):
        assert figure in text
    assert list(advice.frame()["name"]) == [row[0] for row in CHOICES]
    with pytest.raises(ValueError, match="positive"):
        explain(Load(delta_s=0))


@given(SECONDS, HOURS)
def test_flat_around_the_optimum(delta_s: float, mtbf_s: float) -> None:
    """F13: half and twice the optimum cost a quarter more; nothing costs less than it."""
    best = young(delta_s, mtbf_s)
    least = overhead(best, delta_s, mtbf_s)
    assert least == pytest.approx(math.sqrt(2 * delta_s / mtbf_s))
    for factor in (0.5, 2):
        assert overhead(factor * best, delta_s, mtbf_s) == pytest.approx(1.25 * least)
    assert young(2 * delta_s, mtbf_s) > best > young(delta_s, mtbf_s / 2)
    shares = curve(Load(delta_s=delta_s, mtbf_s=mtbf_s))["overhead"]
    assert shares.min() >= least * (1 - 1e-9)
    assert shares.min() == pytest.approx(least, rel=1e-2)


def test_write_amplification_of_the_worked_example() -> None:
    """R31, F05: 631.25 MiB (printed: about 640; 50 * 100 * 128 KiB: 625), 50.5 against 1."""
    example = amplification([128 * KIB] * 100)
    assert example.full_bytes == 631.25 * MIB
    assert 50 * 100 * 128 * KIB == 625 * MIB
    assert (example.full, example.delta) == (50.5, 1.0)
    # A context that reaches 128 KiB at the end: the figure is off by a hundred.
    ends_there = amplification([128 * KIB // 100] * 100)
    assert ends_there.full_bytes == pytest.approx(6.3125 * MIB, rel=0.01)


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=50))
def test_full_snapshots_grow_and_deltas_do_not(changed: list[int]) -> None:
    """F06: for a growing state full >= 1 always; a delta is what changed and its own overhead."""
    found = amplification(changed, own_bytes=100)
    assert found.full >= 1
    assert found.delta_bytes == sum(changed) + 100 * len(changed)


def test_the_picture_has_the_optimum_where_the_advice_is() -> None:
    """R32: overhead against interval; the mark stands at ten turns and 0.83 %."""
    figure = cadence_figure(explain())
    assert [trace.name for trace in figure.data] == [
        "pauses",
        "work done again",
        "both",
        "choices",
    ]
    both = figure.data[2]
    lowest = both.y.argmin()
    assert both.x[lowest] == pytest.approx(10, rel=0.05)
    (mark,) = figure.layout.annotations
    assert (10**mark.x, 10**mark.y) == pytest.approx((10, 0.8333), abs=1e-3)
    assert mark.text == "every 10 turns: 0.83%"
