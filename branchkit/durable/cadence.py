"""How often to take a checkpoint: three optima, what they cost, and what a crash costs (R31, R32).

``delta_s`` is how long a checkpoint pauses the run, ``mtbf_s`` (M) the mean time between failures.
The three optima are close where delta is small beside M (0.5 % in the worked example):

    young      sqrt(2 delta M)                                              Young, 1974
    daly_seed  sqrt(2 delta (M + recovery)) + delta (sqrt(2 delta / M) / 3 - 1)   as printed
    daly2006   sqrt(2 delta M) (1 + sqrt(delta / 2M) / 3 + delta / 2M / 9) - delta

Pure: figures in, figures out. ``measured`` reads them off a run's own events.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import pandas as pd

KIB, MIB = 1024, 1024 * 1024
_MILLION = 1_000_000


class Prices(NamedTuple):
    """US dollars a million tokens; the defaults are those that the worked example implies."""

    input: float = 3.0
    cached: float = 0.30
    output: float = 15.0


class Load(NamedTuple):
    """What a run is like; the defaults are the worked example: 12 s turns, workers for 4 h."""

    delta_s: float = 0.5
    mtbf_s: float = 4 * 3600.0
    turn_s: float = 12.0
    context_tokens: int = 40_000
    reply_tokens: int = 350
    recovery_s: float = 0.0


class Choice(NamedTuple):
    """One interval and what it costs; ``lost`` is what a crash loses on average: half of it."""

    name: str
    interval_turns: float
    interval_s: float
    overhead: float  # of the run's time, 0..1
    paused: float  # ... the part that is checkpoints
    redone: float  # ... the part that is work done again
    lost_turns: float
    lost_s: float
    lost_usd: float


class Advice(NamedTuple):
    """The optimum by three formulas, and the choices around it."""

    load: Load
    young_s: float
    daly_seed_s: float
    daly2006_s: float
    prefill_usd: float  # of any resume: the context is read once without a cache
    choices: list[Choice]

    @property
    def turns(self) -> int:
        """The advice: a checkpoint every so many turns."""
        return max(1, round(self.young_s / self.load.turn_s))

    @property
    def best(self) -> Choice:
        """The choice at Young's optimum."""
        return next(choice for choice in self.choices if choice.name == "optimum")

    def frame(self) -> pd.DataFrame:
        """The choices as a table."""
        import pandas as pd

        return pd.DataFrame(self.choices)

    def __str__(self) -> str:
        best, load = self.best, self.load
        lines = [
            f"A checkpoint every {self.turns} turns: {best.overhead:.2%} of the time.",
            f"  pause {load.delta_s:g} s, one failure in {load.mtbf_s:g} s, turns of"
            f" {load.turn_s:g} s",
            f"  optimum: young {self.young_s:.2f} s, daly as printed {self.daly_seed_s:.2f} s,"
            f" daly 2006 {self.daly2006_s:.2f} s",
            f"  a crash: {self.prefill_usd:.2f} $ to read the context again, and half an interval:",
        ]
        for choice in self.choices:
            lines.append(
                f"    {choice.name:<17} {choice.interval_turns:>6.4g} turns"
                f" {choice.overhead:>7.2%}   loses {choice.lost_turns:.4g} turns,"
                f" {choice.lost_s:.4g} s, {choice.lost_usd:.2f} $"
            )
        return "\n".join(lines)


def young(delta_s: float, mtbf_s: float) -> float:
    """The interval in seconds, to first order."""
    return math.sqrt(2 * delta_s * mtbf_s)


def daly_seed(delta_s: float, mtbf_s: float, recovery_s: float = 0.0) -> float:
    """The interval in seconds as the second-order formula is often printed.

    Its last term has a third of sqrt(2 delta / M) where Daly's paper comes to a third of delta.
    """
    return math.sqrt(2 * delta_s * (mtbf_s + recovery_s)) + delta_s * (
        math.sqrt(2 * delta_s / mtbf_s) / 3 - 1
    )


def daly2006(delta_s: float, mtbf_s: float) -> float:
    """The interval in seconds, higher order; M itself where a checkpoint takes 2 M or longer."""
    if delta_s >= 2 * mtbf_s:
        return mtbf_s
    part = delta_s / (2 * mtbf_s)
    return young(delta_s, mtbf_s) * (1 + math.sqrt(part) / 3 + part / 9) - delta_s


def overhead(interval_s: float, delta_s: float, mtbf_s: float) -> float:
    """The share of time lost to pauses and to work done again: delta / T + T / 2M."""
    return delta_s / interval_s + interval_s / (2 * mtbf_s)


def explain(load: Load | None = None, prices: Prices | None = None) -> Advice:
    """What to do for ``load``, what it costs, and what other intervals would cost.

    Raises ValueError for a pause, a time between failures or a turn that is not positive.
    """
    load, prices = load or Load(), prices or Prices()
    if min(load.delta_s, load.mtbf_s, load.turn_s) <= 0:
        raise ValueError(f"pause, time between failures and turn have to be positive: {load}")
    best_s = young(load.delta_s, load.mtbf_s)
    intervals = [
        ("every turn", load.turn_s),
        ("half the optimum", best_s / 2),
        ("optimum", best_s),
        ("twice the optimum", best_s * 2),
        ("every 100 turns", 100 * load.turn_s),
    ]
    return Advice(
        load=load,
        young_s=best_s,
        daly_seed_s=daly_seed(load.delta_s, load.mtbf_s, load.recovery_s),
        daly2006_s=daly2006(load.delta_s, load.mtbf_s),
        prefill_usd=load.context_tokens * prices.input / _MILLION,
        choices=[_choice(name, interval_s, load, prices) for name, interval_s in intervals],
    )


def _choice(name: str, interval_s: float, load: Load, prices: Prices) -> Choice:
    lost_turns = interval_s / load.turn_s / 2
    return Choice(
        name=name,
        interval_turns=interval_s / load.turn_s,
        interval_s=interval_s,
        overhead=overhead(interval_s, load.delta_s, load.mtbf_s),
        paused=load.delta_s / interval_s,
        redone=interval_s / (2 * load.mtbf_s),
        lost_turns=lost_turns,
        lost_s=interval_s / 2,
        lost_usd=lost_turns * _turn_usd(load, prices),
    )


def _turn_usd(load: Load, prices: Prices) -> float:
    """One turn done again: its context comes from a warm cache, its reply is new."""
    warm = load.context_tokens * prices.cached
    return (warm + load.reply_tokens * prices.output) / _MILLION


def curve(load: Load | None = None, points: int = 200) -> pd.DataFrame:
    """Overhead against interval, from every turn to every 100 turns and well past the optimum."""
    import pandas as pd

    load = load or Load()
    best_s = young(load.delta_s, load.mtbf_s)
    low, high = min(load.turn_s, best_s / 4), max(100 * load.turn_s, best_s * 4)
    intervals = [low * (high / low) ** (i / (points - 1)) for i in range(points)]
    return pd.DataFrame(
        {
            "interval_s": intervals,
            "interval_turns": [interval / load.turn_s for interval in intervals],
            "overhead": [overhead(one, load.delta_s, load.mtbf_s) for one in intervals],
            "paused": [load.delta_s / one for one in intervals],
            "redone": [one / (2 * load.mtbf_s) for one in intervals],
        }
    )


class Amplification(NamedTuple):
    """Bytes written for checkpoints over bytes of state that changed (R31)."""

    unique_bytes: int
    full_bytes: int
    delta_bytes: int

    @property
    def full(self) -> float:
        """Of full snapshots: grows with the run."""
        return self.full_bytes / self.unique_bytes

    @property
    def delta(self) -> float:
        """Of snapshots that hold what changed: about 1."""
        return self.delta_bytes / self.unique_bytes


def amplification(changed_bytes: Iterable[int], own_bytes: int = 0) -> Amplification:
    """What checkpoints of a state that only grows write, each adding one of ``changed_bytes``.

    ``own_bytes`` is what a delta writes beside the change. 100 changes of 128 KiB are 631.25 MiB
    in full (a printed ``50 * 100 * 128 KiB`` is 625, and its "about 640" is rounded from that) and
    12.5 MiB in deltas. A context that only *ends* at 128 KiB writes a hundredth of it.
    """
    unique = full = deltas = 0
    for changed in changed_bytes:
        unique += changed
        full += unique
        deltas += changed + own_bytes
    return Amplification(unique, full, deltas)
