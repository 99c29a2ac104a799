"""The paired test: branches of two arms with the same seed, held against each other (R61).

Branch 3 of every arm has the same seed. Where a model honours it, much of what decides a branch is
common to both arms, and only the pairs that end differently say anything: the exact McNemar test,
which is a sign test on those pairs.

It is shown beside the test of ``exact`` and decides only where that was said before the fork. With
few branches or without a common cause it finds less (6 of 6 against 0 of 6: p = 0.031 in pairs,
0.0005 without), and whoever picks the smaller of two p-values has twice the false alarms.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Paired(NamedTuple):
    """``pairs`` with a verdict on both sides; ``gained``: only the arm succeeded; two-sided p."""

    pairs: int
    gained: int
    lost: int
    p: float


def paired(arm: Mapping[int, bool | None], control: Mapping[int, bool | None]) -> Paired:
    """Verdicts by common seed (or branch number) compared; a pair without two verdicts is left out.

    p is 1 where no pair differs.
    """
    verdicts = [(arm[seed], control[seed]) for seed in arm.keys() & control.keys()]
    both = [(ours, theirs) for ours, theirs in verdicts if ours is not None and theirs is not None]
    gained = sum(ours and not theirs for ours, theirs in both)
    lost = sum(theirs and not ours for ours, theirs in both)
    return Paired(len(both), gained, lost, sign_p(gained, lost))


def sign_p(gained: int, lost: int) -> float:
    """Two-sided p of the sign test (McNemar's, exact): a fair coin for each pair that differs."""
    from scipy.stats import binomtest

    return float(binomtest(gained, gained + lost, 0.5).pvalue) if gained + lost else 1.0
