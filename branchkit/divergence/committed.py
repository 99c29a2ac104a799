"""Where a run was lost: the search for its point of commitment, and what may be said of it (R61).

``above(t)``: of branches of the control arm that part after turn t, more than half succeed. The
point of commitment is the last turn of which that is true: from there the run could still be won
more often than not, and its next reply threw that away.

The search halves the turns between 0 and the record's end, which supposes that the chance only
falls. Two more turns are probed where nobody has looked, to see whether that holds. Every probe is
a rate with its interval, and where an interval contains 1/2 the answer says so. All is pure: the
next turn to probe follows from the probes so far, so a search that was interrupted goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Literal, NamedTuple

from branchkit.divergence.statistics import Rate

Kind = Literal["committed", "unclear", "not monotone", "never above", "not lost", "unfinished"]


class Finding(NamedTuple):
    """``turn``: the best estimate, None where there is none; it lies in ``low`` to ``high``.

    The range goes from the last turn whose interval lies above 1/2 to the turn before the first one
    whose interval lies below; it leans on the chance only falling.
    """

    kind: Kind
    turn: int | None
    low: int
    high: int
    sentence: str


def next_probe(known: Mapping[int, Rate], last: int, end_ok: bool | None) -> int | None:
    """The next turn to probe, None when all is known that the search wants.

    ``last``: the run's last turn. ``end_ok``: whether the record's own end passes the check, which
    costs nothing; None where that is not known, and then forks from ``last`` are probed.
    """
    for turn in _wanted(last, end_ok, lambda turn: _above(known[turn])):
        if turn not in known:
            return turn
    return None


def costs(last: int, end_ok: bool | None, cost: Callable[[int], int]) -> tuple[int, int]:
    """The most probes, and the most that they cost together, whatever the probes show."""
    ends = [0] if end_ok is not None else [0, last]

    def halving(low: int, high: int) -> tuple[int, int]:
        if high - low <= 1:
            return 0, 0
        middle = (low + high) // 2
        sides = halving(low, middle), halving(middle, high)
        deepest, dearest = (max(side[at] for side in sides) for at in (0, 1))
        return deepest + 1, dearest + cost(middle)

    probes, total = halving(0, last)
    spare = min(2, max(last - 1 - probes, 0))
    dear = max((cost(turn) for turn in range(last + 1)), default=0)
    return probes + len(ends) + spare, total + sum(map(cost, ends)) + spare * dear


def conclude(known: Mapping[int, Rate], last: int, end_ok: bool | None) -> Finding:
    """What the probes say. Where one is missing that the search wants, it is ``unfinished``."""
    yes = [turn for turn, one in known.items() if one.low > 0.5]
    no = [turn for turn, one in known.items() if one.high < 0.5]
    if end_ok is False:
        no.append(last)
    low, high = max(yes, default=0), min(no, default=last + 1) - 1
    missing = next_probe(known, last, end_ok)
    if missing is not None:
        return Finding("unfinished", None, low, max(high, low), _unfinished(known, missing))
    if end_ok:
        said = "The run was not lost: the check passes at the record's own end."
        return Finding("not lost", last, last, last, said)
    if yes and no and max(yes) > min(no):
        return Finding("not monotone", None, min(no), max(yes), _not_monotone(known, yes, no))
    if not _above(known[0]):
        return _never(known[0], max(high, 0))
    turn = _boundary(known, last, end_ok)
    if turn == last:
        return Finding("not lost", last, low, last, _still(known[last], last))
    if turn == low == high:
        return Finding("committed", turn, low, high, _committed(known, turn, last))
    said = _unclear(known, turn, last, low, high)
    return Finding("unclear", turn, low, high, said)


def _wanted(last: int, end_ok: bool | None, above: Callable[[int], bool]) -> Iterator[int]:
    """The turns that the search looks at, in order; ``above`` is asked after each is yielded."""
    if end_ok:
        return
    yield 0
    if not above(0):
        return
    if end_ok is None and last > 0:
        yield last
        if above(last):
            return
    low, high, seen = 0, last, [0, last]
    while high - low > 1:
        middle = (low + high) // 2
        yield middle
        seen.append(middle)
        low, high = (middle, high) if above(middle) else (low, middle)
    # Did it only fall? Look where the largest gap is, once before the boundary and once behind it.
    for first, end in ((0, low), (high, last)):
        turns = sorted(turn for turn in seen if first <= turn <= end)
        gap, at = max(((b - a, a) for a, b in pairwise(turns)), default=(0, 0))
        if gap > 1:
            yield at + gap // 2


def _above(one: Rate) -> bool:
    return 2 * one.k > one.n


def _boundary(known: Mapping[int, Rate], last: int, end_ok: bool | None) -> int:
    """Where the halving ended."""
    if end_ok is None and _above(known[last]):
        return last
    low, high = 0, last
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _above(known[middle]) else (low, middle)
    return low


def _counted(one: Rate) -> str:
    apart = f", {one.none} more without a verdict" if one.none else ""
    share = f"{one.k / one.n * 100:.0f} %, " if one.n else ""
    interval = f"95 % interval {one.low * 100:.0f}-{one.high * 100:.0f} %"
    return f"{one.k} of {one.n} ({share}{interval}{apart})"


def _next(known: Mapping[int, Rate], turn: int, last: int) -> str:
    if turn in known:
        return f"from turn {turn} on {_counted(known[turn])}"
    return f"and the record itself, at turn {last}, fails"


def _committed(known: Mapping[int, Rate], turn: int, last: int) -> str:
    return (
        f"Reply {turn + 1} committed the run: turn {turn} is the last from which it still succeeds "
        f"more often than not, {_counted(known[turn])}; {_next(known, turn + 1, last)}."
    )


def _unclear(known: Mapping[int, Rate], turn: int, last: int, low: int, high: int) -> str:
    return (
        f"The point of commitment cannot be told to the turn: the best estimate is turn {turn}, "
        f"{_counted(known[turn])}; {_next(known, turn + 1, last)}; but between turns {low} and "
        f"{high} the intervals contain 1/2. More branches would narrow it."
    )


def _not_monotone(known: Mapping[int, Rate], yes: list[int], no: list[int]) -> str:
    bad, good = min(no), max(yes)
    return (
        f"There is no one point of commitment: from turn {bad} on the run fails more often than "
        f"not, {_counted(known[bad])}, and from the later turn {good} it succeeds again, "
        f"{_counted(known[good])}."
    )


def _never(one: Rate, high: int) -> Finding:
    if one.high < 0.5:
        said = f"The run was lost before its first reply: from the start only {_counted(one)}."
        return Finding("never above", None, 0, 0, said)
    if not one.n:
        said = "Nothing can be told: no branch from the start ended with a verdict."
    else:
        said = f"It cannot be told whether the run could be won: from the start {_counted(one)}."
    return Finding("unclear", None, 0, high, said)


def _still(one: Rate, last: int) -> str:
    return f"The run was not lost by its last turn, {last}: from there {_counted(one)}."


def _unfinished(known: Mapping[int, Rate], missing: int) -> str:
    done = f"{len(known)} probe{'' if len(known) == 1 else 's'}"
    return f"The search was cut short after {done}; turn {missing} would have been next."
