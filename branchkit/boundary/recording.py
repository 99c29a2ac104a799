"""Record mode: the world answers, and every event goes to a journal."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from branchkit.boundary.calls import Call, provider_ids, with_own_ids
from branchkit.boundary.environment import Entropy, listing
from branchkit.boundary.model import Model, ModelRequest
from branchkit.boundary.send import send
from branchkit.errors import BudgetSpent, ModelError
from branchkit.journal.blobs import INLINE_LIMIT_BYTES, Blobs
from branchkit.journal.events import (
    CallStatus,
    Checkpoint,
    EnvironmentRead,
    Event,
    ModelFailed,
    ModelReplied,
    Payload,
    ToolIntent,
    ToolResult,
)
from branchkit.journal.file import Writer
from branchkit.record import fold as folding
from branchkit.record.record import Record


class Observation(NamedTuple):
    """What came of one tool call."""

    status: CallStatus
    text: str
    exit_code: int | None = None


class SnapshotFacts(NamedTuple):
    """The workspace as it is now, already on stable storage."""

    id: str
    tree_hash: str
    files: int
    changed_bytes: int


Tools = Callable[[str, Mapping[str, Any], int], Observation]  # name, arguments, turn


class Recording:
    """The live mode. ``record`` continues from where a branch begins, or is new."""

    def __init__(
        self,
        writer: Writer,
        blobs: Blobs,
        *,
        model: Model,
        tools: Tools,
        clock: Callable[[int], str],
        entropy: Entropy | None = None,
        snapshot: Callable[[], SnapshotFacts] | None = None,
        record: Record | None = None,
        max_calls: int | None = None,
    ) -> None:
        """``clock`` gives the time of a turn; ``snapshot`` freezes the workspace."""
        self.record = Record() if record is None else record.copy()
        self.requested_model = model.spec
        self._writer, self._blobs = writer, blobs
        self._model, self._tools = model, tools
        self._clock, self._entropy = clock, entropy or Entropy()
        self._snapshot = snapshot
        self._last_snapshot: str | None = None
        self._calls_left = max_calls
        self._texts: dict[str, str] = {}

    def emit(self, payload: Payload, turn: int, step_id: str) -> Event:
        """Append to the journal and fold."""
        event = self._writer.append(payload, turn=turn, step_id=step_id)
        folding.apply(self.record, event)
        return event

    def commit(self) -> None:
        """Return once everything emitted is durable."""
        self._writer.commit()

    def ask(
        self, request: ModelRequest, request_hash: str, step_id: str
    ) -> ModelReplied | ModelFailed:
        """Call the model once. Raises BudgetSpent when the run's calls are used up."""
        if self._calls_left is not None:
            if self._calls_left <= 0:
                raise BudgetSpent("no model call is left", hint="raise --max-calls")
            self._calls_left -= 1
        started = time.monotonic()
        try:
            reply = send(self.commit, lambda: self._model.reply(request))
        except ModelError as error:
            return ModelFailed(
                request_hash=request_hash, error=error.message, duration_ms=_since_ms(started)
            )
        return ModelReplied(
            message=with_own_ids(reply.message, request.turn),
            request_hash=request_hash,
            requested_model=self._model.spec,
            served_model=reply.served_model,
            finish_reason=reply.finish_reason,
            usage=reply.usage,
            provider_id=reply.provider_id,
            provider_call_ids=provider_ids(reply.message),
            duration_ms=_since_ms(started),
        )

    def act(self, call: Call, intent: ToolIntent, step_id: str) -> ToolResult:
        """Run the tool, after its intent is on stable storage."""
        started = time.monotonic()
        arguments = call.arguments or {}
        outcome = send(self.commit, lambda: self._tools(call.name, arguments, self.record.turn))
        return self._result(call, outcome, _since_ms(started))

    def refuse(self, call: Call, text: str, step_id: str) -> ToolResult:
        """The result of a call that is not sent: denied, or not readable."""
        return self._result(call, Observation("error" if call.problem else "denied", text), None)

    def _result(self, call: Call, outcome: Observation, duration_ms: float | None) -> ToolResult:
        text = _joined(outcome.text)
        data = text.encode("utf-8", "surrogatepass")
        inline = len(data) <= INLINE_LIMIT_BYTES
        result = ToolResult(
            call_id=call.call_id,
            status=outcome.status,
            sha256=hashlib.sha256(data).hexdigest(),
            bytes=len(data),
            text=text if inline else None,
            blob=None if inline else self._blobs.put(data),
            exit_code=outcome.exit_code,
            duration_ms=duration_ms,
        )
        self._texts[call.call_id] = text
        return result

    def text_of(self, result: ToolResult) -> str:
        """The whole text of a result of this run."""
        return self._texts.pop(result.call_id)

    def read(
        self, source: str, arguments: list[Any], request_hash: str, step_id: str
    ) -> EnvironmentRead:
        """Read the clock, entropy or a directory."""
        value: Any
        match source:
            case "now":
                value = self._clock(self.record.turn)
            case "uuid4":
                value = self._entropy.uuid4()
            case "random":
                value = self._entropy.random()
            case "urandom":
                value = self._entropy.urandom(arguments[0]).hex()
            case "listdir":
                value = listing(arguments[0])
            case _:
                raise AssertionError(source)
        return EnvironmentRead(
            source=source, request_hash=request_hash, arguments=arguments, value=value
        )

    def checkpoint(self, turn: int, step_id: str) -> Checkpoint | None:
        """Freeze the workspace; None if there is none or the turn left it clean (R35)."""
        if self._snapshot is None:
            return None
        started = time.monotonic()
        facts = self._snapshot()
        if facts.id == self._last_snapshot:
            return None
        self._last_snapshot = facts.id
        return Checkpoint(
            record_hash=self.record.logical,
            snapshot=facts.id,
            tree_hash=facts.tree_hash,
            files=facts.files,
            changed_bytes=facts.changed_bytes,
            duration_ms=_since_ms(started),
        )

    def finish(self) -> None:
        """Nothing: a recording has no tape that could be left over."""


def _joined(text: str) -> str:
    """``text`` with halves of a character that came apart as the character.

    The journal's JSON cannot tell them from it, so replay would cut another text than we did.
    """
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def _since_ms(started: float) -> float:
    return round(1000 * (time.monotonic() - started), 3)
