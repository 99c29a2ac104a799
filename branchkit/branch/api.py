"""The public Python API: ``branchkit.open`` gives a ``Run`` that rewinds, forks and replays."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from branchkit.branch.calibration import Calibration, load_masks
from branchkit.branch.calibration import calibrate as calibrated
from branchkit.branch.commitment import Commitment, Plan, commitment, plan, record_end
from branchkit.branch.comparison import Comparison
from branchkit.branch.fanout import Progress
from branchkit.branch.fork import Options, fork
from branchkit.errors import Diverged, UsageError
from branchkit.journal.blobs import store_directory
from branchkit.journal.file import Verdict, verify
from branchkit.replay.isolate import replay_alone
from branchkit.replay.recorded import Recorded
from branchkit.replay.rewind import Rewound, rewind
from branchkit.replay.strict import Loop, Replayed, load_loop, replay
from branchkit.replay.when import Blame, When, blame, versions, when
from branchkit.workspace import Workspaces
from branchkit.workspace.history import Version

if TYPE_CHECKING:
    import pandas as pd


class Run:
    """A recorded run, opened for reading. Nothing it does writes to its journal."""

    def __init__(self, path: Path | str, *, parent: Path | str | None = None) -> None:
        self.recorded = Recorded.open(path, parent=parent)
        self._workspaces: Workspaces | None = None

    @property
    def turns(self) -> int:
        """T, the number of replies."""
        return self.recorded.turns

    def rewind(self, turn: int, *, workspace: bool = True) -> Rewound:
        """The state just before reply ``turn``, 1..T+1; ``workspace`` mounts its files (R58).

        Raises TurnOutside, BlobMissing, WorkspaceError.
        """
        return rewind(self.recorded, turn, workspaces=self.workspaces() if workspace else None)

    def fork(
        self,
        turn: int,
        *,
        swap: str | Sequence[str] = (),
        n: int = 1,
        check: str | None = None,
        progress: Progress = lambda _done, _all, _what: None,
        **options: Any,
    ) -> Comparison:
        """Branches after turn ``turn``: an arm for each swap, beside the control arm (R59, R61).

        Further ``options`` are the fields of ``Options``. Raises UsageError, TurnOutside,
        BlobMissing, SandboxMissing before anything is started.
        """
        swaps = [swap] if isinstance(swap, str) else list(swap)
        chosen = _options({"n": n, "check": check, **options})
        return fork(self.recorded, turn, swaps, options=chosen, progress=progress)

    def commitment(
        self,
        check: str,
        *,
        n: int = 20,
        announce: Callable[[Plan], None] = lambda _plan: None,
        progress: Progress = lambda _done, _all, _what: None,
        **options: Any,
    ) -> Commitment:
        """The last turn from which the run still succeeds more often than not (R61).

        Forks the control arm at some ten turns, ``n`` branches each; ``announce`` gets the plan
        (probes, model calls) before the first. Further ``options`` are the fields of ``Options``.
        An interrupt keeps the probes so far. Raises UsageError and what ``fork`` does.
        """
        chosen = _options({"n": n, "check": check, **options})
        return commitment(self.recorded, chosen, announce=announce, progress=progress)

    def commitment_plan(self, check: str, *, n: int = 20, **options: Any) -> Plan:
        """What ``commitment`` may cost at most; runs the check at the record's end, no model."""
        chosen = _options({"n": n, "check": check, **options})
        return plan(self.recorded, chosen, record_end(self.recorded, chosen))

    def when(self, check: str, **options: Any) -> When:
        """Which turn did it? ``check`` on the workspace of every recorded turn (R65)."""
        return when(self.recorded, check, workspaces=self.workspaces(), **options)

    def blame(self, path: str) -> Blame:
        """The turn and the calls that last changed a path of the workspace (R65)."""
        return blame(self.recorded, path, workspaces=self.workspaces())

    def history(self, path: str) -> pd.DataFrame:
        """The versions of a path: turn, what, sha256, size, mode, snapshot; oldest first (R65)."""
        import pandas as pd

        found = versions(self.recorded, path, workspaces=self.workspaces())
        return pd.DataFrame(found, columns=list(Version._fields))

    def replay(
        self, *, strict: bool = True, own_loop: Loop | str | None = None, isolated: bool = False
    ) -> Replayed:
        """The harness run again on the tape; with ``strict`` a difference raises Diverged (R51).

        ``own_loop`` is what made the run, where that was not branchkit's loop: a function, or
        ``"module:function"``. ``isolated`` replays in a process that can reach nothing (R54), for
        which the function has to be named.
        """
        named = own_loop if isinstance(own_loop, str) else None
        if isolated and own_loop is not named:
            raise UsageError(
                "an isolated replay imports its loop", hint='own_loop="module:function"'
            )
        if isolated:
            found = replay_alone(self.recorded.path, named)
        else:
            loop = own_loop if callable(own_loop) else load_loop(named)
            found = replay(self.recorded, loop)
        if strict and found.divergence is not None:
            step = found.divergence["step_id"]
            raise Diverged(f"{self.recorded.path.name}: step {step}", report=found.divergence)
        return found

    def verify(self, *, anchor: str | None = None) -> Verdict:
        """The hash chain checked anew."""
        return verify(self.recorded.path, anchor=anchor)

    def workspaces(self) -> Workspaces:
        """The store that this run's workspaces are restored into."""
        if self._workspaces is None:
            self._workspaces = Workspaces.open(store_directory())
        return self._workspaces

    def close(self) -> None:
        """Let go of the store and the pack."""
        if self._workspaces is not None:
            self._workspaces.close()
            self._workspaces = None
        self.recorded.close()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Run {self.recorded.path.name}: {self.turns} turns, {self.recorded.record.status}>"


def _options(given: dict[str, Any]) -> Options:
    try:
        return Options(**given)
    except TypeError as error:
        raise UsageError(
            f"fork: {error}", hint=f"options are {', '.join(Options._fields)}"
        ) from None


def open_run(path: Path | str, *, parent: Path | str | None = None) -> Run:
    """The run in a journal. Raises JournalDamaged, InputRefused."""
    return Run(path, parent=parent)


def compare(directory: Path | str, *, volatile: Path | str | None = None) -> Comparison:
    """The comparison of a fork that was run before, from its directory.

    ``volatile``: a file that ``calibrate`` wrote; what it masks is no difference. Raises
    InputRefused.
    """
    masks = () if volatile is None else load_masks(Path(volatile))
    return Comparison.load(Path(directory), masks=masks)


def calibrate(one: Path | str, other: Path | str, *, out: Path | str | None = None) -> Calibration:
    """What of the results of two recordings that do the same varies; ``out`` keeps the masks.

    Raises JournalDamaged, InputRefused.
    """
    sides = Recorded.open(one), Recorded.open(other)
    try:
        found = calibrated(*sides)
    finally:
        for side in sides:
            side.close()
    if out is not None:
        Path(out).write_text(json.dumps(found.to_json(), indent=1) + "\n", encoding="utf-8")
    return found
