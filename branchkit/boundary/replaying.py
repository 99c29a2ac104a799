"""Replay mode: the tape answers, and every event is compared with the recorded one (R50, R51)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from branchkit.boundary.calls import Call
from branchkit.boundary.model import ModelRequest
from branchkit.boundary.tape import Tape
from branchkit.journal.events import (
    Checkpoint,
    EnvironmentRead,
    Event,
    Forked,
    ModelFailed,
    ModelReplied,
    Payload,
    TaskStarted,
    ToolIntent,
    ToolResult,
)
from branchkit.record.context import Contexts
from branchkit.record.record import Record


class Replaying:
    """The mode that touches nothing: no model, no tool, no clock, no disk."""

    def __init__(self, events: Sequence[Event], contexts: Contexts) -> None:
        self._tape = Tape(events)
        self._contexts = contexts
        first = events[0].payload
        components = first.components if isinstance(first, TaskStarted | Forked) else {}
        self.requested_model = components["model"].spec if "model" in components else ""

    @property
    def record(self) -> Record:
        return self._tape.record

    @record.setter
    def record(self, record: Record) -> None:
        self._tape.record = record

    @property
    def consumed(self) -> int:
        """How many events have been matched, each exactly once."""
        return self._tape.consumed

    def emit(self, payload: Payload, turn: int, step_id: str) -> Event:
        """The recorded event that equals ``payload``. Raises Diverged."""
        return self._tape.consume(payload, turn, step_id)

    def commit(self) -> None:
        """Nothing: a replay writes nothing."""

    def ask(
        self, request: ModelRequest, request_hash: str, step_id: str
    ) -> ModelReplied | ModelFailed:
        """The recorded reply to this very request. Raises Diverged."""
        failed = self._tape.next_of(ModelFailed, step_id)
        if failed is not None and failed.request_hash == request_hash:
            return failed
        return self._tape.answer(ModelReplied, step_id, request_hash)

    def act(self, call: Call, intent: ToolIntent, step_id: str) -> ToolResult:
        """The recorded result of this very call; its arguments were compared with the intent."""
        return self._tape.answer(ToolResult, step_id, intent.request_hash)

    def refuse(self, call: Call, text: str, step_id: str) -> ToolResult:
        """The recorded refusal."""
        return self._tape.answer(ToolResult, step_id, "")

    def text_of(self, result: ToolResult) -> str:
        """The whole text of a recorded result. Raises BlobMissing."""
        return self._contexts.full_text(result.call_id)

    def read(
        self, source: str, arguments: list[Any], request_hash: str, step_id: str
    ) -> EnvironmentRead:
        """What the clock, entropy or listing gave when it was recorded."""
        return self._tape.answer(EnvironmentRead, step_id, request_hash)

    def checkpoint(self, turn: int, step_id: str) -> Checkpoint | None:
        """The recorded checkpoint at this place, if one was taken."""
        return self._tape.next_of(Checkpoint, step_id)

    def finish(self) -> None:
        """Raise Diverged if an event was never consumed."""
        self._tape.finish()
