"""Replay mode: the tape answers, and every event is compared with the recorded one (R50, R51)."""

from __future__ import annotations

import os
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import Any

from branchkit.boundary.calls import Call
from branchkit.boundary.model import ModelRequest
from branchkit.boundary.settlement import Waiting
from branchkit.boundary.tape import Tape
from branchkit.journal.events import (
    ApprovalRequested,
    ApprovalResolved,
    Checkpoint,
    Compacted,
    EnvironmentRead,
    Escalated,
    Event,
    Forked,
    Message,
    ModelFailed,
    ModelReplied,
    Payload,
    TaskStarted,
    ToolAuthorized,
    ToolIntent,
    ToolResult,
)
from branchkit.journal.redact import VERSION, nothing, redactor
from branchkit.record.context import Contexts
from branchkit.record.effective import effective
from branchkit.record.record import Approval, Record


class Replaying:
    """The mode that touches nothing: no model, no tool, no clock, no disk."""

    def __init__(self, events: Sequence[Event], contexts: Contexts) -> None:
        self._tape = Tape(events)
        self._contexts = contexts
        self._answers = approvals_by_call(events)
        self._questions = {
            event.payload.call_id: event.payload.question
            for event in events
            if isinstance(event.payload, Escalated)
        }
        first = events[0].payload
        components = first.components if isinstance(first, TaskStarted | Forked) else {}
        self.requested_model = components["model"].spec if "model" in components else ""
        ruled = isinstance(first, TaskStarted) and first.versions.get("redaction") == VERSION
        self.redact = redactor(os.environ) if ruled else nothing()

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

    @property
    def exhausted(self) -> bool:
        """Whether every event has been matched."""
        return self._tape.exhausted

    def emit(self, payload: Payload, turn: int, step_id: str) -> Event:
        """The recorded event that equals ``payload``. Raises Diverged."""
        return self._tape.consume(self.redact.payload(payload), turn, step_id)

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
        """The recorded result of this very call; its arguments were compared with the intent.

        Raises Waiting where the run was left in doubt about it.
        """
        if call.call_id in self._questions and self._tape.next_of(ToolResult, step_id) is None:
            raise Waiting(self._questions[call.call_id])
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

    def obstacle(self, call: Call, step_id: str) -> str:
        """Whether the call was answered without being put to the policy."""
        asked = self._tape.next_of(ToolAuthorized, step_id)
        answered = self._tape.next_of(ToolResult, step_id)
        return "as recorded" if asked is None and answered is not None else ""

    def approval(self, call_id: str, step_id: str) -> Approval | None:
        """What a person answered to the call when it was held, if the run then went on."""
        if self._tape.next_of(ToolAuthorized, step_id) is None:
            return None
        return self._answers[call_id].popleft()

    def summary(self, make: Callable[[], list[Message]], step_id: str) -> list[Message]:
        """The summary as it was obtained; ``make`` is not asked (R10)."""
        return self._tape.answer(Compacted, step_id, "").messages

    def finish(self) -> None:
        """Raise Diverged if an event was never consumed."""
        self._tape.finish()


def approvals_by_call(events: Sequence[Event]) -> dict[str, deque[Approval]]:
    """The answers that the run built on, in order: the last one to each time that it held."""
    built_on = {event.seq for event in effective(events)}
    found: dict[str, deque[Approval]] = defaultdict(deque)
    fresh: set[str] = set()
    for event in events:
        match event.payload:
            case ApprovalRequested(call_id=call_id) if event.seq in built_on:
                fresh.add(call_id)
            case ApprovalResolved() as answer:
                given = Approval(answer.decision, answer.by, answer.reason, answer.expires_at)
                if answer.call_id not in fresh and found[answer.call_id]:
                    found[answer.call_id].pop()
                found[answer.call_id].append(given)
                fresh.discard(answer.call_id)
            case _:
                continue
    return found
