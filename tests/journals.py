"""Journals for tests, made by the real writer; imported by child processes too, so it is light."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from branchkit.journal.chain import seal
from branchkit.journal.events import (
    Component,
    Event,
    InputReceived,
    ModelReplied,
    Payload,
    TaskStarted,
    ToolAuthorized,
    ToolIntent,
    ToolProposed,
    ToolResult,
    call_step,
    reply_step,
)
from branchkit.journal.file import SUFFIX, Writer
from branchkit.journal.format import ZERO_HASH, value_hash

NOW = "2026-01-02T03:04:05.678Z"
RUN_ID = "run-1"


def now() -> str:
    """A clock that stands still."""
    return NOW


class Step(NamedTuple):
    """A payload with the place that it is written at."""

    payload: Payload
    turn: int
    step_id: str


def started(**changes: Any) -> TaskStarted:
    """The first event of a plain run."""
    fields: dict[str, Any] = {
        "task": "count to three",
        "harness": "own",
        "components": {"model": Component(spec="rulebook:count")},
        "tools": [],
        "budgets": {"turns": 40},
        "seed": 7,
        "started_at": "2026-01-01T00:00:00+00:00",
        "versions": {"python": "3.11"},
    }
    return TaskStarted(**(fields | changes))


def replied(turn: int, text: str = "", **changes: Any) -> ModelReplied:
    """A reply without calls."""
    fields: dict[str, Any] = {
        "message": {"role": "assistant", "content": text or f"reply {turn}"},
        "request_hash": value_hash(turn),
        "requested_model": "rulebook:count",
        "served_model": "rulebook:count",
        "finish_reason": "stop",
        "usage": {"completion_tokens": 5},
    }
    return ModelReplied(**(fields | changes))


def turn_steps(turn: int) -> Iterator[Step]:
    """The six events of a turn with one tool call."""
    call = call_step(turn, 1)
    arguments = {"command": f"echo {turn}"}
    yield Step(replied(turn), turn, reply_step(turn))
    yield Step(ToolProposed(call_id=call, name="bash", arguments=arguments), turn, call)
    yield Step(
        ToolAuthorized(call_id=call, decision="allow", policy="allow", reason="any"), turn, call
    )
    yield Step(
        ToolIntent(
            call_id=call,
            name="bash",
            request_hash=value_hash(arguments),
            effect="workspace",
            idempotency_key=f"key-{turn}",
        ),
        turn,
        call,
    )
    yield Step(
        ToolResult(call_id=call, status="completed", sha256="0" * 64, bytes=1, text=str(turn)),
        turn,
        call,
    )
    yield Step(
        InputReceived(message={"role": "user", "content": "on"}, source="harness"),
        turn,
        reply_step(turn),
    )


def run_steps(turns: int) -> Iterator[Step]:
    """A whole run: its start, then ``turns`` turns of six events."""
    yield Step(started(), 0, reply_step(0))
    for turn in range(1, turns + 1):
        yield from turn_steps(turn)


def reply_steps(turns: int) -> Iterator[Step]:
    """A run of ``turns`` replies and nothing else."""
    yield Step(started(), 0, reply_step(0))
    for turn in range(1, turns + 1):
        yield Step(replied(turn), turn, reply_step(turn))


def write(path: Path, steps: Iterator[Step], *, run_id: str = RUN_ID) -> list[Event]:
    """The events that the real writer put into ``path``."""
    writer = Writer(path, run_id=run_id, now=now)
    try:
        return [writer.append(payload, turn=turn, step_id=step) for payload, turn, step in steps]
    finally:
        writer.close()


def journal(folder: Path, turns: int = 3) -> Path:
    """A journal of ``turns`` turns in ``folder``."""
    path = folder / f"sample{SUFFIX}"
    write(path, run_steps(turns))
    return path


def open_writer(path: Path) -> Writer:
    """A writer with the clock that stands still."""
    return Writer(path, run_id=RUN_ID, now=now)


def append(writer: Writer, turn: int) -> Event:
    """The event of a reply, appended and not committed."""
    return writer.append(replied(turn), turn=turn, step_id=reply_step(turn))


def child(*arguments: object, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """A real second process, ``python -c arguments``, that can import what this one can."""
    return subprocess.Popen(
        [sys.executable, "-c", *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **(env or {})},
    )


def sealed_lines(
    steps: Iterator[Step], *, prev: str = ZERO_HASH, first_seq: int = 0
) -> list[bytes]:
    """The lines of a chain that goes on after ``prev``, made without a file."""
    lines = []
    for seq, (payload, turn, step) in enumerate(steps, start=first_seq):
        event, line = seal(
            payload,
            seq=seq,
            turn=turn,
            step_id=step,
            recorded_at=NOW,
            run_id=RUN_ID,
            prev_event_hash=prev,
        )
        prev = event.event_hash
        lines.append(line)
    return lines
