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
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

from branchkit.boundary.model import Model, ModelReply, ModelRequest
from branchkit.boundary.recording import Observation, Recording
from branchkit.boundary.replaying import Replaying
from branchkit.boundary.session import Session
from branchkit.boundary.tape import TapeEnded
from branchkit.errors import InputRefused, UsageError
from branchkit.harness.live import versions
from branchkit.harness.models import open_model
from branchkit.harness.tools import Tool, schemas_of
from branchkit.harness.tools import tool as as_tool
from branchkit.journal.blobs import Blobs, first_of, store_directory
from branchkit.journal.events import Component, Message, TaskStarted
from branchkit.journal.file import Writer, damage_error, read
from branchkit.journal.pack import Pack, pack_path
from branchkit.record.context import Contexts

AnyModel = str | Model | Callable[[ModelRequest], Message]


@contextmanager
def session(
    journal: Path | str,
    mode: Literal["record", "replay"] = "record",
    *,
    model: AnyModel | None = None,
    tools: Sequence[Tool | Callable[..., object]] = (),
    task: str = "",
    seed: int = 0,
) -> Iterator[Session]:
    """A session for a loop of your own.

    ``model`` is a spec, a Model, or a function from ModelRequest to an assistant message in OpenAI
    shape; ``tools`` are functions, plain ones counting as ``external``. An exception that leaves
    the block ends the run as ``failed`` and goes on. In replay, what the loop does otherwise than
    the journal says raises Diverged. Raises UsageError, JournalLocked, JournalDamaged.
    """
    path = Path(journal)
    if mode == "replay":
        yield from _replay(path)
    elif mode == "record":
        if model is None:
            raise UsageError("recording needs a model", hint='model="openai:NAME"')
        if path.exists():
            raise UsageError(
                f"{path.name} exists, and a run is never continued by accident",
                hint="give another name, or replay it",
            )
        yield from _record(path, _model(model), [_tool(one) for one in tools], task, seed)
    else:
        raise UsageError(f"mode {mode!r} is neither record nor replay")


def _record(path: Path, model: Model, tools: list[Tool], task: str, seed: int) -> Iterator[Session]:
    schemas = [one.openai() | {"effect": one.effect} for one in schemas_of(tools)]
    by_name = {one.name: one for one in tools}

    def act(name: str, arguments: Mapping[str, Any], _turn: int) -> Observation:
        if name not in by_name:
            return Observation("error", f"there is no tool {name!r}")
        return Observation(*by_name[name].run(dict(arguments)))

    writer = Writer(path, run_id=str(uuid4()), now=_now)
    try:
        recording = Recording(
            writer,
            Blobs(store_directory() / "blobs"),
            model=model,
            tools=act,
            clock=lambda _: _now(),
        )
        current = Session(recording, tools=schemas, seed=seed)
        current.begin(
            TaskStarted(
                task=task,
                harness="own",
                components={"model": Component(spec=model.spec)},
                tools=schemas,
                budgets={},
                seed=seed,
                started_at=_now(),
                versions=versions(model),
            )
        )
        try:
            yield current
        except Exception as error:
            current.finish("failed", f"{type(error).__name__}: {error}")
            raise
        current.finish("completed")
    finally:
        writer.close()
        model.close()


def _replay(path: Path) -> Iterator[Session]:
    events, damage = read(path)
    if damage:
        raise damage_error(path, damage[0])
    started = events[0].payload
    if not isinstance(started, TaskStarted):
        raise InputRefused(f"{path.name} does not begin with TaskStarted", hint="is it a branch?")
    readers = [Blobs(store_directory() / "blobs").get]
    if pack_path(path).exists():
        readers.insert(0, Pack(pack_path(path)).blob)
    mode = Replaying(events, Contexts(events, first_of(*readers)))
    current = Session(mode, tools=started.tools, seed=started.seed)
    current.begin(started)
    try:
        yield current
    except TapeEnded:
        return
    except Exception as error:
        current.finish("failed", f"{type(error).__name__}: {error}")
        raise
    current.finish("completed")


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


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")
