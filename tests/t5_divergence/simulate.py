"""Experiments whose truth is planted, held against what the statistics say of them (R61, R62).

``make test`` runs a few thousand; ``make simulate`` (this file as a program) a hundred times as
many and prints every figure with its binomial interval. All draws are seeded.

The p-values and intervals come from the public functions, one call for each pair of counts; what is
drawn are the counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from planted import QUIET, START, TURNS, Plant, live, run

from branchkit.divergence.align import first_divergence
from branchkit.divergence.cause import BEHIND_REPLY, CONTEXT, REPLY, cause
from branchkit.divergence.statistics import Rate, difference, difference_interval, rate_of

Floats = NDArray[np.float64]
ALPHA = 0.05
COMPONENTS = ("model", "sampling", "prompt", "truncation", "policy", "tools")


@cache
def p_table(n: int) -> Floats:
    """p of the exact test by (arm successes, control successes); it is symmetric both ways."""
    rates = [rate_of(k, n) for k in range(n + 1)]
    table = np.ones((n + 1, n + 1))
    for k in range(n + 1):
        for other in range(k + 1, n - k + 1):
            p = difference(rates[k], rates[other]).p
            table[k, other] = table[other, k] = table[n - k, n - other] = p
            table[n - other, n - k] = p
    return table


def corrected(ps: Floats) -> Floats:
    """Each row's p-values after Holm's correction: ``holm``, for many experiments at once."""
    order = ps.argsort(axis=1)
    steps = np.take_along_axis(ps, order, axis=1) * np.arange(ps.shape[1], 0, -1)
    raised = np.minimum(np.maximum.accumulate(steps, axis=1), 1.0)
    found = np.empty_like(ps)
    np.put_along_axis(found, order, raised, axis=1)
    return found


@cache
def ends(n: int) -> Floats:
    """low and high of the interval of a rate, by successes."""
    return np.array([rate_of(k, n)[3:] for k in range(n + 1)])


@cache
def difference_ends(n: int) -> Floats:
    """low and high of the interval of a difference, by (arm, control) successes."""
    rates = [rate_of(k, n) for k in range(n + 1)]
    return np.array([[difference_interval(arm, other) for other in rates] for arm in rates])


def counted(hits: NDArray[np.bool_]) -> Rate:
    """How often something happened, with its binomial interval."""
    return rate_of(int(hits.sum()), len(hits))


def false_alarms(experiments: int, n: int, arms: int, seed: int) -> Rate:
    """A/A: ``arms`` that do what the control does, at any true rate; one alarm counts."""
    dice = np.random.default_rng([seed, n, arms])
    rate = dice.random(experiments)
    control = dice.binomial(n, rate)
    ours = dice.binomial(n, rate, size=(arms, experiments))
    least = corrected(p_table(n)[ours, control].T).min(axis=1)
    return counted(least <= ALPHA)


def coverage(experiments: int, n: int, seed: int) -> tuple[Rate, Rate]:
    """How often the intervals of a rate and of a difference hold the truth."""
    dice = np.random.default_rng([seed, n])
    arm, control = dice.random((2, experiments))
    k, other = dice.binomial(n, arm), dice.binomial(n, control)
    low, high = ends(n)[k].T
    gap_low, gap_high = difference_ends(n)[k, other].T
    gap = arm - control
    return counted((low <= arm) & (arm <= high)), counted((gap_low <= gap) & (gap <= gap_high))


def power(experiments: int, n: int, arm: float, control: float, seed: int) -> Rate:
    """How often the test finds a difference that is there, and says which side is better."""
    dice = np.random.default_rng([seed, n])
    k, other = dice.binomial(n, arm, experiments), dice.binomial(n, control, experiments)
    right = (k > other) if arm > control else (k < other)
    return counted((p_table(n)[k, other] <= ALPHA) & right)


class Culprit(NamedTuple):
    """``named``: the arm that gained most is the culprit. ``concluded``: that it helps is, too."""

    named: Rate
    concluded: Rate
    wrong: Rate  # a component that does nothing was concluded to help or harm


def culprit(experiments: int, n: int, flip: float, seed: int) -> Culprit:
    """One of six components is at fault; each has an arm in which it is replaced.

    Without flips a branch succeeds exactly where the faulty component was replaced. A flip turns a
    branch's outcome around, as sampling does.
    """
    dice = np.random.default_rng([seed, n])
    guilty = dice.integers(len(COMPONENTS), size=experiments)
    at_fault = guilty[:, None] == np.arange(len(COMPONENTS))
    ks = dice.binomial(n, np.where(at_fault, 1 - flip, flip))
    control = dice.binomial(n, flip, size=(experiments, 1))
    significant = corrected(p_table(n)[ks, control]) <= ALPHA
    most = ks == ks.max(axis=1, keepdims=True)
    return Culprit(
        named=counted((most == at_fault).all(axis=1)),
        concluded=counted((significant & at_fault & (ks > control)).any(axis=1)),
        wrong=counted((significant & ~at_fault).any(axis=1)),
    )


def plants(dice: np.random.Generator) -> Iterator[tuple[Plant, str | None, str]]:
    """Plants at drawn turns, the swapped component of their arm, and the true cause."""
    turn = int(dice.integers(START, TURNS - 3))
    for part in ("reply", "wording"):
        yield Plant(part, turn), None, "model_call"
        yield Plant(part, turn, once=False, model="m-2"), None, "model_drift"
        yield from ((Plant(part, turn, once=False), one, "swap") for one in sorted(REPLY))
        yield Plant(part, START), "decision", "swap"
    for part in ("observation", "hidden"):
        yield Plant(part, turn), None, "environment"
        yield Plant(part, turn), "model", "environment"
    for shaping in ("tools", "policy"):
        yield Plant("observation", turn, once=False), shaping, "swap"
    yield Plant("observation", START - 1), "observation", "swap"
    yield Plant("context", turn), None, "harness"
    yield Plant("context", START), "model", "harness"
    yield Plant("parse", turn), None, "harness"
    yield Plant("parse", turn), "sampling", "harness"
    for one in sorted(CONTEXT - {"observation"}):
        yield Plant("context", START if one == "prompt" else turn, once=False), one, "swap"
    for one in sorted(BEHIND_REPLY):
        yield Plant("parse", turn), one, "swap"


def mislabelled(rounds: int, seed: int) -> tuple[int, list[str]]:
    """How many planted divergences were judged, and those that got another cause than the true."""
    dice = np.random.default_rng(seed)
    judged, wrong = 0, []
    for number in range(rounds):
        record = run(QUIET, seed=number)
        for plant, swapped, true in plants(dice):
            branch = live(plant, number)
            if first_divergence(branch, record) is None:
                continue  # it moved no action
            found = cause(branch, record, swapped=swapped)
            judged += 1
            if found is None or found.kind != true:
                wrong.append(f"seed {number}: {plant} with {swapped} swapped is {true}: {found}")
    return judged, wrong


def said(what: str, one: Rate) -> str:
    """One line with the figure and its interval."""
    share = 100 * (one.share or 0.0)
    return (
        f"{what:<58} {one.k:>7} of {one.n:>7} = {share:6.2f} % "
        f"({one.low * 100:.2f}-{one.high * 100:.2f} %)"
    )


def report(scale: int, say: Callable[[str], None] = print) -> bool:
    """Every figure at ``scale`` times the size of the tests; whether each is within its bound."""
    good, size = True, 2_000 * scale

    def line(what: str, one: Rate, within: bool) -> None:
        nonlocal good
        good &= within
        say(said(what, one) + ("" if within else "   OUT OF BOUNDS"))

    for n in (5, 10, 20, 30):
        for arms in (1, 5):
            alarms = false_alarms(size, n, arms, 1)
            line(f"false alarms, {n} branches, {arms} arm(s)", alarms, alarms.k <= 0.05 * alarms.n)
    for n in (10, 20, 30):
        of_rate, of_gap = coverage(size, n, 2)
        for name, one in (("rate", of_rate), ("difference", of_gap)):
            # test_statistics has the exact averages; drawn ones scatter about them.
            within = one.high >= 0.93 and one.low <= 0.97
            line(f"interval of a {name} holds, {n} branches", one, within)
    strong = power(size, 30, 0.7, 0.3, 3)
    line("found: 30 % against 70 %, 30 branches", strong, strong.k >= 0.8 * strong.n)
    certain = culprit(size, 5, 0.0, 4).concluded
    line("culprit concluded, no flips, 5 branches", certain, certain.k == certain.n)
    noisy = culprit(size, 30, 0.35, 5)
    line("culprit gained most, flips 35 %, 30 branches", noisy.named, noisy.named.k >= 0.9 * size)
    line("culprit concluded, flips 35 %, 30 branches", noisy.concluded, True)
    line("an innocent one concluded, 30 branches", noisy.wrong, noisy.wrong.k <= 0.05 * size)
    judged, wrong = mislabelled(20 * scale, 6)
    say(f"causes mislabelled: {len(wrong)} of {judged}")
    for each in wrong[:10]:
        say(f"  {each}")
    return good and not wrong


if __name__ == "__main__":
    raise SystemExit(0 if report(100) else 1)
