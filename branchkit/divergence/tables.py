"""Comparisons as data frames: one row a branch, one row an arm, and hashes by turn (R61, R47, R81).

pandas is imported inside the builders. Columns are promises; more may be added at the right.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple

from branchkit.divergence.align import Vector, distinct, first_divergence
from branchkit.divergence.cause import cause
from branchkit.divergence.exact import Reach, reach
from branchkit.divergence.outcomes import Stay, agreement, stay
from branchkit.divergence.paired import Paired, paired
from branchkit.divergence.power import POWER, noise_floor
from branchkit.divergence.statistics import Difference, Rate, difference, holm, rate
from branchkit.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

HashField = Literal["context", "action", "observation", "workspace", "reply"]


Column = Literal["object", "Int64", "boolean"]

_BRANCH_COLUMNS: dict[str, Column] = {
    "arm": "object", "journal": "object", "swap": "object", "first_turn": "Int64",
    "last_turn": "Int64", "t_div": "Int64", "cause": "object", "because": "object",
    "ok": "boolean", "workspace": "object", "drift_turn": "Int64",
}  # fmt: skip


class BranchRow(NamedTuple):
    """One branch as the tables need it; ``swapped`` is None in the control arm.

    ``start`` and ``limited`` as in ``cause``.
    """

    arm: str
    journal: str
    swapped: str | None
    vector: Vector
    ok: bool | None = None
    workspace: str | None = None
    limited: bool = False
    start: int | None = None
    number: int | None = None  # branches of two arms with the same number have the same seed
    baseline: Vector | None = None  # what it is held against, where that is not the record


class ArmSummary(NamedTuple):
    """One arm against the control arm; ``against`` and the two p are None without a control.

    ``pairs`` is None where seeds are not known. ``test`` is what ``p_holm`` corrects and what is
    concluded from: "exact", or "paired" where that was asked for before the fork.
    """

    arm: str
    swapped: str | None
    branches: int
    success: Rate
    against: Difference | None
    p_holm: float | None
    distinct: int
    diverged: int
    drifted: int
    pairs: Paired | None = None
    test: str = "exact"
    arms: int = 1  # tested arms that share the control


def branches_frame(rows: Iterable[BranchRow], record: Vector) -> pd.DataFrame:
    """One row a branch, in the order given.

    | column | type | meaning |
    |---|---|---|
    | arm, journal | str | which branch |
    | swap | str or None | the swapped component, None = control |
    | first_turn, last_turn | Int64 | its live turns; missing where there was none |
    | t_div | Int64 | first divergence, missing = none |
    | cause, because | str or None | one of the five kinds, and the sentence |
    | ok | boolean | the check's verdict, missing = none |
    | workspace | str or None | hash of the end workspace |
    | drift_turn | Int64 | first live turn served by another model than the one before it (R47) |
    """
    import pandas as pd

    found = [_branch_record(row, record) for row in rows]
    frame = pd.DataFrame(found, columns=list(_BRANCH_COLUMNS), dtype=object)
    return frame.astype(_BRANCH_COLUMNS)


def arms_frame(
    rows: Iterable[BranchRow], record: Vector, *, in_pairs: bool = False
) -> pd.DataFrame:
    """One row an arm, the control arm first.

    | column | type | meaning |
    |---|---|---|
    | arm | str | name |
    | swap | str or None | the swapped component, None = control |
    | branches, k, n, none | int | size; successes of verdicts; branches without a verdict |
    | rate, low, high | float | k / n with the 95 % interval of ``rate``; rate is NaN where n = 0 |
    | delta, delta_low, delta_high | float | arm minus control, 95 % interval; or NaN |
    | p, p_holm | float | exact test, and corrected over all arms; or NaN |
    | distinct | int | different hash vectors |
    | diverged | int | branches with a t_div |
    | drifted | int | branches during which the served model changed (R47) |
    | test | str | "exact" or "paired": what p_holm corrects |
    | pairs, gained, lost | Int64 | branches with a common seed; only one of the two succeeded |
    | p_paired | float | exact McNemar test of those; or NaN |
    | found_fall, found_rise | float | arm rates that would be found 4 times in 5; or NaN |
    | noise | float | how far two arms that do the same lie apart, 19 times in 20; or NaN |
    """
    import pandas as pd

    columns = [
        "arm", "swap", "branches", "k", "n", "none", "rate", "low", "high", "delta",
        "delta_low", "delta_high", "p", "p_holm", "distinct", "diverged", "drifted",
        "test", "pairs", "gained", "lost", "p_paired", "found_fall", "found_rise", "noise",
    ]  # fmt: skip
    nan = float("nan")
    found = []
    summaries = summarize(rows, record, in_pairs=in_pairs)
    for one in summaries:
        share, apart = one.success.share, one.against or Difference(nan, nan, nan, nan)
        found.append((
            one.arm, one.swapped, one.branches, one.success.k, one.success.n, one.success.none,
            nan if share is None else share, one.success.low, one.success.high, *apart,
            nan if one.p_holm is None else one.p_holm, one.distinct, one.diverged, one.drifted,
            one.test if one.against else None, *(one.pairs or (None, None, None, nan)),
            *_planning(one, summaries[0]),
        ))  # fmt: skip
    frame = pd.DataFrame(found, columns=columns, dtype=object)
    # Left to itself pandas makes NaN of the control arm's None.
    return frame.astype({name: _arm_dtype(name) for name in columns})


def _planning(one: ArmSummary, control: ArmSummary) -> tuple[float, float, float]:
    """found_fall, found_rise and noise of ``arms_frame``."""
    nan, mine, other = float("nan"), one.success, control.success
    if one.against is None or not mine.n or not other.n:
        return nan, nan, nan
    found = found_against(one, control)
    sides = [nan if side is None else side for side in found]
    return sides[0], sides[1], noise_floor(mine.n, other.n, other.low, other.high)


def found_against(one: ArmSummary, control: ArmSummary) -> Reach:
    """The arm rates that as many branches would find 4 times in 5, against the control as seen."""
    other = control.success
    if not other.n:
        return Reach(None, None)
    return reach(one.success.n, other.n, other.k / other.n, POWER, 0.05 / one.arms)


def agreement_frame(rows: Iterable[BranchRow], record: Vector) -> pd.DataFrame:
    """The survival curve of agreement with the record: one row an arm and turn (R61).

    | column | type | meaning |
    |---|---|---|
    | arm | str | name |
    | turn | int | from the turn before the first live one on, where all agree |
    | at_risk | int | branches that still agree before this turn and are seen in it |
    | left | int | those whose t_div is this turn |
    | censored | int | those that were cut off after it, agreeing |
    | agree | float | Kaplan and Meier's estimate after this turn; NaN where nobody is left to see |
    """
    import pandas as pd

    arms: dict[str, list[Stay]] = {}
    turns: set[int] = set()
    starts = []
    for row in rows:
        against = _against(row, record)
        kept = stay(row.vector, against, start=row.start, limited=row.limited)
        arms.setdefault(row.arm, []).append(kept)
        turns |= {one.turn for one in (*row.vector, *against)}
        starts.append(row.start or (row.vector[0].turn if row.vector else 1))
    begin = min(starts, default=1)
    shown = range(begin - 1, max(turns, default=begin) + 1)
    found = [(name, *step) for name, stays in arms.items() for step in agreement(stays, shown)]
    columns = ["arm", "turn", "at_risk", "left", "censored", "agree"]
    return pd.DataFrame(found, columns=columns).astype({"agree": "float64"})


def _arm_dtype(name: str) -> Literal["object", "int64", "Int64", "float64"]:
    if name in {"arm", "swap", "test"}:
        return "object"
    if name in {"pairs", "gained", "lost"}:
        return "Int64"
    counts = {"branches", "k", "n", "none", "distinct", "diverged", "drifted"}
    return "int64" if name in counts else "float64"


def hashes_frame(
    rows: Sequence[BranchRow], record: Vector, field: HashField = "action"
) -> pd.DataFrame:
    """Branches x turns: index (arm, journal), a column a turn, the hash of ``field`` or None.

    The first row is the record, under the arm ``record``. Columns begin at the first live turn of
    any branch.
    """
    import pandas as pd

    starts = [row.vector[0].turn for row in rows if row.vector]
    begin = min(starts, default=record[0].turn if record else 1)
    named = [(("record", ""), record), *(((row.arm, row.journal), row.vector) for row in rows)]
    turns = sorted({one.turn for _, vector in named for one in vector if one.turn >= begin})
    cells = []
    for _, vector in named:
        values = {one.turn: getattr(one, field) for one in vector}
        cells.append([values.get(turn) for turn in turns])
    index = pd.MultiIndex.from_tuples([name for name, _ in named], names=["arm", "journal"])
    return pd.DataFrame(cells, index=index, columns=pd.Index(turns, name="turn"), dtype=object)


def summarize(
    rows: Iterable[BranchRow], record: Vector, *, in_pairs: bool = False
) -> list[ArmSummary]:
    """Each arm beside the control arm, the control first; UsageError where arms mix swaps.

    ``in_pairs``: the paired test decides, and is what is corrected for several arms.
    """
    arms: dict[str, list[BranchRow]] = {}
    for row in rows:
        arms.setdefault(row.arm, []).append(row)
    for name, members in arms.items():
        if len({row.swapped for row in members}) > 1:
            raise UsageError(f"arm {name!r} holds branches with different swaps")
    controls = [name for name, members in arms.items() if members[0].swapped is None]
    if len(controls) > 1:
        raise UsageError(f"{len(controls)} control arms, {', '.join(controls)}: one is the limit")
    success = {name: rate(row.ok for row in members) for name, members in arms.items()}
    tested = [name for name in arms if controls and name not in controls]
    apart = {name: difference(success[name], success[controls[0]]) for name in tested}
    pairs = {name: _pairs(arms[name], arms[controls[0]]) for name in tested}
    deciding = [_deciding(apart[name], pairs[name], in_pairs) for name in tested]
    corrected = dict(zip(tested, holm(deciding), strict=True))
    return [
        ArmSummary(
            name, arms[name][0].swapped, len(arms[name]), success[name], apart.get(name),
            corrected.get(name), distinct(row.vector for row in arms[name]),
            sum(_left(row, record) for row in arms[name]),
            sum(drift_turn(row.vector) is not None for row in arms[name]), pairs.get(name),
            "paired" if in_pairs and pairs.get(name) else "exact", max(len(tested), 1),
        )
        for name in [*controls, *(name for name in arms if name not in controls)]
    ]  # fmt: skip


def _pairs(arm: Sequence[BranchRow], control: Sequence[BranchRow]) -> Paired | None:
    """The paired test of two arms; None where a branch has no number."""
    if any(row.number is None for row in (*arm, *control)):
        return None
    ours, theirs = ({row.number or 0: row.ok for row in rows} for rows in (arm, control))
    return paired(ours, theirs)


def _deciding(apart: Difference, pairs: Paired | None, in_pairs: bool) -> float:
    return pairs.p if in_pairs and pairs else apart.p


def drift_turn(vector: Vector) -> int | None:
    """The first turn that another model served than the turn before it (R47)."""
    turns = pairwise(vector)
    return next((now.turn for was, now in turns if was.model != now.model), None)


def _against(row: BranchRow, record: Vector) -> Vector:
    return record if row.baseline is None else row.baseline


def _left(row: BranchRow, record: Vector) -> bool:
    return first_divergence(row.vector, _against(row, record), start=row.start) is not None


def _branch_record(row: BranchRow, record: Vector) -> tuple[object, ...]:
    found = cause(
        row.vector, _against(row, record), swapped=row.swapped, start=row.start,
        limited=row.limited,
    )  # fmt: skip
    first, last = (row.vector[0].turn, row.vector[-1].turn) if row.vector else (None, None)
    t_div, kind, because = found or (None, None, None)
    return (
        row.arm, row.journal, row.swapped, first, last, t_div, kind, because, row.ok,
        row.workspace, drift_turn(row.vector),
    )  # fmt: skip
