"""The context object that a harness talks to, the same in record and in replay mode.

A harness asks a ``Session`` for everything that is not its own arithmetic: replies, tool calls, the
time, identifiers, entropy, listings. The session keeps the order proposal, authorization, intent,
action, observation, delivery (R20) and turns each into an event; its *mode* decides whether the
answer comes from the world (``Recording``) or from the tape (``Replaying``).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, NamedTuple

from branchkit.boundary.calls import Call, native_calls
from branchkit.boundary.contract import Contract
from branchkit.boundary.mode import Base as Base
from branchkit.boundary.mode import Decision as Decision
from branchkit.boundary.mode import Delivery as Delivery
from branchkit.boundary.mode import Mode as Mode
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
    Event,
    InputReceived,
    Message,
    ModelFailed,
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
    Seen,
    difference,
    plain_tools,
    seen,
    tool_message,
)
from branchkit.record.record import REDUCER_VERSION, Approval, Record


class _Hashed(NamedTuple):
    """A message as it was handed in, a copy of it as it was then, and what is known of it."""

    given: Message
    copied: Message
    item: Seen


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
        self._known = {item.message_hash: item for item in self._base.later}
        self._last: list[_Hashed] = []  # the last context as it was handed in
        self._copies: list[Message] = []  # its messages as they were then
        self._items: list[Seen] = []  # and as they are known
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
        self._remember(message, event)
        return message

    def model(
        self,
        messages: Sequence[Message],
        *,
        sampling: Mapping[str, Any] | None = None,
        read_calls: Callable[[Message, int], list[Call]] = native_calls,
    ) -> Reply:
        """The reply to ``messages``: the next turn begins. Raises ModelError if there is none."""
        self._end_turn()
        turn = self.turn + 1
        step = reply_step(turn)
        settings = dict(sampling or {})
        context = self._seen(messages)
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
        answer = self._mode.ask(request, request_hash, step)
        event = self._mode.emit(answer, turn, step)
        self._mode.commit()
        if isinstance(answer, ModelFailed):
            error = self._mode.redact.text(answer.error)
            raise ModelError(error, hint="the run ends here; its journal is valid")
        message: Message = self._mode.redact.value(answer.message)
        self._remember(message, event)
        self._open_turn = (turn, event.seq, before)
        # A tool runs with what the model said; the context and the journal hold no secret of it.
        return Reply(turn, message, read_calls(answer.message, turn))

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
        self._remember(message, event)
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

    def _seen(self, messages: Sequence[Message]) -> list[Seen]:
        """The messages with their hashes and events; what was in the last context is not rehashed.

        A loop hands its whole growing list in at every turn: hashing it all would be quadratic. An
        object counts as the same only while it equals the copy taken of it, so a message that was
        changed in place is seen anew.
        """
        given, count = list(messages), len(self._copies)
        if self._copies != given[:count]:  # compared in C, some nanoseconds a message
            by_id = {id(known.given): known for known in self._last}
            kept = [by_id.get(id(message)) for message in given]
            self._last = []
            for known, message in zip(kept, given, strict=True):
                same = known is not None and known.copied == message
                self._last.append(known if known and same else self._hashed(message))
            self._copies = [known.copied for known in self._last]
            self._items = [known.item for known in self._last]
            return list(self._items)
        for message in given[count:]:
            known = self._hashed(message)
            self._last.append(known)
            self._copies.append(known.copied)
            self._items.append(known.item)
        return list(self._items)

    def _hashed(self, message: Message) -> _Hashed:
        copied = copy.deepcopy(message)
        item = seen(copied)
        known = self._known.get(item.message_hash)
        if known is None:  # else it has been redacted before
            clean = self._mode.redact.value(copied)
            item = item if clean is copied else seen(clean)
            known = self._known.get(item.message_hash, item)
        return _Hashed(message, copied, known)

    def _remember(self, message: Message, event: Event) -> None:
        item = seen(message, event.seq)
        self._known[item.message_hash] = item
