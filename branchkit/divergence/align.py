"""Hash vectors of branches beside the record's: where they part, and how many differ (R62, I04).

A vector holds logical hashes only, one row a turn. Nothing here reads a journal; whoever does
builds the vectors, so that the same few lines judge a live branch, an import and a test.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class TurnHashes(NamedTuple):
    """What one turn was, as hashes (``sha256:…``); ``model`` is the served model's name.

    ``workspace`` is None where the tree was not hashed. ``reply`` is the whole reply, its text
    included, where ``action`` is only what the turn chose to do: two replies may choose the same
    call with other words, and those words are in every later context. None = not known.
    """

    turn: int
    context: str
    action: str
    observation: str
    workspace: str | None
    model: str
    reply: str | None = None


Vector = tuple[TurnHashes, ...]
"""The live turns of one branch, or all turns of the record, in ascending order of turn."""


def first_divergence(vector: Vector, record: Vector, *, start: int | None = None) -> int | None:
    """t_div: the first turn whose chosen action differs, or None (R62, I04).

    A turn that only one of the two has counts as different. Turns before ``start`` were replayed
    and are not compared; left out, it is the branch's first turn. A branch that ended before its
    first live reply has an empty vector: say ``start`` then, or every turn of the record counts.
    """
    begin = first_live(vector, record, start)
    branch, parent = _actions(vector), _actions(record)
    turns = sorted(turn for turn in branch.keys() | parent.keys() if turn >= begin)
    return next((turn for turn in turns if branch.get(turn) != parent.get(turn)), None)


def first_live(vector: Vector, record: Vector, start: int | None = None) -> int:
    """The turn from which ``vector`` is compared: ``start``, else its own first turn."""
    if start is not None:
        return start
    if vector:
        return vector[0].turn
    return record[0].turn if record else 1


def common_turns(vector: Vector, record: Vector) -> tuple[int, ...]:
    """The turns that both have, ascending."""
    return tuple(sorted(_actions(vector).keys() & _actions(record).keys()))


def distinct(vectors: Iterable[Vector]) -> int:
    """The number of different hash vectors; 1 is the law for an arm without any randomness.

    The model's name is left out: the same behaviour under another name is the same behaviour.
    """
    return len({tuple(row._replace(model="") for row in vector) for vector in vectors})


def by_turn(vector: Vector) -> dict[int, TurnHashes]:
    """The rows of ``vector`` by turn; ValueError where a turn is there twice or out of order."""
    rows = {row.turn: row for row in vector}
    turns = [row.turn for row in vector]
    if len(rows) != len(turns) or turns != sorted(turns):
        # Only a mistake in our own builder of vectors makes this: a bug, hence the plain error.
        raise ValueError(f"the turns of a vector must ascend, got {turns[:20]}")
    return rows


def _actions(vector: Vector) -> dict[int, str]:
    return {turn: row.action for turn, row in by_turn(vector).items()}
