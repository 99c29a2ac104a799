"""The formulas of group commit against the figures they were published and measured with."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from branchkit.journal.estimates import k_bar, k_bar_queueing, latency_estimate, t_eff

rates = st.floats(0, 1e7)
seconds = st.floats(0, 10)


@pytest.mark.parametrize(
    ("rate", "window_ms", "published", "queueing"),
    [
        (200, 0, 1, 1), (200, 1, 1, 1), (200, 5, 1, 1.2),
        (2_000, 0, 1, 2), (2_000, 1, 2, 4), (2_000, 5, 10, 12),
        (20_000, 0, 1, 20), (20_000, 1, 20, 40), (20_000, 5, 100, 120),
    ],
)  # fmt: skip
def test_events_a_barrier(rate: int, window_ms: int, published: float, queueing: float) -> None:
    """R23, E03: the published formula, and the one that counts arrivals during a 1 ms barrier."""
    window_s = window_ms / 1000
    assert k_bar(rate, window_s, 512) == pytest.approx(published)
    assert k_bar_queueing(rate, window_s, 0.001, 512) == pytest.approx(queueing)


@given(rates, seconds, seconds, st.integers(1, 4096))
def test_the_two_differ_by_what_arrives_during_the_barrier(
    rate: float, window_s: float, sync_s: float, capacity: int
) -> None:
    """R23: never fewer than published; equal where the barrier takes no time."""
    assert 1 <= k_bar(rate, window_s, capacity) <= capacity
    assert k_bar(rate, window_s, capacity) <= k_bar_queueing(rate, window_s, sync_s, capacity)
    assert k_bar_queueing(rate, window_s, 0, capacity) == k_bar(rate, window_s, capacity)


def test_the_cost_of_an_event_falls_to_a_share_of_the_barrier() -> None:
    """E04, E05: W/2 + (t_write + t_sync) / k; with no window and full batches t_sync / K."""
    assert t_eff(0.002, 10, 0.0001, 0.001) == pytest.approx(0.001 + 0.00011)
    assert t_eff(0, 512, 0, 0.001) == pytest.approx(0.001 / 512)
    assert t_eff(0, 1, 0, 0.001) == 0.001


@given(rates, seconds, seconds, seconds)
def test_an_event_waits_for_its_own_barrier_and_at_most_half_of_another(
    rate: float, window_s: float, write_s: float, sync_s: float
) -> None:
    """R23: a latency is no cost; it never falls below one whole barrier."""
    barrier_s = write_s + sync_s
    latency_s = latency_estimate(rate, window_s, write_s, sync_s)
    assert window_s + barrier_s <= latency_s <= window_s + 1.5 * barrier_s + 1e-9


def test_cost_and_latency_are_told_apart() -> None:
    """R23: at 20,000 events a second the one is a twentieth of the other."""
    batch = k_bar_queueing(20_000, 0, 0.001, 512)
    assert t_eff(0, batch, 0, 0.001) == pytest.approx(0.00005)
    assert latency_estimate(20_000, 0, 0, 0.001) == pytest.approx(0.0015)
