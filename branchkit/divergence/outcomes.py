"""How long branches stay with the record, and which of them end in the same place (R61, R67)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from branchkit.divergence.align import Vector, first_divergence


class BranchEnd(NamedTuple):
    """Where one branch ended: its workspace's hash (None: not hashed) and its check's verdict."""

    journal: str
    workspace: str | None
    ok: bool | None


@dataclass(frozen=True, slots=True)
class Group:
    """Branches whose end workspaces are equal, with one of them as the example.

    ``ok`` is the verdict of those that have one; None where none has, or where equal workspaces
    passed *and* failed: then the check itself varies, and ``passed`` and ``failed`` show it.
    Branches whose workspace was not hashed stand together under None; they need not be equal.
    """

    workspace: str | None
    count: int
    ok: bool | None
    example: str
    passed: int
    failed: int


class Stay(NamedTuple):
    """How long one branch was seen to agree with the record.

    ``left``: its t_div, None if it never left. ``seen``: for one that was cut off while it still
    agreed (a limit, a person, a failure), the last turn that is known; None: it went to its end.
    """

    left: int | None
    seen: int | None = None


class Step(NamedTuple):
    """One turn of a survival curve: who was still there and who left; ``agree`` is None if unknown.

    ``censored`` were cut off after this turn, while they still agreed.
    """

    turn: int
    at_risk: int
    left: int
    censored: int
    agree: float | None


def stay(vector: Vector, record: Vector, *, start: int | None, limited: bool) -> Stay:
    """How long a branch stayed; ``start`` and ``limited`` as in ``cause``.

    A branch that ended early by itself has left at the first turn it lacks. One that was cut off
    has not: it counts for as long as it was seen.
    """
    t_div = first_divergence(vector, record, start=start)
    if limited and t_div is not None and all(row.turn < t_div for row in vector):
        return Stay(None, t_div - 1)
    return Stay(t_div)


def agreement(stays: Iterable[Stay], turns: Iterable[int]) -> list[Step]:
    """The survival curve of agreement with the record over ascending ``turns`` (R61).

    Kaplan and Meier's product, which is the plain fraction as long as nothing was cut off. From the
    turn on where nobody is left to be seen, and some had not parted, it is not known.
    """
    known = list(stays)
    share: float | None = 1.0 if known else None
    steps = []
    for turn in turns:
        there = [one for one in known if _last(one) >= turn]
        left = sum(one.left == turn for one in there)
        if there and share is not None:
            share *= 1 - left / len(there)
        elif share:  # an end at 0 stays known: all have left
            share = None
        censored = sum(one.left is None and one.seen == turn for one in there)
        steps.append(Step(turn, len(there), left, censored, share))
    return steps


def _last(one: Stay) -> float:
    """The last turn at which a branch can be seen to leave."""
    if one.left is not None:
        return one.left
    return float("inf") if one.seen is None else one.seen


def outcome_groups(branches: Iterable[BranchEnd]) -> list[Group]:
    """The groups of equal end workspaces, largest first, then by hash (R67)."""
    members: defaultdict[str | None, list[BranchEnd]] = defaultdict(list)
    for branch in branches:
        members[branch.workspace].append(branch)
    groups = [_group(workspace, ends) for workspace, ends in members.items()]
    # The unhashed group has no hash to sort by; it comes last among those of its size.
    return sorted(groups, key=lambda one: (-one.count, one.workspace is None, one.workspace or ""))


def _group(workspace: str | None, ends: list[BranchEnd]) -> Group:
    passed = sum(end.ok is True for end in ends)
    failed = sum(end.ok is False for end in ends)
    ok = None if bool(passed) == bool(failed) else bool(passed)
    # An example with a verdict has a check's output to show. By name, not by order of arrival:
    # branches end in any order, and the same fork must give the same page.
    shown = [end for end in ends if end.ok is not None] or ends
    return Group(workspace, len(ends), ok, min(end.journal for end in shown), passed, failed)
