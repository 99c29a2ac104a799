"""What came of a fork: arms beside the control arm, as tables, text and JSON.

A comparison is read off the branches' journals, so it can be made again from the fork's directory.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import astuple, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from branchkit.branch.calibration import masked_vector
from branchkit.branch.run import Result
from branchkit.branch.swap import Swap
from branchkit.divergence.align import Vector, first_divergence
from branchkit.divergence.cause import cause
from branchkit.divergence.outcomes import BranchEnd, Group, outcome_groups
from branchkit.divergence.statistics import verdict
from branchkit.divergence.tables import (
    ArmSummary,
    BranchRow,
    agreement_frame,
    arms_frame,
    branches_frame,
    found_against,
    hashes_frame,
    summarize,
)
from branchkit.divergence.textmap import text_map
from branchkit.divergence.vectors import vector
from branchkit.divergence.volatile import Mask
from branchkit.errors import InputRefused
from branchkit.journal.events import Component, Event, ModelReplied
from branchkit.journal.file import read
from branchkit.journal.format import Json
from branchkit.record.effective import effective
from branchkit.replay.recorded import Recorded

if TYPE_CHECKING:
    import pandas as pd

CONTROL = "control"


class ArmPlan(NamedTuple):
    """An arm before it runs; the control arm has no swap."""

    name: str
    swap: Swap | None
    n: int


class ForkFacts(NamedTuple):
    """What a fork was asked for, as its ``fork.json`` keeps it."""

    parent: str
    turn: int
    check: str | None
    seed: int
    n: int  # branches of the control arm, and of every arm that has no size of its own
    arms: list[tuple[str, dict[str, str] | None, int]]  # name, declared swap, branches
    volatile: list[str]
    record_ok: bool | None
    record_output: str
    workspace_note: str
    paired: bool = False  # said before the fork: the paired test decides


class BranchView(NamedTuple):
    """One branch with what its journal says of it."""

    result: Result
    row: BranchRow
    baseline: Vector
    t_div: int | None
    cause: str | None
    because: str


class _Read(NamedTuple):
    vector: Vector
    prefix_calls: int


class Comparison:
    """The branches of one fork, held against the control arm and against the record."""

    def __init__(
        self,
        recorded: Recorded,
        facts: ForkFacts,
        plans: Sequence[ArmPlan],
        results: Sequence[Result],
        *,
        partial: bool = False,
        parent_unchanged: bool = True,
        directory: Path | None = None,
        masks: Sequence[Mask] = (),
    ) -> None:
        order = {plan.name: number for number, plan in enumerate(plans)}
        self.recorded = recorded
        said = [f"{mask.tool}: {mask.pattern}" for mask in masks]
        self.facts = facts._replace(volatile=[*facts.volatile, *said])
        self.masks = tuple(masks)
        self.plans = list(plans)
        self.results = sorted(results, key=lambda one: (order[one.arm], one.number))
        self.partial = partial
        self.parent_unchanged = parent_unchanged
        self.directory = directory

    @classmethod
    def load(cls, directory: Path, *, masks: Sequence[Mask] = ()) -> Comparison:
        """The comparison of an earlier fork. Raises InputRefused if there is none.

        ``masks``: what of a tool's results is no difference; see ``branch.calibration``.
        """
        try:
            facts = ForkFacts(**json.loads((directory / "fork.json").read_text("utf-8")))
            lines = (directory / "results.jsonl").read_text("utf-8").splitlines()
            results = [Result(**json.loads(line)) for line in lines]
        except (OSError, ValueError, TypeError) as error:
            raise InputRefused(
                f"{directory} holds no finished fork: {error}",
                hint="name a directory that `branchkit fork` wrote",
            ) from None
        plans = [ArmPlan(name, _swap(declared), n) for name, declared, n in facts.arms]
        partial = len(results) < sum(plan.n for plan in plans)
        return cls(
            Recorded.open(facts.parent), facts, plans, results, partial=partial,
            directory=directory, masks=masks,
        )  # fmt: skip

    @cached_property
    def record_vector(self) -> Vector:
        """The record's own turns."""
        rows = vector(effective(self.recorded.events))
        return masked_vector(self.recorded, rows, self.masks)

    @cached_property
    def branches(self) -> list[BranchView]:
        """Every branch that ended, the control arm first."""
        vectors = {journal: found.vector for journal, found in self._read.items()}
        swaps = {plan.name: plan.swap.component if plan.swap else None for plan in self.plans}
        ends = {result.journal: _end_hash(vectors[result.journal]) for result in self.results}
        found = []
        for result in self.results:
            row = BranchRow(
                arm=result.arm,
                journal=result.journal,
                swapped=swaps[result.arm],
                vector=vectors[result.journal],
                ok=result.ok,
                workspace=ends[result.journal],
                limited=result.status != "completed",
                start=self.facts.turn + 1,
                number=result.number,
                baseline=self._baseline(result, vectors),
            )
            found.append(self._view(result, row))
        return found

    @cached_property
    def _read(self) -> dict[str, _Read]:
        """What is wanted of each branch's journal, read once and one after the other."""
        turn = self.facts.turn
        snapshot = self.recorded.record_after(turn).snapshot_at(turn)
        before = snapshot.tree_hash if snapshot else None
        found = {}
        for journal in {result.journal: None for result in self.results}:
            events = _events(journal)
            rows = vector(events, first_turn=turn + 1, workspace=before)
            if self.masks and rows:
                rows = self._masked(journal, rows)
            calls = sum(isinstance(e.payload, ModelReplied) and e.turn <= turn for e in events)
            found[journal] = _Read(rows, calls)
        return found

    def _masked(self, journal: str, rows: Vector) -> Vector:
        branch = Recorded.open(journal, parent=self.recorded.path)
        try:
            return masked_vector(branch, rows, self.masks)
        finally:
            branch.close()

    def _view(self, result: Result, row: BranchRow) -> BranchView:
        baseline = row.baseline or ()
        if result.error is not None:
            return BranchView(result, row, baseline, None, None, result.error)
        found = cause(
            row.vector, baseline, swapped=row.swapped, start=row.start, limited=row.limited
        )
        t_div = first_divergence(row.vector, baseline, start=row.start)
        because = found.because if found else ""
        return BranchView(result, row, baseline, t_div, found.kind if found else None, because)

    def _baseline(self, result: Result, vectors: dict[str, Vector]) -> Vector:
        """The record; for an import, whose harness is not ours, the control of the same seed."""
        if not self.recorded.imported:
            return self.record_vector
        for other in self.results:
            if other.arm == CONTROL and other.number == result.number:
                return vectors[other.journal]
        return self.record_vector

    @cached_property
    def summaries(self) -> list[ArmSummary]:
        """One summary an arm, the control arm first."""
        rows = [view.row for view in self.branches]
        return summarize(rows, self.record_vector, in_pairs=self.facts.paired)

    @property
    def prefix_model_calls(self) -> int:
        """Model calls that branches made for turns up to the fork: always 0 (R59)."""
        return sum(self._read[result.journal].prefix_calls for result in self.results)

    def arms_table(self) -> pd.DataFrame:
        """One row an arm; columns as in ``divergence.tables.arms_frame``."""
        rows = [view.row for view in self.branches]
        return arms_frame(rows, self.record_vector, in_pairs=self.facts.paired)

    def branches_table(self) -> pd.DataFrame:
        """One row a branch; columns as in ``divergence.tables.branches_frame``."""
        return branches_frame([view.row for view in self.branches], self.record_vector)

    def agreement_table(self) -> pd.DataFrame:
        """The survival of agreement by arm and turn; see ``divergence.tables.agreement_frame``."""
        return agreement_frame([view.row for view in self.branches], self.record_vector)

    def outcomes_table(self) -> pd.DataFrame:
        """One row a group of equal ends, columns as the fields of ``outcomes.Group`` (R67)."""
        import pandas as pd

        columns = [field.name for field in fields(Group)]
        return pd.DataFrame([astuple(group) for group in self.outcomes()], columns=columns)

    def hashes_table(self, field: Any = "action") -> pd.DataFrame:
        """Branches x turns of one hash: context, action, observation, workspace or reply."""
        return hashes_frame([view.row for view in self.branches], self.record_vector, field)

    def outcomes(self) -> list[Group]:
        """Branches with equal end workspaces together, one example each (R67)."""
        return outcome_groups(
            BranchEnd(view.result.journal, view.row.workspace, view.result.ok)
            for view in self.branches
        )

    def map(self, width: int = 100) -> str:
        """The text map of divergence: branches by turns."""
        rows = [(view.row.arm, view.row.vector) for view in self.branches]
        return text_map(rows, self.record_vector, width=width, start=self.facts.turn + 1)

    def verdicts(self) -> list[str]:
        """One sentence an arm: what may and what may not be concluded."""
        if self.facts.check is None or not self.summaries:
            return []
        control = next((one for one in self.summaries if one.swapped is None), None)
        if control is None:
            return ["There is no control arm, so nothing can be concluded about a swap."]
        return [
            f"{one.arm}: {_sentence(one, control)}"
            for one in self.summaries
            if one.swapped is not None
        ]

    def to_json(self) -> dict[str, Json]:
        """The stable fields of ``branchkit fork --json``."""
        by_arm = {summary.arm: summary for summary in self.summaries}
        swaps = {name: declared for name, declared, _ in self.facts.arms}
        return {
            "turn": self.facts.turn,
            "check": self.facts.check,
            "record": {"ok": self.facts.record_ok},
            "parent_unchanged": self.parent_unchanged,
            "prefix_model_calls": self.prefix_model_calls,
            "partial": self.partial,
            "volatile": self.facts.volatile,
            "note": self.facts.workspace_note,
            "directory": str(self.directory) if self.directory else None,
            "arms": [self._arm_json(by_arm[name], swaps[name]) for name in by_arm],
            "groups": [
                {"workspace": group.workspace, "count": group.count, "ok": group.ok,
                 "example": group.example}
                for group in self.outcomes()
            ],
            "verdicts": self.verdicts(),
        }  # fmt: skip

    def _found(self, summary: ArmSummary) -> dict[str, Json] | None:
        """Which arm rates as many branches would find; None for the control arm and beside none."""
        if summary.against is None:
            return None
        return dict(found_against(summary, self.summaries[0])._asdict())

    def _arm_json(self, summary: ArmSummary, swap: dict[str, str] | None) -> dict[str, Json]:
        against = summary.against
        return {
            "name": summary.arm,
            "swap": swap,
            "n": summary.branches,
            "success": {
                "k": summary.success.k,
                "n": summary.success.n,
                "none": summary.success.none,
                "low": summary.success.low,
                "high": summary.success.high,
            },
            "p": against.p if against else None,
            "p_holm": summary.p_holm,
            "test": summary.test if against else None,
            "paired": summary.pairs._asdict() if summary.pairs else None,
            "found": self._found(summary),
            "difference": against._asdict() if against else None,
            "distinct": summary.distinct,
            "branches": [
                {
                    "journal": view.result.journal,
                    "seed": view.result.seed,
                    "t_div": view.t_div,
                    "cause": view.cause,
                    "because": view.because,
                    "ok": view.result.ok,
                    "status": view.result.status,
                    "error": view.result.error,
                }
                for view in self.branches
                if view.row.arm == summary.arm
            ],
        }


def _sentence(one: ArmSummary, control: ArmSummary) -> str:
    test = "paired exact" if one.test == "paired" else "exact"
    return verdict(one.success, control.success, p=one.p_holm, arms=one.arms, test=test)


def _events(journal: str) -> list[Event]:
    path = Path(journal)
    return read(path)[0] if path.exists() else []


def _end_hash(rows: Vector) -> str | None:
    return rows[-1].workspace if rows else None


def _swap(declared: dict[str, str] | None) -> Swap | None:
    if declared is None:
        return None
    spec = declared["spec"]
    return Swap(declared["component"], spec, Component(spec=spec))
