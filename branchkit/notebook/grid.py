"""The map as bytes: branches x turns, one class a cell; what every picture of it is drawn from.

    0          no such turn
    1          the record's action in the record's context
    2          the record's action, but the context differed
    3 + 2 r    another action, the (r+1)-th commonest of that turn; the context was the record's
    4 + 2 r    the same, and the context differed too

A larger class says more, so several cells are pooled into one by their maximum.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from branchkit.divergence.align import TurnHashes, Vector, by_turn

if TYPE_CHECKING:
    from branchkit.branch.comparison import BranchView, Comparison

ABSENT, SAME, OTHER_CONTEXT, OTHER = 0, 1, 2, 3
LAST_RANK = 120  # rarer actions share its class; a byte holds no more

WORDS: dict[bool | None, str] = {True: "pass", False: "fail", None: "no verdict"}


class Row(NamedTuple):
    """One branch: its place in ``Comparison.branches``, and a class a turn."""

    place: int
    arm: str
    number: int
    t_div: int | None
    ok: bool | None
    cause: str | None
    cells: bytes


class Grid(NamedTuple):
    """Rows grouped by arm, the control arm first, within an arm by first divergence."""

    first_turn: int
    turns: int
    record: bytes
    rows: list[Row]

    @property
    def cells(self) -> bytes:
        """All rows, one after the other."""
        return b"".join(row.cells for row in self.rows)

    def arms(self) -> list[tuple[str, list[Row]]]:
        """The rows by arm."""
        found: dict[str, list[Row]] = {}
        for row in self.rows:
            found.setdefault(row.arm, []).append(row)
        return list(found.items())


def grid_of(comparison: Comparison) -> Grid:
    """The map of a comparison; empty where nothing ran."""
    views = comparison.branches
    parent = by_turn(comparison.record_vector)
    first = comparison.facts.turn + 1
    ends = [view.row.vector[-1].turn for view in views if view.row.vector]
    last = max([*ends, *parent], default=first - 1)
    turns = range(first, max(last, first - 1) + 1)
    ranks = _ranks((view.row.vector for view in views), parent)
    rows = [_row(index, view, parent, turns, ranks) for index, view in enumerate(views)]
    order = {plan.name: place for place, plan in enumerate(comparison.plans)}
    rows.sort(key=lambda row: (order[row.arm], row.t_div is None, row.t_div or 0, row.cells))
    record = bytes(SAME if turn in parent else ABSENT for turn in turns)
    return Grid(first, len(turns), record, rows)


def symbol(cell: int) -> str:
    """The letter of a class, as in the text map: colour is never the only sign."""
    if cell == ABSENT:
        return " "
    if cell in (SAME, OTHER_CONTEXT):
        return "."
    rank, other_context = divmod(cell - OTHER, 2)
    if rank >= 26:
        return "+" if other_context else "#"
    letter = chr(ord("A") + rank)
    return letter.lower() if other_context else letter


def row_title(row: Row) -> str:
    """Where a branch left its baseline, and what the check said."""
    left = "stayed with the record" if row.t_div is None else f"left at turn {row.t_div}"
    why = f" ({row.cause})" if row.cause else ""
    return f"{row.arm}, branch {row.number}: {left}{why}, {WORDS[row.ok]}"


def folded(rows: Sequence[Row]) -> list[tuple[Row, int]]:
    """Each different row (cells, divergence, verdict) once with its number, in the order given."""
    counts = Counter((row.t_div, row.cells, row.ok) for row in rows)
    examples = {(row.t_div, row.cells, row.ok): row for row in reversed(rows)}
    return [(examples[key], counts[key]) for key in counts]


def file_name(path: str) -> str:
    """A journal's name without the folders of this machine."""
    return Path(path).name


def _row(
    index: int,
    view: BranchView,
    parent: Mapping[int, TurnHashes],
    turns: range,
    ranks: Mapping[tuple[int, str], int],
) -> Row:
    cells = bytes(_cells(by_turn(view.row.vector), parent, turns, ranks))
    result = view.result
    return Row(index, result.arm, result.number, view.t_div, result.ok, view.cause, cells)


def _ranks(
    vectors: Iterable[Vector], parent: Mapping[int, TurnHashes]
) -> dict[tuple[int, str], int]:
    """The rank of each other action at its turn: by how many chose it, then by hash."""
    counts: defaultdict[int, Counter[str]] = defaultdict(Counter)
    for vector in vectors:
        for row in vector:
            if row.turn not in parent or parent[row.turn].action != row.action:
                counts[row.turn][row.action] += 1
    return {
        (turn, action): min(rank, LAST_RANK)
        for turn, others in counts.items()
        for rank, (action, _) in enumerate(sorted(others.items(), key=lambda one: (-one[1], one)))
    }


def _cells(
    branch: Mapping[int, TurnHashes],
    parent: Mapping[int, TurnHashes],
    turns: range,
    ranks: Mapping[tuple[int, str], int],
) -> Iterable[int]:
    same = True  # beyond the record's end there is no context to compare: the last answer holds
    for turn in turns:
        row, recorded = branch.get(turn), parent.get(turn)
        if row is None:
            yield ABSENT
            continue
        if recorded is not None:
            same = row.context == recorded.context
        if recorded is not None and row.action == recorded.action:
            yield SAME if same else OTHER_CONTEXT
        else:
            yield OTHER + 2 * ranks[turn, row.action] + (not same)
