"""The runs that are killed, one for each class of tool, and how each goes on afterwards.

Three calls in two turns, always the same: what differs is what a call changes, and how it can be
settled. ``external`` has three contracts. The loop, the model and the order are the same for all.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

from branchkit import session as run_of
from branchkit.boundary.model import ModelReply, ModelRequest
from branchkit.boundary.recording import Recording, SnapshotFacts
from branchkit.boundary.session import Session, Waiting
from branchkit.boundary.settlement import Observation, Tools
from branchkit.durable.answers import reopened
from branchkit.durable.recover import Recovery
from branchkit.harness.tools import Key, ProbeAnswer, Tool, tool
from branchkit.journal.blobs import Blobs
from branchkit.journal.events import Component, Message, TaskStarted
from branchkit.journal.file import Writer
from branchkit.testing.crash import arm
from branchkit.testing.effect_service import perform
from branchkit.testing.effect_service import probe as ask
from branchkit.workspace import Branch, Workspaces

# "lied" is for the check of the check: the tool promises keys, the service does not keep them.
Kind = Literal["pure", "workspace", "plain", "keyed", "probe", "lied"]
KINDS: tuple[Kind, ...] = ("pure", "workspace", "plain", "keyed", "probe")
TURNS = ((1,), (2, 3))  # which calls each turn makes
CALLS = ("t0001.1", "t0002.1", "t0002.2")
NOW = "2026-01-01T00:00:00+00:00"


class Place(NamedTuple):
    """Where a process dies: the first time it passes the point after it was armed."""

    crash_point: str
    armed: Literal["start", "before", "inside"]  # of the process, of the call, in the tool


class Case(NamedTuple):
    """One run. ``at`` is the call, 1 to 3, that is under way when it is killed."""

    folder: Path
    kind: Kind
    url: str
    at: int

    @property
    def journal(self) -> Path:
        return self.folder / "run.journal.jsonl"

    def operation(self, number: int) -> str:
        """What call ``number`` is to do once."""
        return f"{self.folder.name}/{number}"


def model_of(case: Case) -> Callable[[ModelRequest], Message]:
    """A model without a will of its own: the calls of ``TURNS``, then the end."""

    def reply(request: ModelRequest) -> Message:
        if request.turn > len(TURNS):
            return {"role": "assistant", "content": "done"}
        wanted = [
            {
                "id": f"c{number}",
                "type": "function",
                "function": {"name": "act", "arguments": json.dumps({"number": number})},
            }
            for number in TURNS[request.turn - 1]
        ]
        return {"role": "assistant", "content": "", "tool_calls": wanted}

    return reply


def loop(session: Session, before: Callable[[int], None]) -> None:
    """The harness; ``before`` is told of each call by its number."""
    messages = [session.input({"role": "user", "content": "go"})]
    number = 0
    while (answer := session.model(messages)).calls:
        messages.append(answer.message)
        for call in answer.calls:
            number += 1
            before(number)
            messages.append(session.tool(call))


class Arming(NamedTuple):
    """Arms a crash point at the right moment of one process, or never."""

    case: Case
    place: Place | None

    def before(self, number: int) -> None:
        """A call is about to be proposed."""
        if self.place and self.place.armed == "before" and number == self.case.at:
            arm(self.place.crash_point)

    def inside(self, number: int) -> None:
        """A tool has done what it does."""
        if self.place and self.place.armed == "inside" and number == self.case.at:
            arm(self.place.crash_point)


def record(case: Case, place: Place | None) -> str:
    """The run from its beginning; how it ended."""
    return _run(case, "record", Arming(case, place))


def resume(case: Case, place: Place | None = None) -> str:
    """Go on with it; ``waiting: QUESTION`` where a person has to say something."""
    return _run(case, "resume", Arming(case, place))


def _run(case: Case, mode: Literal["record", "resume"], arming: Arming) -> str:
    if arming.place and arming.place.armed == "start":
        arm(arming.place.crash_point)
    try:
        if case.kind == "workspace":
            with_workspace(case, mode, arming)
        else:
            tools = [_pure(arming) if case.kind == "pure" else external(case, arming)]
            with run_of(case.journal, mode, model=model_of(case), tools=tools) as session:
                loop(session, arming.before)
    except Waiting as waiting:
        return f"waiting: {waiting}"
    return "completed"


def _pure(arming: Arming) -> Tool:
    def act(number: int) -> str:
        arming.inside(number)
        return f"{number} squared is {number * number}"

    return tool(effect="pure")(act)


def external(case: Case, arming: Arming) -> Tool:
    """One request to the counting service for each call."""

    def act(number: int, key: Key) -> str:
        receipt = perform(case.url, case.operation(number), key=key).receipt
        arming.inside(number)
        return receipt

    def look(arguments: dict[str, Any], _key: str) -> ProbeAnswer:
        known = ask(case.url, case.operation(arguments["number"]))
        if known.state == "queued":
            return ProbeAnswer("unknown", "it waits in a queue")
        state: Literal["completed", "not_done"] = (
            "completed" if known.state == "done" else "not_done"
        )
        return ProbeAnswer(state, known.receipt or "")

    probe = look if case.kind == "probe" else None
    return tool(effect="external", key=case.kind in ("keyed", "lied"), probe=probe)(act)


# --- files: what the tool changes is a workspace, which is restored and done again ---


def with_workspace(case: Case, mode: Literal["record", "resume"], arming: Arming) -> None:
    """The same loop on a branch of a workspace; the tool appends a line to a file there."""
    with Workspaces.open(case.folder / "store", backend="copy") as workspaces:
        blobs = Blobs(case.folder / "store" / "blobs")
        if mode == "record":
            base = _base(case, workspaces)
            branch = workspaces.create("run", base=base)
            writer = Writer(case.journal, run_id=case.folder.name, now=lambda: NOW)
            recording = _recording(case, writer, blobs, branch, arming)
            session = Session(recording, tools=_declared())
            session.begin(_started(base))
            loop(session, arming.before)
            session.finish("completed")
            writer.close()
            return
        with reopened(case.journal) as run:
            recovery = Recovery(run, restorable=True, blobs=blobs.get)
            started = run.events[0].payload
            assert isinstance(started, TaskStarted)
            branch = _restored(workspaces, recovery.plan.snapshot, started.base)
            recording = _recording(
                case, run.writer, blobs, branch, arming, recovery, recovery.plan.snapshot
            )
            tools = Tools(_append(branch, arming))
            session = Session(recovery.behind(recording, tools), tools=_declared())
            session.begin(started)
            loop(session, arming.before)
            session.finish("completed")


def _base(case: Case, workspaces: Workspaces) -> str:
    folder = case.folder / "base"
    folder.mkdir()
    (folder / "log").write_text("begin\n")
    return workspaces.add_base(folder)


def _restored(workspaces: Workspaces, snapshot: str | None, base: str | None) -> Branch:
    for stale in workspaces.branches():
        stale.drop()
    return workspaces.create("run", snapshot=snapshot, base=None if snapshot else base)


def _recording(
    case: Case,
    writer: Writer,
    blobs: Blobs,
    branch: Branch,
    arming: Arming,
    recovery: Recovery | None = None,
    last_snapshot: str | None = None,
) -> Recording:
    def snapshot() -> SnapshotFacts:
        frozen = branch.freeze()
        return SnapshotFacts(frozen.id, frozen.tree_hash, frozen.files, frozen.changed_bytes)

    return Recording(
        writer,
        blobs,
        model=_Scripted(model_of(case)),
        tools=Tools(_append(branch, arming)),
        clock=lambda _: NOW,
        snapshot=snapshot,
        last_snapshot=last_snapshot,
        record=None if recovery is None else recovery.record,
    )


def _append(branch: Branch, arming: Arming) -> Callable[..., Observation]:
    def act(_name: str, arguments: Any, _turn: int, _key: str) -> Observation:
        number = int(arguments["number"])
        with (branch.path / "log").open("a") as stream:
            stream.write(f"{number}\n")
        arming.inside(number)
        return Observation("completed", f"line {number}")

    return act


class _Scripted:
    """``model_of`` where a Model is asked for."""

    spec = "function:reply"

    def __init__(self, function: Callable[[ModelRequest], Message]) -> None:
        self._function = function

    def describe(self) -> dict[str, Any]:
        return {}

    def reply(self, request: ModelRequest) -> ModelReply:
        message = self._function(request)
        return ModelReply(message=message, finish_reason="", usage={}, served_model=self.spec)

    def close(self) -> None:
        """Nothing is held."""


def _declared() -> list[dict[str, Any]]:
    schema = {"name": "act", "description": "", "parameters": {"type": "object"}}
    return [{"type": "function", "function": schema, "effect": "workspace"}]


def _started(base: str) -> TaskStarted:
    return TaskStarted(
        task="go",
        harness="own",
        components={"model": Component(spec=_Scripted.spec)},
        tools=_declared(),
        budgets={},
        seed=0,
        started_at=NOW,
        versions={},
        base=base,
    )


def lines_of(case: Case) -> list[str]:
    """What stands in the file of the workspace as the last checkpoint keeps it."""
    with Workspaces.open(case.folder / "store", backend="copy") as workspaces:
        (branch,) = workspaces.branches()
        with suppress(FileNotFoundError):
            return (branch.path / "log").read_text().splitlines()
        return []
