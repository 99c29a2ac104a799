"""The steps between the lock and the harness: settle, set aside, and put the tape in front.

    lock → restore files → settle what is in doubt → Resumed → the harness over the tape → live

Nothing new is sent before the last of the old is settled (R22, R40, D07). Each step can be cut off
by another crash: it is found and done again by the next resume.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple, NoReturn

from branchkit.boundary.calls import Call
from branchkit.boundary.recording import Recording
from branchkit.boundary.replaying import Replaying
from branchkit.boundary.resuming import Resuming
from branchkit.boundary.send import send
from branchkit.boundary.session import Decision
from branchkit.boundary.settlement import Ask, Known, Observation, Tools, Waiting, settle
from branchkit.disk import crash_point
from branchkit.durable.answers import Reopened
from branchkit.durable.plan import Plan, plan
from branchkit.errors import ContextDrift
from branchkit.journal.blobs import BlobReader
from branchkit.journal.events import (
    Event,
    Payload,
    Resumed,
    Settled,
    TaskFinished,
    ToolAuthorized,
    ToolIntent,
    ToolProposed,
    reply_step,
)
from branchkit.journal.redact import holds_marker
from branchkit.record.context import Contexts, plain_tools
from branchkit.record.record import Approval, CallState, Record

Decide = Callable[[Call], Decision]


class Doubtful(NamedTuple):
    """A call in doubt as it was recorded."""

    call: Call
    intent: ToolIntent
    authorized: ToolAuthorized
    age_s: float


class Recovery:
    """One resume of one run; ``settled`` is what it found out on the way."""

    def __init__(
        self,
        run: Reopened,
        *,
        restorable: bool,
        blobs: BlobReader,
        decide: Decide | None = None,
    ) -> None:
        """``decide`` is today's policy, which a call that is sent again has to pass."""
        self.events = list(run.events)
        self.settled: list[Settled] = []
        self.plan = plan(self.events, restorable=restorable)
        self._run = run
        self._restorable = restorable
        self._blobs = blobs
        self._decide = decide
        self._recording: Recording | None = None

    @property
    def record(self) -> Record:
        """The record as it is now."""
        return self._run.record if self._recording is None else self._recording.record

    def check_held(self) -> None:
        """Raise Waiting if a call is held and nobody has answered; nothing is written."""
        held = self.plan.held
        if held is not None:
            raise Waiting(f"{held.name} ({held.call_id}) waits for approval")

    def behind(self, recording: Recording, tools: Tools) -> Resuming:
        """The mode that the harness goes on with. Raises Waiting where only a person can settle."""
        self._recording = recording
        if self.plan.doubt is not None:
            self._settle(self.plan.doubt, recording, tools)
            self.plan = plan(self.events, restorable=self._restorable)
        self._begin(recording, self.plan)
        tape = Replaying(self.events, Contexts(self.events, self._blobs))
        return Resuming(tape, recording)

    def _begin(self, recording: Recording, found: Plan) -> None:
        for call in found.redo:
            note = "its effect on the files was undone with them; it is proposed anew"
            self._note(Settled(call_id=call.call_id, outcome="not sent", by="redo", detail=note))
        resumed = Resumed(
            continues_after=found.continues_after,
            record_hash=found.record_hash,
            snapshot=found.snapshot,
            redone=[call.call_id for call in found.redo],
        )
        self._emit(resumed, reply_step(recording.record.turn))
        crash_point("resume.written")
        recording.commit()
        crash_point("resume.durable")

    def _settle(self, doubt: CallState, recording: Recording, tools: Tools) -> None:
        """Find out what became of ``doubt``. Raises Waiting, having said so in the journal."""
        found = self._doubtful(doubt)
        call, intent = found.call, found.intent
        crash_point("settle.begin")
        if self._schema(call.name) != tools.schemas.get(call.name):
            what = f"Was {call.name} ({call.call_id}) done? Nobody here can tell: its schema has"
            self._wait(doubt, f"{what} changed since, and would read the arguments otherwise.")

        def again() -> Observation:
            arguments, key = call.arguments or {}, intent.idempotency_key
            return send(recording.commit, lambda: tools.call(call.name, arguments, doubt.turn, key))

        refused = self._refused(found) if intent.contract == "keyed" else ""
        verdict = settle(call, intent, tools, again=again, age_s=found.age_s, refused=refused)
        crash_point("settle.found")
        if isinstance(verdict, Ask):
            self._wait(doubt, verdict.question)
        elif isinstance(verdict, Known):
            self._note(
                Settled(
                    call_id=call.call_id, outcome="completed", by=verdict.by, detail=verdict.detail
                )
            )
            self._emit(recording.result(call, verdict.observation, None), call.call_id)
        else:
            self._note(
                Settled(call_id=call.call_id, outcome="not sent", by="probe", detail=verdict.detail)
            )
        recording.commit()
        crash_point("settle.durable")

    def _wait(self, doubt: CallState, question: str) -> NoReturn:
        """Escalate, once, and end this process's part. Raises Waiting."""
        recording = self._recording
        assert recording is not None
        step = doubt.call_id
        try:
            if step not in recording.record.questions:
                recording.escalate(step, question, step)
            raise Waiting(question)
        finally:
            if recording.record.status != "waiting":
                end = TaskFinished(status="waiting", reason=question)
                recording.emit(end, recording.record.turn, reply_step(recording.record.turn))
                recording.commit()

    def _doubtful(self, doubt: CallState) -> Doubtful:
        proposed, intent, authorized = None, None, None
        age_s = 0.0
        for event in self.events:
            match event.payload:
                case ToolProposed(call_id=doubt.call_id):
                    proposed = event.payload
                case ToolAuthorized(call_id=doubt.call_id):
                    authorized = event.payload
                case ToolIntent(call_id=doubt.call_id):
                    intent, age_s = event.payload, _age_s(event)
                case _:
                    continue
        assert proposed is not None
        assert intent is not None
        assert authorized is not None
        call = Call(doubt.call_id, proposed.name, proposed.arguments)
        return Doubtful(call, intent, authorized, age_s)

    def _schema(self, name: str) -> dict[str, Any] | None:
        """What the model was told of the tool when the run was recorded."""
        known = {tool["function"]["name"]: tool for tool in plain_tools(self.plan.record.tools)}
        return known.get(name)

    def _refused(self, found: Doubtful) -> str:
        """Why the call may not be sent again today, or nothing (N12)."""
        if holds_marker(found.call.arguments):
            return "its arguments held a secret, which the journal does not keep"
        if self._decide is None:
            if found.authorized.policy == "allow":
                return ""
            return f"its policy ({found.authorized.policy}) cannot be asked here: give decide="
        today = self._decide(found.call)
        answer = self.plan.record.approvals.get(found.call.call_id)
        if today.decision == "allow" or (today.decision == "hold" and _counts(answer)):
            return ""
        return f"it may not be sent again: {today.decision}, {today.reason}"

    def _note(self, settled: Settled) -> None:
        self.settled.append(settled)
        self._emit(settled, settled.call_id)

    def _emit(self, payload: Payload, step_id: str) -> Event:
        assert self._recording is not None
        event = self._recording.emit(payload, self._recording.record.turn, step_id)
        self.events.append(event)
        return event


def check_model(recorded: str, today: str) -> None:
    """Raise ContextDrift if another model would go on with the run."""
    if recorded != today:
        raise ContextDrift(
            f"the run was recorded with the model {recorded!r}, this is {today!r}",
            hint="resume it with its own model; to try another one, fork it",
        )


def _age_s(event: Event) -> float:
    return (datetime.now(UTC) - datetime.fromisoformat(event.recorded_at)).total_seconds()


def _counts(answer: Approval | None) -> bool:
    """Whether a person has allowed it and the answer has not expired."""
    if answer is None or answer.decision != "allow":
        return False
    return answer.expires_at is None or datetime.now(UTC) < datetime.fromisoformat(
        answer.expires_at
    )
