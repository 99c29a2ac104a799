"""``branchkit.session``: a loop of your own, recorded and replayed.

def agent(s):
    messages = [s.input({"role": "user", "content": "What is 2 + 3?"})]
    while (reply := s.model(messages)).calls:
        messages += [reply.message, *(s.tool(call) for call in reply.calls)]
    return reply.text

with branchkit.session("run.journal.jsonl", "record", model="openai:NAME", tools=[add]) as s:
    agent(s)
with branchkit.session("run.journal.jsonl", "replay") as s:
    agent(s)                              # no model, no tool; a difference raises Diverged

After a crash, the same with ``"resume"`` goes on where the journal ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from branchkit.boundary.contract import ProbeAnswer
from branchkit.boundary.model import Model, ModelReply, ModelRequest
from branchkit.boundary.recording import Recording
from branchkit.boundary.replaying import Replaying
from branchkit.boundary.session import Session
from branchkit.boundary.settlement import Observation, Tools, Waiting
from branchkit.boundary.tape import TapeEnded
from branchkit.disk import crash_point
from branchkit.durable.answers import refuse_ended, reopened
from branchkit.durable.recover import Decide, Recovery, check_model
from branchkit.durable.resume import blobs_of, drift
from branchkit.errors import Diverged, InputRefused, UsageError
from branchkit.harness.live import new_run_id, versions, wall_clock
from branchkit.harness.models import open_model
from branchkit.harness.tools import Tool, schemas_of
from branchkit.harness.tools import tool as as_tool
from branchkit.journal.blobs import Blobs, store_directory
from branchkit.journal.events import Component, Message, TaskStarted
from branchkit.journal.file import Writer, damage_error, read
from branchkit.record.context import Contexts
from branchkit.record.record import Record

AnyModel = str | Model | Callable[[ModelRequest], Message]


@contextmanager
def session(
    journal: Path | str,
    mode: Literal["record", "resume", "replay"] = "record",
    *,
    model: AnyModel | None = None,
    tools: Sequence[Tool | Callable[..., object]] = (),
    task: str = "",
    seed: int = 0,
    decide: Decide | None = None,
) -> Iterator[Session]:
    """A session for a loop of your own.

    ``model`` is a spec, a Model, or a function from ModelRequest to an assistant message in OpenAI
    shape; ``tools`` are functions, plain ones counting as ``external``. An exception that leaves
    the block ends the run as ``failed`` and goes on. In replay, what the loop does otherwise than
    the journal says raises Diverged.

    ``resume`` goes on with a run that was cut off or that waited: the loop runs from its start over
    the recorded events, then live; ``decide`` is the policy that a call in doubt has to pass before
    it is sent again under its key. What the loop does otherwise than the journal raises
    ContextDrift; Waiting where a person has to say something first.

    Raises UsageError, JournalLocked, JournalDamaged.
    """
    path = Path(journal)
    if mode == "replay":
        yield from _replay(path)
        return
    if mode not in ("record", "resume"):
        raise UsageError(f"mode {mode!r} is neither record, resume nor replay")
    if model is None:
        raise UsageError(f"to {mode} needs a model", hint='model="openai:NAME"')
    functions = [_tool(one) for one in tools]
    if mode == "resume":
        yield from _resume(path, _model(model), functions, decide)
        return
    if path.exists():
        raise UsageError(
            f"{path.name} exists, and a run is never continued by accident",
            hint='give another name; go on with it: "resume"; or "replay" it',
        )
    yield from _record(path, _model(model), functions, task, seed)


def _record(path: Path, model: Model, tools: list[Tool], task: str, seed: int) -> Iterator[Session]:
    writer = Writer(path, run_id=new_run_id(), now=wall_clock)
    try:
        recording = _recording(writer, model, tools)
        current = Session(recording, tools=_declared(tools), seed=seed)
        current.begin(
            TaskStarted(
                task=task,
                harness="own",
                components={"model": Component(spec=model.spec)},
                tools=_declared(tools),
                budgets={},
                seed=seed,
                started_at=wall_clock(),
                versions=versions(model),
            )
        )
        yield from _until_end(current)
    finally:
        writer.close()
        model.close()


def _resume(
    path: Path, model: Model, tools: list[Tool], decide: Decide | None
) -> Iterator[Session]:
    try:
        with reopened(path) as run:
            crash_point("resume.locked")
            refuse_ended(path, run.record)
            started = run.events[0].payload
            if not isinstance(started, TaskStarted) or started.harness != "own":
                raise UsageError(
                    f"{path.name} is no run of a loop of your own",
                    hint="branchkit.resume goes on with branchkit's; a branch is forked again",
                )
            check_model(started.components["model"].spec, model.spec)
            readers = blobs_of(path, Blobs(store_directory() / "blobs"))
            recovery = Recovery(run, restorable=False, blobs=readers, decide=decide)
            recovery.check_held()
            recording = _recording(run.writer, model, tools, run.record)
            mode = recovery.behind(recording, _tools(tools))
            current = Session(mode, tools=_declared(tools), seed=started.seed)
            try:
                current.begin(started)
                yield from _until_end(current)
            except Diverged as diverged:
                raise drift(path, diverged) from None
    finally:
        model.close()


def _until_end(current: Session) -> Iterator[Session]:
    """The session, and after it the end of the run that fits how the block was left."""
    try:
        yield current
    except Waiting as held:
        current.finish("waiting", str(held))
        raise
    except Exception as error:
        current.finish("failed", f"{type(error).__name__}: {error}")
        raise
    current.finish("completed")


def _recording(
    writer: Writer, model: Model, tools: list[Tool], record: Record | None = None
) -> Recording:
    return Recording(
        writer,
        Blobs(store_directory() / "blobs"),
        model=model,
        tools=_tools(tools),
        clock=lambda _: wall_clock(),
        record=record,
    )


def _declared(tools: list[Tool]) -> list[dict[str, Any]]:
    return [one.declared() for one in schemas_of(tools)]


def _tools(tools: list[Tool]) -> Tools:
    by_name = {one.name: one for one in tools}

    def act(name: str, arguments: Mapping[str, Any], _turn: int, key: str) -> Observation:
        if name not in by_name:
            return Observation("error", f"there is no tool {name!r}")
        return Observation(*by_name[name].run(dict(arguments), key))

    def probe(name: str, arguments: Mapping[str, Any], key: str) -> ProbeAnswer:
        if name not in by_name:
            return ProbeAnswer("unknown", f"there is no tool {name!r}")
        return by_name[name].ask(dict(arguments), key)

    contracts = {one.name: one.schema.contract for one in tools}
    return Tools(act, probe, contracts, {one.name: one.schema.openai() for one in tools})


def _replay(path: Path) -> Iterator[Session]:
    events, damage = read(path)
    if damage:
        raise damage_error(path, damage[0])
    started = events[0].payload
    if not isinstance(started, TaskStarted):
        raise InputRefused(f"{path.name} does not begin with TaskStarted", hint="is it a branch?")
    mode = Replaying(events, Contexts(events, blobs_of(path, Blobs(store_directory() / "blobs"))))
    current = Session(mode, tools=started.tools, seed=started.seed)
    current.begin(started)
    try:
        yield from _until_end(current)
    except TapeEnded:
        return


class _Function:
    """A plain function as a model."""

    def __init__(self, function: Callable[[ModelRequest], Message]) -> None:
        self.spec = f"function:{getattr(function, '__name__', 'model')}"
        self._function = function

    def describe(self) -> dict[str, Any]:
        return {"function": self.spec}

    def reply(self, request: ModelRequest) -> ModelReply:
        message = self._function(request)
        return ModelReply(message=message, finish_reason="", usage={}, served_model=self.spec)

    def close(self) -> None:
        """Nothing is held."""


def _model(model: AnyModel) -> Model:
    if isinstance(model, str):
        return open_model(model)
    return _Function(model) if callable(model) else model


def _tool(one: Tool | Callable[..., object]) -> Tool:
    return one if isinstance(one, Tool) else as_tool(effect="external")(one)
