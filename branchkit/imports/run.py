"""A run of any harness between its file and our journal: turns, calls, contexts, what is unknown.

Formats fill it in; ``write`` turns it into events. Nothing here says what a file looks like.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import orjson

from branchkit.journal.events import CallStatus, Component, Effect, EndStatus, Issue, Message

Fidelity = Literal["exact", "rebuilt", "text"]


class Context(NamedTuple):
    """The messages ``pool[start:stop]``. Turns of one conversation share the pool."""

    pool: Sequence[Message]
    start: int
    stop: int


@dataclass
class ImportedCall:
    """One action of a reply. ``status`` stays ``unanswered`` until a result is found."""

    name: str
    arguments: dict[str, Any] | None
    provider_id: str = ""
    problem: str | None = None
    effect: Effect = "external"
    denied: str = ""  # why it was not allowed, where the file says so
    status: CallStatus = "unanswered"
    text: str | None = None  # the whole result

    @property
    def answered(self) -> bool:
        """Whether the file holds its result."""
        return self.text is not None


class Answer(NamedTuple):
    """A result as it came back. ``message`` is what the model was shown; None: nothing was.

    ``shown`` is the text of the message where that is not the whole result.
    """

    call: int  # index into the calls of the turn
    message: Message | None
    shown: str | None = None
    exit_code: int | None = None
    duration_ms: float | None = None
    at: str | None = None


class Input(NamedTuple):
    """A message from outside the loop."""

    message: Message
    source: Literal["task", "person", "harness"]
    at: str | None = None


class Compaction(NamedTuple):
    """What replaced the history so far."""

    messages: list[Message]
    trigger: str
    tokens_before: int | None
    tokens_after: int | None
    at: str | None = None


Happening = Answer | Input | Compaction


@dataclass
class Turn:
    """A reply with what it proposed, and everything up to the next reply in the file's order."""

    context: Context
    reply: Message
    calls: list[ImportedCall] = field(default_factory=list)
    happened: list[Happening] = field(default_factory=list)
    at: str | None = None
    served_model: str = ""
    provider_id: str = ""
    finish_reason: str = ""
    usage: dict[str, int] = field(default_factory=dict)

    def waiting(self) -> list[int]:
        """The indexes of calls without a result yet, in the order of the reply."""
        return [index for index, call in enumerate(self.calls) if not call.answered]


class Child(NamedTuple):
    """A run that a call of this one started; it is counted, not journaled."""

    call: str
    agent: str
    agent_type: str
    turns: int
    calls: list[str]


@dataclass
class ImportedRun:
    """Everything that one file says."""

    format: str
    fidelity: Fidelity
    model: str = ""
    task: str = ""
    opening: list[Happening] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    components: dict[str, Component] = field(default_factory=dict)
    sampling: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)  # versions, base, totals: TaskStarted
    totals: dict[str, float] = field(default_factory=dict)
    started_at: str | None = None
    ended_at: str | None = None
    end: EndStatus = "unknown"
    end_reason: str = ""
    issues: list[Issue] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    children: list[Child] = field(default_factory=list)
    checkpoint_hints: int = 0

    def inputs(self) -> list[Input]:
        """All messages from outside the loop."""
        return [each for each in self.everything() if isinstance(each, Input)]

    def everything(self) -> list[Happening]:
        """All that happened beside replies."""
        return [*self.opening, *(each for turn in self.turns for each in turn.happened)]


def arguments_of(raw: Any) -> tuple[dict[str, Any] | None, str | None]:
    """The arguments of a native call, or why they cannot be read."""
    if isinstance(raw, dict):
        return raw, None
    try:
        value = orjson.loads(raw or "{}")
    except (orjson.JSONDecodeError, TypeError) as error:
        return None, f"the arguments are not JSON: {error}"
    return (value, None) if isinstance(value, dict) else (None, "the arguments are no JSON object")


def text_of(content: Any) -> str:
    """The words of a message's content: a string, or the text parts of a list."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    parts = [part.get("text") if isinstance(part, dict) else part for part in content]
    return "".join(part for part in parts if isinstance(part, str))


def object_of(value: Any) -> dict[str, Any]:
    """``value`` if it is an object, else an empty one: files hold anything anywhere."""
    return value if isinstance(value, dict) else {}


def list_of(value: Any) -> list[Any]:
    """``value`` if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def note_calls(run: ImportedRun) -> None:
    """Add what the calls of the whole run show: ids that repeat or are missing, lost results."""
    seen: set[str] = set()
    repeated: set[str] = set()
    calls = [call for turn in run.turns for call in turn.calls]
    for call in calls:
        if call.provider_id in seen and call.provider_id not in repeated:
            run.issues.append(Issue(code="duplicate_call_id", id=call.provider_id))
            repeated.add(call.provider_id)
        if call.provider_id:
            seen.add(call.provider_id)
    if any(not call.provider_id for call in calls):
        run.issues.append(Issue(code="no_call_ids"))
    for number, turn in enumerate(run.turns, start=1):
        for index, call in enumerate(turn.calls, start=1):
            if not call.answered:
                name = call.provider_id or f"t{number:04d}.{index}"
                run.issues.append(Issue(code="unanswered_call", id=name))
