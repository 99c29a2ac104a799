"""How long branches stay with the record, and which of them end in the same place (R61, R67)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple


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


def agreement(t_divs: Iterable[int | None], turns: Iterable[int]) -> list[float]:
    """The fraction of branches still equal to the record after each of ``turns``.

    ``t_divs`` has one entry a branch, None for one that never left. No branch, no curve: [].
    A branch that ended early has left at the first turn it lacks, so nothing is censored.
    """
    left = list(t_divs)
    if not left:
        return []
    return [sum(t_div is None or t_div > turn for t_div in left) / len(left) for turn in turns]


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
