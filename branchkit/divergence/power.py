"""What a number of branches can show, before they are run and after (R61).

Two plain questions: how large a true difference would be found, and how far apart two arms lie that
do the very same. Both are sums over all tables, nothing is drawn.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from branchkit.divergence.exact import reach
from branchkit.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

POWER = 0.8  # "4 times in 5"
_SURE = 0.95  # "19 times in 20"


def detectable(
    n: int, control_rate: float, power: float = POWER, alpha: float = 0.05
) -> float | None:
    """The smallest difference that ``n`` branches an arm find with ``power``; None if none is.

    A rise and a fall are not equally easy to find. This is the larger of the two where both can be
    found, so that "from this size on" holds for either; where a side has no room it is the other.
    """
    if n < 0 or not 0 <= control_rate <= 1 or not 0 < power < 1 or not 0 < alpha < power:
        raise UsageError(f"n={n}, rate={control_rate}, power={power}, alpha={alpha} cannot be")
    found = reach(n, n, control_rate, power, alpha)
    sizes = [abs(side - control_rate) for side in found if side is not None]
    return max(sizes, default=None)


@lru_cache(maxsize=1024)
def noise_floor(n: int, control_n: int, low: float, high: float) -> float:
    """How far two arms with the same true rate lie apart at most, 19 times in 20.

    Of the rates from ``low`` to ``high``, which are what the control arm leaves open, the one that
    varies most is taken. 1.0 where a side has no branch.
    """
    import numpy as np
    from scipy.stats import binom

    if n == 0 or control_n == 0:
        return 1.0
    rate = min(max(0.5, low), high)
    ks, control_ks = np.arange(n + 1), np.arange(control_n + 1)
    chance = np.outer(binom.pmf(ks, n, rate), binom.pmf(control_ks, control_n, rate)).ravel()
    # Whole numbers, so that equal gaps are equal whatever the division makes of them.
    gaps = np.abs(np.subtract.outer(ks * control_n, control_ks * n)).ravel()
    order = np.argsort(gaps, kind="stable")
    at = int(np.searchsorted(np.cumsum(chance[order]), _SURE))
    return float(gaps[order[min(at, len(gaps) - 1)]] / (n * control_n))


def detectable_frame(
    n: int, control_n: int | None = None, *, arms: int = 1, alpha: float = 0.05
) -> pd.DataFrame:
    """What ``n`` branches an arm would find, by the control arm's true rate: 0, 10 … 100 %.

    | column | type | meaning |
    |---|---|---|
    | control | float | true rate of the control arm |
    | fall, rise | float | the nearest arm rates found 4 times in 5; NaN where none is |

    With several ``arms`` against one control the strictest step of Holm's correction is taken.
    """
    import pandas as pd

    rows = []
    for step in range(11):
        found = reach(n, control_n or n, step / 10, POWER, alpha / max(arms, 1))
        rows.append((step / 10, found.fall, found.rise))
    return pd.DataFrame(rows, columns=["control", "fall", "rise"]).astype("float64")


def plan_sentence(n: int, *, arms: int = 1, alpha: float = 0.05) -> str:
    """What may be expected of ``n`` branches in each of ``arms`` and the control, in words."""
    level = alpha / max(arms, 1)
    sizes = [(rate, detectable(n, rate, POWER, level)) for rate in (0.0, 0.5)]
    found = [
        f"{round(size * 100)} points against a control arm at {rate * 100:.0f} %"
        for rate, size in sizes
        if size is not None
    ]
    branches = f"{n} branch{'' if n == 1 else 'es'} an arm"
    if not found:
        return f"{branches}: too few to find any difference 4 times in 5"
    several = f" ({arms} arms share the control)" if arms > 1 else ""
    return f"{branches} find 4 times in 5 a true difference of {' or of '.join(found)}{several}"
