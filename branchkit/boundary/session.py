"""The context object that a harness talks to, the same in record and in replay mode.

A harness asks a ``Session`` for everything that is not its own arithmetic: replies, tool calls, the
time, identifiers, entropy, listings. The session keeps the order proposal, authorization, intent,
action, observation, delivery (R20) and turns each into an event; its *mode* decides whether the
answer comes from the world (``Recording``) or from the tape (``Replaying``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from branchkit.boundary.calls import Call, native_calls
from branchkit.boundary.contract import Contract
from branchkit.boundary.given import Given
from branchkit.boundary.mode import Base as Base
from branchkit.boundary.mode import Decision as Decision
from branchkit.boundary.mode import Delivery as Delivery
from branchkit.boundary.mode import Mode as Mode
from branchkit.boundary.mode import Question as Question
from branchkit.boundary.mode import Reply as Reply
from branchkit.boundary.mode import allow, contracts_of, whole
from branchkit.boundary.model import ModelRequest, seed_for_turn
from branchkit.boundary.settlement import Waiting as Waiting
from branchkit.disk import crash_point
from branchkit.errors import ModelError
from branchkit.journal.events import (
    ApprovalRequested,
    Compacted,
    ContextBuilt,
    Delivered,
    EndStatus,
    EnvironmentRead,
    Event,
    InputReceived,
    Message,
    ModelFailed,
    ModelReplied,
    Payload,
    StateTransition,
    TaskFinished,
    ToolAuthorized,
    ToolIntent,
    ToolProposed,
    ToolResult,
    reply_step,
)
from branchkit.journal.format import value_hash
from branchkit.record.context import (
    ContextHash,
    difference,
    plain_tools,
    tool_message,
)
from branchkit.record.record import REDUCER_VERSION, Approval, Record


class Session:
    """One run of a harness. Calls are sequential: one session belongs to one thread."""

    def __init__(
        self,
        mode: Mode,
        *,
        tools: Sequence[dict[str, Any]] = (),
        seed: int = 0,
        base: Base | None = None,
    ) -> None:
        """``tools`` are schemas in OpenAI shape with branchkit's declarations beside each."""
        self._mode = mode
        self._seed = seed
        self._effects = {tool["function"]["name"]: tool.get("effect", "external") for tool in tools}
        self._contracts = contracts_of(tools)
        self._tools = plain_tools(tools)
        self._hash = ContextHash(self._tools)
        self._base = base or Base([], None, in_parent=False)
        self._given = Given(mode.redact.value, self._base.later)
        self._open_turn: tuple[int, int, str] | None = None  # turn, seq of its reply, record before

    @property
    def record(self) -> Record:
        """The record after everything so far."""
        return self._mode.record

    @property
    def turn(self) -> int:
        """The turn whose reply was the last one; 0 before the first."""
        return self._mode.record.turn

    def begin(self, payload: Payload) -> Event:
        """Write the run's first event, and the checkpoint that the run begins from."""
        event = self._mode.emit(payload, self.turn, reply_step(self.turn))
        self._take_checkpoint()
        self._mode.commit()
        return event

    def input(
        self, message: Message, source: Literal["task", "person", "harness"] = "task"
    ) -> Message:
        """Record a message that came from outside the loop."""
        self._end_turn()
        step = reply_step(self.turn)
        message = self._mode.redact.value(message)
        event = self._mode.emit(InputReceived(message=message, source=source), self.turn, step)
        self._given.remember(message, event.seq)
        return message

    def model(
        self,
        messages: Sequence[Message],
        *,
        sampling: Mapping[str, Any] | None = None,
        read_calls: Callable[[Message, int], list[Call]] = native_calls,
    ) -> Reply:
        """The reply to ``messages``: the next turn begins. Raises ModelError if there is none."""
        question = self.ask(messages, dict(sampling or {}))
        answer = self._mode.ask(question.request, question.request_hash, question.step)
        return self.answered(question, answer, read_calls=read_calls)

    def ask(
        self, messages: Sequence[Message], settings: dict[str, Any], *, turn: int | None = None
    ) -> Question:
        """Write down what the model is about to be asked: the next turn begins, or ``turn`` again.

        The first half of ``model``, for whoever has the answer brought by somebody else.
        """
        self._end_turn()
        turn = self.turn + 1 if turn is None else turn
        step = reply_step(turn)
        context = self._given.seen(messages)
        context_hash = self._hash.of(context)
        request_hash = value_hash([context_hash, self._mode.requested_model, settings])
        before = self.record.logical
        built = self._mode.emit(
            ContextBuilt(
                parts=difference(self._base.context, context),
                messages=len(context),
                context_hash=context_hash,
                request_hash=request_hash,
                sampling=settings,
                base_seq=self._base.seq,
                base_in_parent=self._base.in_parent,
            ),
            turn,
            step,
        )
        self._base = Base(context, built.seq, in_parent=False)
        request = ModelRequest(
            messages=[item.message for item in context],
            tools=self._tools,
            sampling=settings,
            seed=seed_for_turn(self._seed, turn),
            turn=turn,
        )
        return Question(turn, step, request, request_hash, before)

    def exchanged(
        self, question: Question, arguments: list[Any], value: dict[str, Any] | None
    ) -> dict[str, Any]:
        """What one HTTP request for ``question`` brought: ``value``, or what the tape has for it.

        A retry is one more of them in the same turn.
        """
        step, request_hash = question.step, question.request_hash
        if value is None:
            read = self._mode.read("http", arguments, request_hash, step)
        else:
            read = EnvironmentRead(
                source="http", request_hash=request_hash, arguments=arguments, value=value
            )
        self._mode.emit(read, question.turn, step)
        found: dict[str, Any] = read.value
        return found

    def answered(
        self,
        question: Question,
        answer: ModelReplied | ModelFailed | None,
        *,
        read_calls: Callable[[Message, int], list[Call]] = native_calls,
    ) -> Reply:
        """The reply that ``answer`` is, or that the tape has. Raises ModelError if there is none.

        The second half of ``model``.
        """
        turn, step = question.turn, question.step
        if answer is None:
            answer = self._mode.ask(question.request, question.request_hash, step)
        event = self._mode.emit(answer, turn, step)
        self._mode.commit()
        if isinstance(answer, ModelFailed):
            error = self._mode.redact.text(answer.error)
            raise ModelError(error, hint="the run ends here; its journal is valid")
        message: Message = self._mode.redact.value(answer.message)
        self._given.remember(message, event.seq)
        self._open_turn = (turn, event.seq, question.before)
        # A tool runs with what the model said; the context and the journal hold no secret of it.
        return Reply(turn, message, read_calls(answer.message, turn))

    def declare(self, name: str, value: Any) -> None:
        """Write down a static part of what follows, such as the schemas of tools (R12)."""
        part = EnvironmentRead(
            source="declared", request_hash=value_hash([name, value]), arguments=[name], value=value
        )
        self._mode.emit(part, self.turn, reply_step(self.turn))

    def redact(self, value: Any) -> Any:
        """``value`` as it may be written (R11)."""
        return self._mode.redact.value(value)

    def commit(self) -> None:
        """Return once everything up to here is durable."""
        self._mode.commit()

    def tool(
        self,
        call: Call,
        *,
        decide: Callable[[Call], Decision] = allow,
        deliver: Callable[[str], Delivery] = whole,
    ) -> Message:
        """The message that answers ``call``: proposed, authorized, intended, done, delivered.

        A call that is denied or cannot be read is answered without being sent. Raises Waiting when
        the policy holds it for a person.
        """
        step, turn = call.call_id, self.turn
        emit = self._mode.emit
        emit(
            ToolProposed(
                call_id=call.call_id,
                name=call.name,
                arguments=call.arguments,
                problem=call.problem,
            ),
            turn,
            step,
        )
        obstacle = call.problem or self._mode.obstacle(call, step)
        if obstacle:
            return self._deliver(call, self._mode.refuse(call, obstacle, step), deliver)
        crash_point("call.proposed")
        decision = self._decided(call, decide)
        crash_point("call.authorized")
        if decision.decision == "deny":
            text = f"The call was denied: {decision.reason}"
            return self._deliver(call, self._mode.refuse(call, text, step), deliver)
        intent = self._intent(call)
        if intent.effect == "external":
            self._take_checkpoint(step)  # what comes cannot be rolled back with the files (R33)
        emit(intent, turn, step)
        crash_point("call.intended")
        return self._deliver(call, self._mode.act(call, intent, step), deliver)

    def _decided(self, call: Call, decide: Callable[[Call], Decision]) -> Decision:
        """The policy's decision, after a person's answer where it held the call.

        Raises Waiting when nobody has answered yet. The policy is asked again after an answer: what
        it denies today stays denied, and an answer that has expired is none (N12, G11).
        """
        step, turn = call.call_id, self.turn
        decision = decide(call)
        self._mode.emit(ToolAuthorized(call_id=step, **decision._asdict()), turn, step)
        while decision.decision == "hold":
            self._take_checkpoint(step)
            self._mode.emit(ApprovalRequested(call_id=step, reason=decision.reason), turn, step)
            answer = self._mode.approval(step, step)
            if answer is None:
                self._mode.commit()
                crash_point("approval.requested")
                raise Waiting(f"{call.name} ({step}) waits for approval: {decision.reason}")
            decision = self._after_answer(decide(call), answer)
            self._mode.emit(ToolAuthorized(call_id=step, **decision._asdict()), turn, step)
        return decision

    def _after_answer(self, today: Decision, answer: Approval) -> Decision:
        if today.decision == "deny":
            return today
        said = f"{answer.by}: {answer.reason}" if answer.reason else f"by {answer.by}"
        if answer.decision == "deny":
            return Decision("deny", "a person", said)
        if answer.expires_at is not None:
            now = datetime.fromisoformat(self._read("wall_clock"))
            if now >= datetime.fromisoformat(answer.expires_at):
                return Decision("hold", today.policy, f"the approval ended at {answer.expires_at}")
        return Decision("allow", "a person", said)

    def _intent(self, call: Call) -> ToolIntent:
        keyed = self._contracts.get(call.name, Contract()).key
        return ToolIntent(
            call_id=call.call_id,
            name=call.name,
            request_hash=value_hash([call.name, self._mode.redact.value(call.arguments)]),
            effect=self._effects.get(call.name, "external"),
            idempotency_key=value_hash([self.record.run_id, call.call_id])[7:39],
            contract="keyed" if keyed else "plain",
        )

    def _deliver(
        self, call: Call, result: ToolResult, deliver: Callable[[str], Delivery]
    ) -> Message:
        self._mode.emit(result, self.turn, call.call_id)
        crash_point("call.observed")
        text = self._mode.text_of(result)
        shown = deliver(text)
        event = self._mode.emit(
            Delivered(call_id=call.call_id, role=call.role, **shown._asdict()),
            self.turn,
            call.call_id,
        )
        crash_point("call.delivered")
        self._mode.commit()
        delivered = text if shown.text is None else shown.text
        message = tool_message(call.call_id, delivered, call.role)
        self._given.remember(message, event.seq)
        return message

    def compact(self, make: Callable[[], list[Message]], *, reason: str) -> list[Message]:
        """The messages that replace the history; ``make`` is asked once and never again (R10, C05).

        A checkpoint comes first (R33). What is replaced stays in the journal.
        """
        step = reply_step(self.turn)
        self._take_checkpoint()
        messages: list[Message] = self._mode.redact.value(self._mode.summary(make, step))
        self._mode.emit(Compacted(messages=messages, reason=reason), self.turn, step)
        self._mode.commit()
        return messages

    def now(self) -> datetime:
        """The current time, with its zone."""
        return datetime.fromisoformat(self._read("now"))

    def uuid4(self) -> str:
        """A random UUID, version 4."""
        return str(self._read("uuid4"))

    def random(self) -> float:
        """A random number, 0 <= x < 1."""
        return float(self._read("random"))

    def urandom(self, size_bytes: int) -> bytes:
        """``size_bytes`` random bytes."""
        return bytes.fromhex(self._read("urandom", size_bytes))

    def listdir(self, path: str = ".") -> list[str]:
        """The names in ``path`` in the order in which the operating system gave them."""
        return list(self._read("listdir", path))

    def _read(self, source: str, *arguments: Any) -> Any:
        step = reply_step(self.turn)
        request_hash = value_hash([source, *arguments])
        read = self._mode.redact.payload(
            self._mode.read(source, list(arguments), request_hash, step)
        )
        self._mode.emit(read, self.turn, step)
        return read.value

    def finish(self, status: EndStatus, reason: str = "") -> None:
        """End the run: close the turn, write TaskFinished; in replay, check for unused events.

        A run that waits has not ended its turn: it is to go on in the middle of it.
        """
        if status != "waiting":
            self._end_turn()
        self._mode.emit(
            TaskFinished(status=status, reason=reason), self.turn, reply_step(self.turn)
        )
        self._mode.commit()
        self._mode.finish()

    def _end_turn(self) -> None:
        if self._open_turn is None:
            return
        turn, cause_seq, before = self._open_turn
        self._open_turn = None
        self._take_checkpoint()
        self._mode.emit(
            StateTransition(
                cause_seq=cause_seq,
                before_hash=before,
                after_hash=self.record.logical,
                reducer_version=REDUCER_VERSION,
            ),
            turn,
            reply_step(turn),
        )

    def _take_checkpoint(self, step: str | None = None) -> None:
        step = step or reply_step(self.turn)
        checkpoint = self._mode.checkpoint(self.turn, step)
        if checkpoint is not None:
            self._mode.emit(checkpoint, self.turn, step)
            crash_point("checkpoint.written")
