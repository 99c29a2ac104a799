"""Journals for tests: made by the real writer, and strategies for events of every kind."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from hypothesis import strategies as st

from branchkit.journal import events as schema
from branchkit.journal.chain import seal
from branchkit.journal.events import (
    KINDS,
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


def _deep(levels: int) -> Any:
    value: Any = 1
    for level in range(levels):
        value = [value] if level % 2 else {"k": value}
    return value


any_text = st.text(max_size=12) | st.sampled_from(
    ["\ud83d", "\ud83d\ude00", 'a"b\\c\n', '}{"event_hash":"sha256:', "\x00", "\ue000\U00010000"]
)
any_key = any_text | st.just("$json")
any_number = st.integers() | st.integers(-(2**80), 2**80) | st.floats()
any_json = st.recursive(
    st.none() | st.booleans() | any_number | any_text | st.sampled_from([_deep(9), _deep(300)]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(any_key, inner, max_size=3),
    max_leaves=8,
)
_BY_TYPE: dict[Any, st.SearchStrategy[Any]] = {
    str: any_text,
    int: st.integers() | st.integers(2**53 - 2, 2**66),
    float: st.floats(),
    bool: st.booleans(),
    Any: any_json,
    type(None): st.none(),
}


def _strategy(hint: Any) -> st.SearchStrategy[Any]:
    """Wild values of a type that the schema uses, so that a new field is covered by itself."""
    if hint in _BY_TYPE:
        return _BY_TYPE[hint]
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is list:
        return st.lists(_strategy(arguments[0]), max_size=3)
    if origin is dict:
        return st.dictionaries(any_key, _strategy(arguments[1]), max_size=3)
    if origin is typing.Literal:
        return st.sampled_from(arguments)
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return structs(hint)
    return st.one_of([_strategy(argument) for argument in arguments])


@functools.cache
def structs(kind: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    """Structs of ``kind`` with wild values in every field."""
    hints = typing.get_type_hints(kind, vars(schema))
    fields = {name: _strategy(hints[name]) for name in kind.__struct_fields__}
    make: Callable[..., Any] = kind
    return st.builds(make, **fields)


payloads: st.SearchStrategy[Payload] = st.sampled_from(sorted(KINDS)).flatmap(
    lambda name: structs(KINDS[name])
)
names = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters='"\\'), max_size=128
)
