"""``resume``: go on with a run of branchkit's own loop that was cut off, or that waited (R40).

    resume("run.journal.jsonl")

For a loop of your own it is ``branchkit.session(path, "resume", model=…, tools=…)``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from branchkit.boundary.settlement import Waiting
from branchkit.disk import crash_point
from branchkit.durable.answers import ENDED, Reopened, reopened
from branchkit.durable.recover import Recovery
from branchkit.durable.states import CallRow, rows
from branchkit.errors import ContextDrift, Diverged, UsageError
from branchkit.harness import loop
from branchkit.harness.components import DEFAULTS, build
from branchkit.harness.live import Setting, go_live
from branchkit.journal.blobs import BlobReader, Blobs, first_of, store_directory
from branchkit.journal.events import ModelReplied, Settled, TaskStarted
from branchkit.journal.format import Json
from branchkit.journal.pack import Pack, pack_path
from branchkit.record.record import Record
from branchkit.workspace import Branch, Workspaces, adopt


class Resumption(NamedTuple):
    """How a resume went. ``status`` is the run's: ``waiting`` where a person has to say something.

    ``prefill_tokens`` is the size of the context that a provider reads anew, where it said so.
    """

    journal: str
    status: str
    reason: str
    turns: int
    resumed_at_turn: int
    settled: list[Settled]
    redone: list[str]
    snapshot: str | None
    prefill_tokens: int
    waits_for: list[CallRow]

    def to_json(self) -> dict[str, Json]:
        """The fields of ``branchkit resume --json``."""
        return self._asdict() | {
            "settled": [
                {"call_id": one.call_id, "outcome": one.outcome, "by": one.by, "detail": one.detail}
                for one in self.settled
            ],
            "waits_for": [row._asdict() for row in self.waits_for],
        }


def resume(
    journal: Path | str,
    *,
    workspaces: Workspaces | None = None,
    blobs: Blobs | None = None,
    isolated: bool = True,
    model_url: str | None = None,
    after_turn: Callable[[int], None] = lambda _turn: None,
) -> Resumption:
    """Go on with the run in ``journal`` to its end, or to where a person has to say something.

    ``workspaces`` and ``blobs`` are those of the default store unless given. Recorded replies and
    results are kept, none is asked for again; a run that has ended is left alone and its status
    returned. Raises JournalLocked (another process is at work on it), JournalDamaged, ContextDrift
    (today's code would assemble another context), UsageError.
    """
    if workspaces is None:
        with Workspaces.open(store_directory()) as opened:
            return resume(
                journal, workspaces=opened, blobs=blobs, isolated=isolated, model_url=model_url,
                after_turn=after_turn,
            )  # fmt: skip
    path = Path(journal)
    store = blobs or Blobs(workspaces.store / "blobs")
    with reopened(path) as run:
        crash_point("resume.locked")
        if run.record.status in ENDED:
            return _report(path, run.record, f"it had ended: {run.record.status}")
        started = run.events[0].payload
        if not isinstance(started, TaskStarted) or started.harness != "branchkit":
            raise UsageError(
                f"{path.name} is no run of branchkit's own loop",
                hint='a loop of yours: branchkit.session(path, "resume", …); a branch: fork again',
            )
        decide = build(started.components).decide
        recovery = Recovery(run, restorable=True, blobs=blobs_of(path, store), decide=decide)
        try:
            recovery.check_held()
        except Waiting as held:
            return _report(path, run.record, str(held), recovery)._replace(status="waiting")
        branch = _restored(run, recovery, workspaces, path)
        crash_point("resume.restored")
        try:
            return _go_on(
                path, run, recovery, branch, started, store, isolated, model_url, after_turn
            )
        finally:
            branch.drop()


def _go_on(
    path: Path,
    run: Reopened,
    recovery: Recovery,
    branch: Branch,
    started: TaskStarted,
    blobs: Blobs,
    isolated: bool,
    model_url: str | None,
    after_turn: Callable[[int], None],
) -> Resumption:
    setting = Setting(
        path, run.writer.run_id, branch, blobs, DEFAULTS | started.components, started.seed,
        started.started_at, isolated, model_url=model_url, snapshot=recovery.plan.snapshot,
    )  # fmt: skip
    harness = build(started.components)
    max_turns = started.budgets.get("max_turns", 100)
    try:
        with go_live(setting, record=run.record, writer=run.writer, behind=recovery.behind) as live:
            live.session.begin(started)
            context = loop.opening(live.session, harness, started.task)
            ending = loop.run(
                live.session, harness, context, max_turns=max_turns, after_turn=after_turn
            )
            return _report(path, live.session.record, ending.reason, recovery)
    except Waiting as held:
        return _report(path, recovery.record, str(held), recovery)
    except Diverged as diverged:
        raise drift(path, diverged) from None


def drift(path: Path, diverged: Diverged) -> ContextDrift:
    """The error for a run whose prefix today's code does not reproduce."""
    return ContextDrift(
        f"{path.name} is not what today's code and tools make of it: {diverged.message}",
        hint="resume it with the code that recorded it; nothing new was sent",
        report=diverged.report,
    )


def blobs_of(path: Path, store: Blobs) -> BlobReader:
    """The blobs of a run: those of its pack, if it has one, and those of the store."""
    readers = [store.get]
    if pack_path(path).exists():
        readers.insert(0, Pack(pack_path(path)).blob)
    return first_of(*readers)


def _restored(run: Reopened, recovery: Recovery, workspaces: Workspaces, path: Path) -> Branch:
    """The workspace as the nearest checkpoint has it, on a branch of its own.

    What the killed process left of its branch is dropped: half of what it holds, no event tells.
    """
    if pack_path(path).exists():
        pack = Pack(pack_path(path))
        adopt(workspaces, read=pack.read, names=pack.names)
        pack.close()
    name = f"run-{run.writer.run_id[:8]}"
    for stale in workspaces.branches():
        if stale.name == name:
            stale.drop()
    snapshot = recovery.plan.snapshot
    return workspaces.create(name, snapshot=snapshot, base=None if snapshot else run.record.base)


def _report(
    path: Path, record: Record, reason: str, recovery: Recovery | None = None
) -> Resumption:
    replies = [
        event.payload
        for event in (recovery.plan.made if recovery else [])
        if isinstance(event.payload, ModelReplied)
    ]
    return Resumption(
        journal=str(path),
        status=record.status,
        reason=reason,
        turns=record.turn,
        resumed_at_turn=len(replies),
        settled=recovery.settled if recovery else [],
        redone=[call.call_id for call in recovery.plan.redo] if recovery else [],
        snapshot=recovery.plan.snapshot if recovery else None,
        prefill_tokens=replies[-1].usage.get("prompt_tokens", 0) if replies else 0,
        waits_for=[row for row in rows(record) if row.waits_for],
    )
