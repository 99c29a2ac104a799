"""A text map of divergence: branches x turns, one character a turn (R81).

The map needs no colour, no widget and no kernel: it is what a terminal, a log and a saved notebook
show, and the same branches give the same bytes.
"""

from __future__ import annotations

import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from branchkit.divergence.align import TurnHashes, Vector, by_turn, first_divergence
from branchkit.errors import UsageError

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
FURTHER, FURTHER_OTHER_CONTEXT = "#", "+"  # a turn with more than 26 other actions

LEGEND = (
    ".  the record's action     A B C  another action of that turn, the commonest first",
    "a b c  as A B C, the context differed too     space  no such turn     ×n  n equal branches",
    "left: the turn of the first divergence, = where there is none",
)
FURTHER_LEGEND = "#  one of a turn's rarer actions, after the 26th     +  as #, other context"

MIN_WIDTH = 24


class _Row(NamedTuple):
    t_div: int | None
    cells: str


def text_map(
    rows: Sequence[tuple[str, Vector]],
    record: Vector,
    *,
    width: int = 100,
    start: int | None = None,
) -> str:
    """The map as lines, none longer than ``width``; UsageError below 24.

    ``rows`` are (arm, live turns of one branch). Arms stand in the order of their first branch,
    rows by first divergence (those that never left come last), equal rows once with their number.
    Turns before ``start`` (left out: the first live one of any branch) were replayed and are not
    shown. A map wider
    than ``width`` goes on in a second panel below.
    """
    if width < MIN_WIDTH:
        raise UsageError(f"a map needs a width of {MIN_WIDTH} or more, not {width}")
    turns = _axis([vector for _, vector in rows], record, start)
    if not rows or not turns:
        return "No live turns to show.\n"
    parent = by_turn(record)
    letters = _letters((vector for _, vector in rows), parent, turns)
    arms: defaultdict[str, list[_Row]] = defaultdict(list)
    for arm, vector in rows:
        cells = "".join(_cells(by_turn(vector), parent, turns, letters))
        arms[arm].append(_Row(first_divergence(vector, record, start=_start(vector, turns)), cells))
    recorded = "".join("." if turn in parent else " " for turn in turns)
    lines = _panels(turns, recorded, arms, width)
    further = any(
        FURTHER in row.cells or FURTHER_OTHER_CONTEXT in row.cells
        for found in arms.values()
        for row in found
    )
    legend = [*LEGEND, FURTHER_LEGEND] if further else LEGEND
    lines += ["", *(piece for line in legend for piece in _wrapped(line, width))]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _start(vector: Vector, turns: range) -> int:
    return vector[0].turn if vector else turns[0]


def _axis(vectors: Sequence[Vector], record: Vector, start: int | None) -> range:
    """All turns from the first live one of any branch to the last that anyone has."""
    starts = [vector[0].turn for vector in vectors if vector] if start is None else [start]
    ends = [vector[-1].turn for vector in [*vectors, record] if vector]
    if not ends:
        return range(0)
    return range(min(starts) if starts else record[0].turn, max(ends) + 1)


def _letters(
    vectors: Iterable[Vector], parent: Mapping[int, TurnHashes], turns: range
) -> dict[tuple[int, str], int]:
    """The rank (0 = A) of each other action at its turn: by how many chose it, then by hash."""
    counts: defaultdict[int, Counter[str]] = defaultdict(Counter)
    for vector in vectors:
        for row in vector:
            if row.turn not in parent or parent[row.turn].action != row.action:
                counts[row.turn][row.action] += 1
    ranks = {}
    for turn in turns:
        others = sorted(counts[turn].items(), key=lambda one: (-one[1], one[0]))
        ranks.update({(turn, action): rank for rank, (action, _) in enumerate(others)})
    return ranks


def _cells(
    branch: Mapping[int, TurnHashes],
    parent: Mapping[int, TurnHashes],
    turns: range,
    letters: Mapping[tuple[int, str], int],
) -> Iterable[str]:
    first = min(branch, default=turns[0])
    same = True  # beyond the record's end there is no context to compare: the last answer holds
    for turn in turns:
        row, recorded = branch.get(turn), parent.get(turn)
        if row is None:
            # Before its own fork a branch *is* the record; after its end there is nothing.
            yield "." if turn < first and recorded is not None else " "
            continue
        if recorded is not None:
            same = row.context == recorded.context
        if recorded is not None and row.action == recorded.action:
            yield "."
        else:
            yield _letter(letters[turn, row.action], same)


def _letter(rank: int, same_context: bool) -> str:
    if rank >= len(LETTERS):
        return FURTHER if same_context else FURTHER_OTHER_CONTEXT
    return LETTERS[rank] if same_context else LETTERS[rank].lower()


def _panels(
    turns: range, recorded: str, arms: Mapping[str, Sequence[_Row]], width: int
) -> list[str]:
    """The lines of all panels: scale, record, then each arm with its collapsed rows."""
    folded = {arm: _collapsed(rows) for arm, rows in arms.items()}
    label = max(len("record"), len(str(turns[-1])) + 1) + 1
    tail = 2 + max(len(f"×{count}") for found in folded.values() for _, count in found)
    room = width - label - tail
    lines: list[str] = []
    for offset in range(0, len(turns), room):
        here = slice(offset, offset + room)
        if offset:
            lines.append("")
        lines.append(f"{'turn':<{label}}{_scale(turns[here])}")
        lines.append(f"{'record':<{label}}{recorded[here]}")
        for arm, found in folded.items():
            count = len(arms[arm])
            title = f"{arm} ({count} {'branch' if count == 1 else 'branches'})"
            lines.append(title if len(title) <= width else title[: width - 1] + "…")
            for row, times in found:
                name = "=" if row.t_div is None else f"t{row.t_div}"
                cells = f"{name:>{label - 1}} {row.cells[here]:<{min(room, len(turns))}}"
                lines.append(f"{cells}  ×{times}" if times > 1 else cells)
    return lines


def _collapsed(rows: Iterable[_Row]) -> list[tuple[_Row, int]]:
    """Each different row with its number, by first divergence; those that never left come last."""
    counts = Counter(rows)
    return sorted(
        counts.items(),
        key=lambda one: (one[0].t_div is None, one[0].t_div or 0, -one[1], one[0].cells),
    )


def _scale(turns: range) -> str:
    """The turn numbers, each starting over its own column, as many as fit apart."""
    line = ""
    for column, turn in enumerate(turns):
        wanted = column == 0 or turn % 10 == 0
        if wanted and (not line or len(line) < column):
            line = line.ljust(column) + str(turn)
    return line


def _wrapped(line: str, width: int) -> list[str]:
    return textwrap.wrap(line, width)
