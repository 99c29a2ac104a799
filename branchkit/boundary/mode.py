"""What a session and its mode say to each other: decisions, deliveries, replies, and the modes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from branchkit.boundary.calls import Call
from branchkit.boundary.contract import Contract
from branchkit.boundary.model import ModelRequest
from branchkit.journal.events import (
    Checkpoint,
    EnvironmentRead,
    Event,
    Message,
    ModelFailed,
    ModelReplied,
    Payload,
    ToolIntent,
    ToolResult,
)
from branchkit.journal.redact import Redactor
from branchkit.record.context import Seen
from branchkit.record.record import Approval, Record


class Decision(NamedTuple):
    """What a policy says of one call."""

    decision: Literal["allow", "deny", "hold"]
    policy: str = "allow"
    reason: str = "no rule says otherwise"


class Delivery(NamedTuple):
    """What of a result the model is shown: ``text`` is None where that is the whole result."""

    rule: str = "none"
    text: str | None = None
    omitted_lines: int = 0
    omitted_bytes: int = 0


class Reply(NamedTuple):
    """A reply, with the calls in it and the message that stands for it in the next context."""

    turn: int
    message: Message
    calls: list[Call]

    @property
    def text(self) -> str:
        """What the model said beside its calls."""
        return str(self.message.get("content") or "")


class Question(NamedTuple):
    """A request to a model that is written down; ``before`` is the record's hash before it."""

    turn: int
    step: str
    request: ModelRequest
    request_hash: str
    before: str


class Mode(Protocol):
    """Where answers come from and where events go."""

    record: Record
    requested_model: str
    redact: Redactor  # every text that a harness hands in or gets goes through it (R11)

    def emit(self, payload: Payload, turn: int, step_id: str) -> Event: ...
    def commit(self) -> None: ...
    def ask(
        self, request: ModelRequest, request_hash: str, step_id: str
    ) -> ModelReplied | ModelFailed: ...
    def act(self, call: Call, intent: ToolIntent, step_id: str) -> ToolResult: ...
    def refuse(self, call: Call, text: str, step_id: str) -> ToolResult: ...
    def text_of(self, result: ToolResult) -> str: ...
    def read(
        self, source: str, arguments: list[Any], request_hash: str, step_id: str
    ) -> EnvironmentRead: ...
    def checkpoint(self, turn: int, step_id: str) -> Checkpoint | None: ...
    def obstacle(self, call: Call, step_id: str) -> str: ...
    def approval(self, call_id: str, step_id: str) -> Approval | None: ...
    def summary(self, make: Callable[[], list[Message]], step_id: str) -> list[Message]: ...
    def finish(self) -> None: ...


class Base(NamedTuple):
    """The recorded context that a branch begins with, and where its messages stand."""

    context: list[Seen]
    seq: int | None
    in_parent: bool
    later: Sequence[Seen] = ()  # messages of parent events that no context of it holds yet


def allow(_call: Call) -> Decision:
    """Let every call through."""
    return Decision("allow")


def whole(_text: str) -> Delivery:
    """Show the model the whole result."""
    return Delivery()


def contracts_of(tools: Sequence[dict[str, Any]]) -> dict[str, Contract]:
    """How calls are settled, by the name of the tool, where it declares anything."""
    return {
        tool["function"]["name"]: Contract(**tool["settle"]) for tool in tools if "settle" in tool
    }
