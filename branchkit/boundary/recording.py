"""Record mode: the world answers, and every event goes to a journal."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple, NoReturn

from branchkit.boundary.calls import Call, provider_ids, with_own_ids
from branchkit.boundary.environment import ENTROPY, Entropy, listing
from branchkit.boundary.model import Model, ModelRequest
from branchkit.boundary.send import ask, send
from branchkit.boundary.settlement import Ask, Known, NotSent, Observation, Tools, Waiting, settle
from branchkit.disk import crash_point
from branchkit.errors import BudgetSpent, ModelError
from branchkit.journal.appending import RunWriter
from branchkit.journal.blobs import INLINE_LIMIT_BYTES, Blobs
from branchkit.journal.events import (
    Checkpoint,
    EnvironmentRead,
    Escalated,
    Event,
    Message,
    ModelFailed,
    ModelReplied,
    Payload,
    Settled,
    ToolIntent,
    ToolResult,
)
from branchkit.journal.redact import Redactor, redactor
from branchkit.record import fold as folding
from branchkit.record.record import Approval, Record


class SnapshotFacts(NamedTuple):
    """The workspace as it is now, already on stable storage."""

    id: str
    tree_hash: str
    files: int
    changed_bytes: int


class Recording:
    """The live mode. ``record`` continues from where a branch begins, or is new."""

    def __init__(
        self,
        writer: RunWriter,
        blobs: Blobs,
        *,
        model: Model,
        tools: Tools,
        clock: Callable[[int], str],
        entropy: Entropy | None = None,
        snapshot: Callable[[], SnapshotFacts] | None = None,
        last_snapshot: str | None = None,
        record: Record | None = None,
        max_calls: int | None = None,
        escalate: bool = True,
        redact: Redactor | None = None,
    ) -> None:
        """``clock`` gives the time of a turn; ``snapshot`` freezes the workspace.

        ``last_snapshot`` is what the workspace was made from. Without ``escalate`` a call that got
        no answer is an observation: nobody waits for a branch, whose world is a test system.
        """
        self.record = Record() if record is None else record.copy()
        self.requested_model = model.spec
        self._writer, self._blobs = writer, blobs
        self._model, self._tools = model, tools
        self._clock, self._entropy = clock, entropy or Entropy()
        self._snapshot = snapshot
        self._last_snapshot = last_snapshot
        self._escalate = escalate
        self.redact = redact or redactor(os.environ)
        self._calls_left = max_calls
        self._texts: dict[str, str] = {}

    def emit(self, payload: Payload, turn: int, step_id: str) -> Event:
        """Append to the journal, without secrets (R11), and fold."""
        payload = self.redact.payload(payload)
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
            reply = ask(self.commit, lambda: self._model.reply(request))
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
        """Run the tool, after its intent is on stable storage.

        An external call that got no answer is settled before anything else is sent. Raises Waiting
        where only a person can do that.
        """
        started = time.monotonic()
        outcome = self._sent(call, intent)
        if intent.effect == "external" and self._escalate and not outcome.is_answer:
            outcome = self._settled(call, intent, outcome, step_id)
        return self.result(call, outcome, _since_ms(started))

    def _sent(self, call: Call, intent: ToolIntent) -> Observation:
        arguments, turn, key = call.arguments or {}, self.record.turn, intent.idempotency_key
        return send(self.commit, lambda: self._tools.call(call.name, arguments, turn, key))

    def _settled(
        self, call: Call, intent: ToolIntent, outcome: Observation, step_id: str
    ) -> Observation:
        if outcome.status == "mismatch":
            question = f"Was {call.name} ({call.call_id}) done? Its key stands for another request."
            self.escalate(call.call_id, f"{question} {outcome.text}", step_id)
        verdict = settle(call, intent, self._tools, again=lambda: self._sent(call, intent))
        if isinstance(verdict, NotSent):
            answer = self._sent(call, intent)
            if answer.is_answer:
                verdict = Known(answer, "probe", f"{verdict.detail}; sent again")
            else:
                verdict = Ask(f"{call.name} ({call.call_id}) was sent twice without an answer.")
        if isinstance(verdict, Ask):
            self.escalate(call.call_id, verdict.question, step_id)
        assert isinstance(verdict, Known)
        self.emit(
            Settled(
                call_id=call.call_id, outcome="completed", by=verdict.by, detail=verdict.detail
            ),
            self.record.turn,
            step_id,
        )
        return verdict.observation

    def escalate(self, call_id: str, question: str, step_id: str) -> NoReturn:
        """Write down what only a person can say. Raises Waiting, always."""
        self.emit(Escalated(call_id=call_id, question=question), self.record.turn, step_id)
        crash_point("escalated")
        self.commit()
        raise Waiting(question)

    def obstacle(self, call: Call, step_id: str) -> str:
        """Nothing: what the model said is known to the letter."""
        return ""

    def approval(self, call_id: str, step_id: str) -> Approval | None:
        """What a person answered since the call was last held; None: nobody yet."""
        return self.record.approvals.get(call_id)

    def summary(self, make: Callable[[], list[Message]], step_id: str) -> list[Message]:
        """The summary, made now."""
        return make()

    def refuse(self, call: Call, text: str, step_id: str) -> ToolResult:
        """The result of a call that is not sent: denied, or not readable."""
        return self.result(call, Observation("error" if call.problem else "denied", text), None)

    def result(self, call: Call, outcome: Observation, duration_ms: float | None) -> ToolResult:
        """The event that ``outcome`` is; its text is in the blobs if it is long."""
        text = self.redact.text(_joined(outcome.text))
        self._texts[call.call_id] = text
        return observed(call.call_id, outcome._replace(text=text), self._blobs, duration_ms)

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
            case "wall_clock":
                value = datetime.now(UTC).isoformat()
            case "listdir":
                value = listing(arguments[0])
            case _:
                value = self._entropy.draw(source, arguments)
        return EnvironmentRead(
            source=source, request_hash=request_hash, arguments=arguments, value=value
        )

    def draw_along(self, source: str, arguments: list[Any]) -> None:
        """Advance seeded entropy past a draw that the tape answers."""
        if source in ENTROPY:
            self._entropy.draw(source, arguments)

    def checkpoint(self, turn: int, step_id: str) -> Checkpoint | None:
        """Freeze the workspace; None if there is none or the turn left it clean (R35).

        The record's part of a checkpoint is the journal up to here, whose events since the last one
        are its delta: nothing is written twice (R31). Both parts are durable before this returns
        (R30).
        """
        if self._snapshot is None:
            return None
        crash_point("checkpoint.begin")
        self.commit()
        crash_point("checkpoint.before_snapshot")
        started = time.monotonic()
        facts = self._snapshot()
        crash_point("checkpoint.snapshot_durable")
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


def observed(
    call_id: str, outcome: Observation, blobs: Blobs, duration_ms: float | None = None
) -> ToolResult:
    """The event that ``outcome`` is; a text over the inline limit is in ``blobs`` before it."""
    data = _joined(outcome.text).encode("utf-8", "surrogatepass")
    inline = len(data) <= INLINE_LIMIT_BYTES
    return ToolResult(
        call_id=call_id,
        status=outcome.status,
        sha256=hashlib.sha256(data).hexdigest(),
        bytes=len(data),
        text=data.decode("utf-8", "surrogatepass") if inline else None,
        blob=None if inline else blobs.put(data),
        exit_code=outcome.exit_code,
        duration_ms=duration_ms,
    )


def _joined(text: str) -> str:
    """``text`` with halves of a character that came apart as the character.

    The journal's JSON cannot tell them from it, so replay would cut another text than we did.
    """
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def _since_ms(started: float) -> float:
    return round(1000 * (time.monotonic() - started), 3)
