"""``when``: which turn did it? A check on every turn's recorded workspace, no model (R65)."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from branchkit.errors import UsageError
from branchkit.harness.sandbox import Sandbox
from branchkit.journal.events import ToolProposed
from branchkit.journal.format import Json
from branchkit.record.record import Snapshot
from branchkit.replay.recorded import Recorded
from branchkit.workspace import Workspaces
from branchkit.workspace.history import Taken, Version, history

CHECK_TIMEOUT_S = 120.0
Progress = Callable[[int, int, str], None]


class TurnResult(NamedTuple):
    """The check after one turn; ``exit`` is None if it ran out of time or was never run."""

    turn: int
    exit: int | None


class When(NamedTuple):
    """``turn`` is the first whose end gives another verdict than the start did; None if none."""

    check: str
    turn: int | None
    calls: list[str]  # what that turn's calls were
    results: list[TurnResult]

    def to_json(self) -> dict[str, Json]:
        """The stable fields of ``branchkit when --json``."""
        return {
            "turn": self.turn,
            "check": self.check,
            "calls": self.calls,
            "results": [result._asdict() for result in self.results],
        }


class Blame(NamedTuple):
    """The last change of a path, and the calls of the turn that made it."""

    version: Version
    calls: list[str]


def when(
    recorded: Recorded,
    check: str,
    *,
    workspaces: Workspaces,
    bisect: bool = False,
    isolated: bool = True,
    progress: Progress = lambda _done, _all, _what: None,
) -> When:
    """Run ``check`` on the workspace as each turn left it, in parallel; equal trees are run once.

    ``bisect`` looks at few of them and finds *a* turn where the verdict changes, which is the only
    one if it changes once. Raises UsageError for a run without recorded workspace.
    """
    snapshots = _snapshots(recorded)
    recorded.adopt_workspace(workspaces)
    run = _Checks(recorded, check, workspaces, isolated, progress, len(snapshots))
    if bisect:
        run.bisect(snapshots)
    else:
        run.all(snapshots)
    results = [
        TurnResult(turn, run.exits.get(_at(snapshots, turn).id))
        for turn in range(recorded.turns + 1)
    ]
    turn = _first_change(snapshots, run.exits)
    calls = calls_of(recorded, turn) if turn is not None else []
    return When(check, turn, calls, results)


def blame(recorded: Recorded, path: str, *, workspaces: Workspaces) -> Blame:
    """Which turn and call last changed ``path``. Raises UsageError if the run never had it."""
    last = versions(recorded, path, workspaces=workspaces)[-1]
    return Blame(last, calls_of(recorded, last.turn))


def versions(recorded: Recorded, path: str, *, workspaces: Workspaces) -> list[Version]:
    """The versions of ``path`` over the run, oldest first."""
    snapshots = _snapshots(recorded)
    recorded.adopt_workspace(workspaces)
    taken = [Taken(one.id, one.turn) for one in snapshots]
    base = workspaces.snapshot(snapshots[0].id).base
    return history(workspaces, base=base, taken=taken, path=path)


def calls_of(recorded: Recorded, turn: int) -> list[str]:
    """The calls of a turn as ``id name(arguments)``."""
    return [
        f"{event.payload.call_id} {event.payload.name} {event.payload.arguments}"
        for event in recorded.events
        if event.turn == turn and isinstance(event.payload, ToolProposed)
    ]


def _snapshots(recorded: Recorded) -> list[Snapshot]:
    found = recorded.record.snapshots
    if not found:
        raise UsageError(
            f"{recorded.path.name} has no recorded workspace",
            hint="only runs that branchkit recorded know their files turn by turn",
        )
    return found


def _at(snapshots: list[Snapshot], turn: int) -> Snapshot:
    return [one for one in snapshots if one.turn <= turn][-1]


def _first_change(snapshots: list[Snapshot], exits: dict[str, int | None]) -> int | None:
    """The turn of the first known verdict that differs from the first one."""
    known = [(one.turn, exits[one.id] == 0) for one in snapshots if one.id in exits]
    return next((turn for turn, ok in known if ok != known[0][1]), None)


class _Checks:
    """The check's exit codes by snapshot; equal trees share one run."""

    def __init__(
        self,
        recorded: Recorded,
        check: str,
        workspaces: Workspaces,
        isolated: bool,
        progress: Progress,
        total: int,
    ) -> None:
        self._prefix = f"{recorded.record.run_id[:8]}-when-{os.getpid()}"
        self._check, self._workspaces, self._isolated = check, workspaces, isolated
        self._progress, self._total = progress, total
        self.exits: dict[str, int | None] = {}

    def all(self, snapshots: list[Snapshot]) -> None:
        by_tree: dict[str, list[Snapshot]] = {}
        for one in snapshots:
            by_tree.setdefault(one.tree_hash, []).append(one)
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            firsts = [same[0] for same in by_tree.values()]
            for same, code in zip(by_tree.values(), pool.map(self._run, firsts), strict=True):
                self.exits.update(dict.fromkeys((one.id for one in same), code))
                self._progress(len(self.exits), self._total, f"turn {same[0].turn}")

    def bisect(self, snapshots: list[Snapshot]) -> None:
        low, high = 0, len(snapshots) - 1
        first, last = self._known(snapshots[low]), self._known(snapshots[high])
        if first == last:
            return
        while high - low > 1:
            middle = (low + high) // 2
            if self._known(snapshots[middle]) == first:
                low = middle
            else:
                high = middle

    def _known(self, snapshot: Snapshot) -> bool:
        code = self.exits[snapshot.id] = self._run(snapshot)
        self._progress(len(self.exits), self._total, f"turn {snapshot.turn}")
        return code == 0

    def _run(self, snapshot: Snapshot) -> int | None:
        branch = self._workspaces.create(f"{self._prefix}-{snapshot.turn}", snapshot=snapshot.id)
        try:
            with Sandbox(branch.path, isolated=self._isolated) as sandbox:
                return sandbox.check(self._check, timeout_s=CHECK_TIMEOUT_S).exit_code
        finally:
            branch.drop()
