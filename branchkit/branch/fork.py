"""``fork``: many branches per arm beside a control arm, run and checked (R59, R61).

One swap is one arm. The control arm swaps nothing, has the same size and the same seeds; it is the
noise floor that every claim is held against. Branches run in worker processes, each in its own
sandbox; what one of them meets does not touch the others, the parent or its workspace.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Literal, NamedTuple

from branchkit import disk
from branchkit.branch.comparison import CONTROL, ArmPlan, Comparison, ForkFacts
from branchkit.branch.fanout import Lanes, Progress, run_all
from branchkit.branch.point import fork_point
from branchkit.branch.run import Job, Limits, branch_seed, verdict_of
from branchkit.branch.swap import parse_swap
from branchkit.errors import DaemonGone, SandboxMissing, UsageError
from branchkit.harness import bubblewrap
from branchkit.harness.components import component
from branchkit.harness.live import CHECK_TIMEOUT_S
from branchkit.harness.models import open_model
from branchkit.harness.sandbox import Sandbox
from branchkit.journal.blobs import store_directory
from branchkit.replay.recorded import PARENT_FILE, Recorded
from branchkit.workspace import VOLATILE, Workspaces
from branchkit.workspace.checkout import base_directory

LOCAL = "local:smollm2"
Backend = Literal["auto", "fuse", "copy"]


class Options(NamedTuple):
    """How a fork is run; every field has the default that its flag has."""

    n: int = 1
    sizes: Mapping[str, int] = {}  # arms that are to have another size than n, by name
    seed: int = 0
    check: str | None = None
    control: bool = True
    max_turns: int | None = None
    max_calls: int | None = None
    redeliver_from: int = 1
    workspace: str | None = None  # DIR or REPO@COMMIT, for a run without recorded workspace
    model: str | None = None  # for a run whose own model cannot be asked again (imports)
    isolated: bool = True
    jobs: int = os.cpu_count() or 1
    backend: Backend = "auto"
    store: Path | None = None
    paired: bool = False  # the paired test decides; to be said before there is anything to see


def fork(
    recorded: Recorded,
    turn: int,
    swaps: Sequence[str] = (),
    *,
    options: Options | None = None,
    progress: Progress = lambda _done, _all, _what: None,
) -> Comparison:
    """Branches from ``turn`` on: one arm a swap, and the control arm; returns when all have ended.

    An interrupt (KeyboardInterrupt) ends the workers and returns what is finished, marked
    ``partial``. Raises UsageError, TurnOutside, BlobMissing, SandboxMissing, JournalDamaged before
    anything is started.
    """
    chosen = options or Options()
    recorded, plans = _planned(recorded, turn, swaps, chosen)
    store = (chosen.store or store_directory()).absolute()
    parent_before = _bytes_hash(recorded.path)
    with ExitStack() as stack:
        workspaces = stack.enter_context(Workspaces.open(store, backend=chosen.backend))
        recorded.adopt_workspace(workspaces)
        base = _base(recorded, turn, workspaces, chosen)
        directory = _directory(store, recorded, turn)
        facts = _facts(recorded, turn, plans, chosen, _workspace_note(workspaces, base))
        if chosen.check is not None:
            facts = _checked_record(facts, recorded, workspaces, chosen)
        _write_notes(directory, facts)
        specs = {plan.name: _model_spec(recorded, plan, chosen) for plan in plans}
        model_url = _shared_model(stack, specs.values())
        jobs = _jobs(recorded, turn, plans, chosen, directory, workspaces, base, model_url)
        # The local model keeps one context in memory: branches in turn find theirs still there,
        # side by side each would read its whole context anew for every reply.
        lanes = Lanes(chosen.jobs, {name for name, spec in specs.items() if spec == LOCAL})
        results, partial = run_all(jobs, lanes, directory, progress)
        _drop_left(workspaces, jobs)
    unchanged = _bytes_hash(recorded.path) == parent_before
    return Comparison(
        recorded, facts, plans, results, partial=partial, parent_unchanged=unchanged,
        directory=directory,
    )  # fmt: skip


def _planned(
    recorded: Recorded, turn: int, swaps: Sequence[str], options: Options
) -> tuple[Recorded, list[ArmPlan]]:
    """The run that owns the turn and the arms, once everything that can be refused has been."""
    _refuse_nonsense(options)
    recorded.check_turn(turn, 0, recorded.turns)
    recorded = recorded.owner(turn)
    plans = _arms(recorded, swaps, options)
    for plan in plans:
        fork_point(
            recorded,
            turn,
            plan.swap,
            redeliver_from=options.redeliver_from,
            model=options.model,
        )
        _refuse_silent_model(recorded, plan, options)
    if options.isolated and not (probe := bubblewrap.probe()).ok:
        raise SandboxMissing(f"live branches need bubblewrap: {probe.detail}", hint=probe.remedy)
    return recorded, plans


def _facts(
    recorded: Recorded, turn: int, plans: Sequence[ArmPlan], options: Options, note: str
) -> ForkFacts:
    return ForkFacts(
        parent=str(recorded.path.absolute()),
        turn=turn,
        check=options.check,
        seed=options.seed,
        n=options.n,
        arms=[(plan.name, plan.swap.declared() if plan.swap else None, plan.n) for plan in plans],
        volatile=list(VOLATILE),
        record_ok=None,
        record_output="",
        workspace_note=note,
        paired=options.paired,
    )


def _refuse_nonsense(options: Options) -> None:
    for name, value in (
        ("-n", options.n), ("--jobs", options.jobs), ("--max-turns", options.max_turns),
        ("--max-calls", options.max_calls), ("--from", options.redeliver_from),
    ):  # fmt: skip
        if value is not None and value < 1:
            raise UsageError(f"{name} {value} is less than 1", hint="give a positive number")


def _arms(recorded: Recorded, swaps: Sequence[str], options: Options) -> list[ArmPlan]:
    components = dict(recorded.record.components)
    if options.model is not None:
        components["model"] = component("model", options.model)
    swapped = [parse_swap(text, components) for text in swaps]
    names = [swap.name for swap in swapped]
    if len(set(names)) < len(names):
        raise UsageError(f"the same arm twice: {', '.join(names)}", hint="raise -n instead")
    plans = [
        ArmPlan(name, swap, options.sizes.get(name, options.n))
        for name, swap in zip(names, swapped, strict=True)
    ]
    if options.control or not plans:
        plans.insert(0, ArmPlan(CONTROL, None, options.n))
    for arm, size in options.sizes.items():
        if arm not in names or size < 1:
            raise UsageError(
                f"size {size} for arm {arm!r}", hint=f"arms are {', '.join(names) or 'none'}"
            )
    return plans


def sizes_of(texts: Sequence[str]) -> dict[str, int]:
    """``ARM=N`` as sizes by arm. Raises UsageError."""
    sizes = {}
    for text in texts:
        arm, _, number = text.rpartition("=")
        if not arm or not number.isdigit():
            raise UsageError(f"--size {text!r} is no ARM=N", hint="model=local:smollm2=8")
        sizes[arm] = int(number)
    return sizes


def _base(recorded: Recorded, turn: int, workspaces: Workspaces, options: Options) -> str | None:
    """The base of branches where the run has no workspace of its own at this turn."""
    if recorded.record_after(turn).snapshot_at(turn) is not None:
        if options.workspace is not None:
            raise UsageError(
                f"{recorded.path.name} has a recorded workspace", hint="leave --workspace out"
            )
        return None
    if options.workspace is not None:
        return workspaces.add_base(base_directory(options.workspace, workspaces.store))
    empty = workspaces.store / "empty"
    empty.mkdir(exist_ok=True)
    return workspaces.add_base(empty)


def _workspace_note(workspaces: Workspaces, base: str | None) -> str:
    notes = []
    if base is not None:
        notes.append("the run has no recorded workspace: every branch starts from the given one")
    if workspaces.reason:
        notes.append(f"workspaces are copied, not mounted: {workspaces.reason}")
    return "; ".join(notes)


def _directory(store: Path, recorded: Recorded, turn: int) -> Path:
    """A new directory for this fork's journals."""
    forks = store / "forks"
    forks.mkdir(parents=True, exist_ok=True)
    stem = f"{recorded.record.run_id[:8]}-t{turn:04d}"
    number = 1
    while True:
        try:
            (directory := forks / f"{stem}-{number:03d}").mkdir()
        except FileExistsError:
            number += 1
        else:
            return directory


def _write_notes(directory: Path, facts: ForkFacts) -> None:
    disk.write_durably(directory / "fork.json", json.dumps(facts._asdict(), indent=1).encode())
    disk.write_durably(directory / PARENT_FILE, json.dumps({"journal": facts.parent}).encode())


def _checked_record(
    facts: ForkFacts, recorded: Recorded, workspaces: Workspaces, options: Options
) -> ForkFacts:
    """The check on the record's own end, which is shown first."""
    snapshot = recorded.record.snapshot_at(recorded.turns)
    if snapshot is None or options.check is None:
        return facts
    name = f"{recorded.record.run_id[:8]}-end"
    if any(branch.name == name for branch in workspaces.branches()):
        workspaces.branch(name).drop()
    branch = workspaces.create(name, snapshot=snapshot.id)
    try:
        with Sandbox(branch.path, isolated=options.isolated) as sandbox:
            outcome = sandbox.check(options.check, timeout_s=CHECK_TIMEOUT_S)
    finally:
        branch.drop()
    return facts._replace(record_ok=verdict_of(outcome.exit_code), record_output=outcome.output)


def record_passes(recorded: Recorded, options: Options) -> bool | None:
    """Whether the record's own end passes the check; None where that is not known."""
    store = (options.store or store_directory()).absolute()
    with Workspaces.open(store, backend=options.backend) as workspaces:
        recorded.adopt_workspace(workspaces)
        facts = _facts(recorded, recorded.turns, (), options, "")
        return _checked_record(facts, recorded, workspaces, options).record_ok


def _shared_model(stack: ExitStack, specs: Iterable[str]) -> str | None:
    """One server of the local model for all branches that ask it; None if none does."""
    if LOCAL not in specs:
        return None
    from branchkit.harness.local_model import serve

    served = serve()
    stack.callback(served.child.stop)
    return served.url


def _refuse_silent_model(recorded: Recorded, plan: ArmPlan, options: Options) -> None:
    """Raise UsageError now, and not in every branch, where an arm's model cannot be asked."""
    swapped = plan.swap.part if plan.swap and plan.swap.component == "model" else None
    own = recorded.record.components.get("model")
    part = swapped or (component("model", options.model) if options.model else own)
    if part is None or part.spec.startswith("imported:"):
        name = part.spec.removeprefix("imported:") if part else "unknown"
        raise UsageError(
            f"{recorded.path.name}: its model ({name}) cannot be asked from here",
            hint="say who answers in every arm: --model openai:NAME[@URL] or --model local:smollm2",
        )
    open_model(part.spec, part.content).close()


def _model_spec(recorded: Recorded, plan: ArmPlan, options: Options) -> str:
    """Which model an arm asks."""
    if plan.swap is not None and plan.swap.component == "model":
        return plan.swap.part.spec
    own = recorded.record.components.get("model")
    return options.model or (own.spec if own else "")


def _jobs(
    recorded: Recorded,
    turn: int,
    plans: Sequence[ArmPlan],
    options: Options,
    directory: Path,
    workspaces: Workspaces,
    base: str | None,
    model_url: str | None,
) -> list[Job]:
    return [
        Job(
            parent=str(recorded.path.absolute()),
            turn=turn,
            swap=plan.swap,
            arm=plan.name,
            number=number,
            seed=branch_seed(options.seed, number),
            directory=str(directory),
            store=str(workspaces.store),
            backend="fuse" if workspaces.backend == "fuse" else "copy",
            limits=Limits(options.max_turns, options.max_calls),
            check=options.check,
            base=base,
            redeliver_from=options.redeliver_from,
            isolated=options.isolated,
            model_url=model_url,
            model=options.model,
        )
        # Number by number, so that an interrupted fork has about as many of every arm.
        for number in range(max(plan.n for plan in plans))
        for plan in plans
        if number < plan.n
    ]


def _drop_left(workspaces: Workspaces, jobs: Sequence[Job]) -> None:
    """Drop the workspaces of workers that were killed: the others have dropped their own."""
    names = {job.workspace for job in jobs}
    with suppress(DaemonGone):  # it died with its branches; what is finished is still worth showing
        for branch in workspaces.branches():
            if branch.name in names:
                branch.drop()


def _bytes_hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def estimate(recorded: Recorded, turn: int, swaps: Sequence[str], options: Options) -> int:
    """The largest number of model calls that a fork can make. Raises what ``fork`` would."""
    _refuse_nonsense(options)
    recorded.check_turn(turn, 0, recorded.turns)
    branches = sum(plan.n for plan in _arms(recorded, swaps, options))
    turns = options.max_turns or recorded.turns - turn + 10
    if options.max_calls is not None:
        turns = min(turns, options.max_calls)
    return branches * turns
