"""A live run: workspace, sandbox, model and journal put together, and taken down again.

Both a recording from the start and a branch are made of this; they differ in the first event, the
record they continue and the context they begin with.
"""

from __future__ import annotations

import base64
import functools
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from branchkit import __version__, disk
from branchkit.boundary.contract import ProbeAnswer
from branchkit.boundary.environment import Entropy, TurnClock, git_environment
from branchkit.boundary.model import Model
from branchkit.boundary.recording import Recording, SnapshotFacts
from branchkit.boundary.session import Base, Mode, Session
from branchkit.boundary.settlement import Observation, Tools
from branchkit.errors import UsageError
from branchkit.harness.models import open_model
from branchkit.harness.sandbox import CheckOutcome, Sandbox
from branchkit.harness.tools import STANDARD
from branchkit.journal.blobs import Blobs
from branchkit.journal.events import Component
from branchkit.journal.file import Writer
from branchkit.journal.redact import VERSION as REDACTION
from branchkit.record.record import Record
from branchkit.workspace import Branch

CHECK_TIMEOUT_S = 120.0


class Live(NamedTuple):
    """An open live run."""

    session: Session
    tools: list[dict[str, Any]]  # schemas with branchkit's "effect" beside
    model: Model
    check: Callable[[str], CheckOutcome]
    snapshot: Callable[[], SnapshotFacts]


class Setting(NamedTuple):
    """What a live run runs on. ``isolated`` False runs tools unconfined (``--no-sandbox``)."""

    journal: Path
    run_id: str
    branch: Branch
    blobs: Blobs
    components: Mapping[str, Component]
    seed: int
    started_at: str
    isolated: bool = True
    max_calls: int | None = None
    model_url: str | None = None  # an already running server for a local model
    escalate: bool = True  # ask a person about calls that got no answer
    snapshot: str | None = None  # what the workspace was made from


@contextmanager
def go_live(
    setting: Setting,
    *,
    record: Record | None = None,
    base: Base | None = None,
    wrap: Callable[[Model], Model] = lambda model: model,
    writer: Writer | None = None,
    behind: Callable[[Recording, Tools], Mode] = lambda recording, _tools: recording,
) -> Iterator[Live]:
    """Open everything a live run needs; on leaving, close it whatever happened.

    ``wrap`` may put something in front of the model (a dictated reply), ``behind`` something in
    front of the recording (a tape, when a run is resumed). A ``writer`` that is given is the
    caller's to close.

    Raises SandboxMissing, ToolError, UsageError, DependencyMissing, JournalLocked.
    """
    clock = TurnClock(setting.started_at)
    with ExitStack() as stack:
        model = wrap(open_model_of(setting))
        stack.callback(model.close)
        sandbox = stack.enter_context(open_sandbox(setting, _after_others(setting, stack)))
        if writer is None:
            writer = Writer(setting.journal, run_id=setting.run_id, now=wall_clock)
            stack.callback(writer.close)

        def snapshot() -> SnapshotFacts:
            frozen = setting.branch.freeze()
            return SnapshotFacts(frozen.id, frozen.tree_hash, frozen.files, frozen.changed_bytes)

        tools = _tools(sandbox, clock)
        recording = Recording(
            writer,
            setting.blobs,
            model=model,
            tools=tools,
            clock=lambda turn: clock.at(turn).isoformat(),
            entropy=Entropy(setting.seed),
            snapshot=snapshot,
            last_snapshot=setting.snapshot,
            record=record,
            max_calls=setting.max_calls,
            escalate=setting.escalate,
        )
        declared = [schema.declared() for schema in sandbox.schemas]
        session = Session(behind(recording, tools), tools=declared, seed=setting.seed, base=base)

        def check(command: str) -> CheckOutcome:
            environment = git_environment(clock, session.turn)
            return sandbox.check(command, env=environment, timeout_s=CHECK_TIMEOUT_S)

        yield Live(session, declared, model, check, snapshot)


def _tools(sandbox: Sandbox, clock: TurnClock) -> Tools:
    """The tools of ``sandbox`` as the boundary reaches them."""

    def act(name: str, arguments: Mapping[str, Any], turn: int, key: str) -> Observation:
        environment = git_environment(clock, turn)
        return Observation(*sandbox.call(name, dict(arguments), key=key, env=environment))

    def probe(name: str, arguments: Mapping[str, Any], key: str) -> ProbeAnswer:
        return sandbox.probe(name, dict(arguments), key)

    contracts = {schema.name: schema.contract for schema in sandbox.schemas}
    schemas = {schema.name: schema.openai() for schema in sandbox.schemas}
    return Tools(act, probe, contracts, schemas)


def open_model_of(setting: Setting) -> Model:
    """The model component of ``setting``, opened."""
    part = setting.components.get("model")
    if part is None:
        raise UsageError("this run names no model", hint="say which: --swap model=SPEC")
    return open_model(part.spec, part.content, url=setting.model_url)


def _after_others(setting: Setting, stack: ExitStack) -> int | None:
    """A lock that the tools of this run hold, once those of a killed process are gone.

    The tool of a process that was killed may live on for a moment and still send what it was about
    to send. Whoever settled the call in that moment would be told that it was not done. Confined
    tools reach nothing, so nobody waits for them.
    """
    if setting.isolated:
        return None
    path = setting.journal.with_name(f"{setting.journal.name}.tools")
    fd = disk.lock_when_free(path)
    stack.callback(disk.unlock, fd, path)
    return fd


def open_sandbox(setting: Setting, held_fd: int | None = None) -> Sandbox:
    """The tools component of ``setting``, in its sandbox; ``held_fd`` is a lock that it holds."""
    part = setting.components["tools"]
    return Sandbox(
        setting.branch.path,
        isolated=setting.isolated,
        tools_source=part.content,
        standard=standard_tools(part.spec),
        held_fd=held_fd,
    )


def standard_tools(spec: str) -> list[str]:
    """The standard tools that a spec like ``standard``, ``bash,read_file`` or ``@t.py`` names."""
    names: list[str] = []
    for part in spec.split(","):
        if part == "standard":
            names.extend(STANDARD)
        elif part in STANDARD:
            names.append(part)
        elif part and not part.startswith("@"):
            raise UsageError(
                f"there is no tool {part!r}",
                hint=f"write standard, @FILE.py, or some of {', '.join(STANDARD)}",
            )
    return names


def versions(model: Model) -> dict[str, str]:
    """What this run ran on, as recorded facts (R4, M18). No secrets, no paths."""
    return {
        "branchkit": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "timezone": time.tzname[0],
        "redaction": REDACTION,
        **{f"model.{name}": str(value) for name, value in model.describe().items()},
    }


def wall_clock() -> str:
    """Now, as the envelope of an event says it."""
    second, nanoseconds = divmod(time.time_ns(), 1_000_000_000)
    return f"{_to_the_second(second)}.{nanoseconds // 1000:06}Z"


@functools.lru_cache(maxsize=1)  # every event takes the time: to write it out takes four times that
def _to_the_second(second: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))


def new_run_id() -> str:
    """An id for a run: 80 random bits in 16 characters, since every event repeats it (R13)."""
    return base64.b32encode(os.urandom(10)).decode().lower()
