"""What group commit costs, estimated: two pairs of formulas, pure (R23, E03-E05).

``k_bar`` and ``t_eff`` are the formulas of the literature this package follows. Measured against
them (``make bench-journal`` does):

* ``k_bar`` counts what arrives in the window and leaves out what queues up while the barrier runs.
  With the window at its default of zero it says one event a barrier at any load. ``k_bar_queueing``
  counts both, and is much nearer.
* ``t_eff`` is what an event *costs* once the barrier is shared, not how long it *waits*: a waiter
  sits out the rest of the running barrier and then the whole of its own. ``latency_estimate`` says
  that.

Rates are events a second; times are seconds.
"""

from __future__ import annotations


def k_bar(rate_per_s: float, window_s: float, capacity: int) -> float:
    """Events a barrier: ``min(K, max(1, λW))``."""
    return min(float(capacity), max(1.0, rate_per_s * window_s))


def k_bar_queueing(rate_per_s: float, window_s: float, sync_s: float, capacity: int) -> float:
    """Events a barrier, with those that arrive during it: ``min(K, max(1, λ(W + t_sync)))``."""
    return k_bar(rate_per_s, window_s + sync_s, capacity)


def t_eff(window_s: float, batch: float, write_s: float, sync_s: float) -> float:
    """The cost of an event: ``W/2 + (t_write(k) + t_sync) / k``. ``write_s`` is of a batch of k."""
    return window_s / 2 + (write_s + sync_s) / batch


def latency_estimate(rate_per_s: float, window_s: float, write_s: float, sync_s: float) -> float:
    """How long an event waits on average, from being handed in to being durable.

    The window and its own barrier, and, with the probability that one is running, half of that one.
    It is low where barriers vary much in length: a waiter meets a long one more often.
    """
    barrier_s = write_s + sync_s
    running = min(1.0, rate_per_s * barrier_s)
    return window_s + barrier_s + running * barrier_s / 2
