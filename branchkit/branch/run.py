"""One branch, live: its own workspace, sandbox, journal and seed; runs in a worker process."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

from branchkit import disk
from branchkit.boundary.calls import with_own_ids
from branchkit.boundary.model import Model, ModelReply, ModelRequest
from branchkit.branch.point import ForkPoint, fork_point
from branchkit.branch.swap import Swap
from branchkit.errors import BranchkitError
from branchkit.harness import loop
from branchkit.harness.live import Live, Setting, go_live, new_run_id
from branchkit.journal.blobs import Blobs
from branchkit.journal.events import EndStatus, Forked, Message
from branchkit.replay.recorded import Recorded
from branchkit.workspace import Branch, Workspaces

OUTPUT_LIMIT = 4000  # characters of a check's output that are kept


class Limits(NamedTuple):
    """What a branch may use. ``max_turns`` counts live turns; None means: recorded rest + 10."""

    max_turns: int | None = None
    max_calls: int | None = None


class Job(NamedTuple):
    """One branch to run, as plain values that can cross a process border."""

    parent: str
    turn: int
    swap: Swap | None
    arm: str
    number: int
    seed: int
    directory: str  # of this fork: journals go here
    store: str
    backend: Literal["auto", "fuse", "copy"]
    limits: Limits
    check: str | None
    base: str | None  # id of a base to start from where the run has no snapshot
    redeliver_from: int
    isolated: bool
    model_url: str | None
    model: str | None  # asked instead of the run's own (imports), in every arm

    @property
    def journal(self) -> Path:
        """Where this branch is journaled."""
        return Path(self.directory) / f"{self.arm_file}-{self.number:04d}.journal.jsonl"

    @property
    def workspace(self) -> str:
        """The name of this branch's workspace in the store."""
        return f"{Path(self.directory).name}-{self.arm_file}-{self.number:04d}"

    @property
    def arm_file(self) -> str:
        """The arm's name as a part of a file name."""
        return re.sub(r"[^A-Za-z0-9.]+", "-", self.arm).strip("-.")[:40] or "arm"


class Result(NamedTuple):
    """How a branch ended. ``ok`` is the check's verdict, None where there is none."""

    arm: str
    number: int
    seed: int
    journal: str
    status: EndStatus | None
    reason: str
    ok: bool | None
    check_output: str
    snapshot: str | None
    error: str | None = None


def branch_seed(seed: int, number: int) -> int:
    """The seed of branch ``number``: common to all arms, so that they can be compared in pairs."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{number}".encode()).digest()[:4], "big")


def run_branch(job: Job) -> Result:
    """Run one branch from its fork to its end and check it. Never touches the parent.

    What goes wrong with this branch alone is in ``error``: the others go on.
    """
    journal = job.journal
    journal.unlink(missing_ok=True)  # a half-written try of an interrupted fork
    try:
        with Workspaces.open(Path(job.store), backend=job.backend) as workspaces:
            return _run(job, journal, workspaces)
    except (BranchkitError, OSError) as error:  # OSError: its mount went, its disk is full
        return Result(
            job.arm, job.number, job.seed, str(journal), None, "", None, "", None, str(error)
        )


def _run(job: Job, journal: Path, workspaces: Workspaces) -> Result:
    recorded = Recorded.open(job.parent)
    point = fork_point(
        recorded, job.turn, job.swap, redeliver_from=job.redeliver_from, model=job.model
    )
    with suppress(BranchkitError):
        workspaces.branch(job.workspace).drop()
    branch = workspaces.create(
        job.workspace, snapshot=point.snapshot, base=None if point.snapshot else job.base
    )
    try:
        return _live(job, journal, recorded, point, branch)
    finally:
        branch.drop()
        recorded.close()


def _live(job: Job, journal: Path, recorded: Recorded, point: ForkPoint, branch: Branch) -> Result:
    run_id = new_run_id()
    setting = Setting(
        journal,
        run_id,
        branch,
        Blobs(Path(job.store) / "blobs"),
        point.components,
        job.seed,
        recorded.started.started_at,
        job.isolated,
        job.limits.max_calls,
        job.model_url,
        escalate=False,
    )
    live_turns = job.limits.max_turns or recorded.turns - job.turn + 10
    max_turns = job.turn + live_turns
    with go_live(setting, record=point.record, base=point.base, wrap=_wrapped(point)) as live:
        live.session.begin(_forked(job, point, recorded, max_turns))
        disk.crash_point("branch_began")
        ending = loop.run(live.session, point.harness, point.context, max_turns=max_turns)
        ok, output = _verdict(job, live, ending)
        return Result(
            job.arm, job.number, job.seed, str(journal), ending.status, ending.reason, ok, output,
            live.snapshot().id,
        )  # fmt: skip


def _forked(job: Job, point: ForkPoint, recorded: Recorded, max_turns: int) -> Forked:
    return Forked(
        parent_run_id=recorded.events[0].run_id,
        parent_seq=point.event.seq,
        parent_event_hash=point.event.event_hash,
        turn=job.turn,
        arm=job.arm,
        seed=job.seed,
        swap=job.swap.declared() if job.swap else None,
        components=dict(point.components),
        budgets={"max_turns": max_turns},
        snapshot=point.snapshot,
        redelivered_from=job.redeliver_from,
    )


def _verdict(job: Job, live: Live, ending: loop.Ending) -> tuple[bool | None, str]:
    """Exit 0 is success, 1-125 failure; a time-out, >= 126 or a spent budget is no verdict."""
    if job.check is None:
        return None, ""
    if ending.status != "completed":
        return None, f"not checked: the branch ended {ending.status} ({ending.reason})"
    outcome = live.check(job.check)
    return verdict_of(outcome.exit_code), outcome.output[-OUTPUT_LIMIT:]


def verdict_of(exit_code: int | None) -> bool | None:
    """What an exit code of a check says."""
    if exit_code is None or exit_code >= 126 or exit_code < 0:
        return None
    return exit_code == 0


class _Dictated:
    """The model of a what-if: says the given reply once, then lets the real one speak."""

    def __init__(self, model: Model, turn: int, message: Message) -> None:
        self.spec = model.spec
        self._model, self._turn, self._message = model, turn, message

    def describe(self) -> dict[str, Any]:
        return self._model.describe()

    def close(self) -> None:
        self._model.close()

    def reply(self, request: ModelRequest) -> ModelReply:
        if request.turn != self._turn:
            return self._model.reply(request)
        return ModelReply(
            message=with_own_ids(self._message, request.turn),
            finish_reason="dictated",
            usage={},
            served_model="dictated by the what-if, no model",
        )


def _wrapped(point: ForkPoint) -> Callable[[Model], Model]:
    message = point.decision
    if message is None:
        return lambda model: model
    return lambda model: _Dictated(model, point.turn + 1, message)
