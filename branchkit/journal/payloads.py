"""What each kind of event says, each field once: the journal's schema (R1-R5, C01).

``VOLATILE`` names the fields that do not affect behaviour and are left out of logical hashes (R7).
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import msgspec

Message = dict[str, Any]  # OpenAI chat shape: role, content, tool_calls, tool_call_id, ...
Effect = Literal["pure", "workspace", "external"]
EndStatus = Literal[
    "completed", "max_turns", "max_calls", "waiting", "failed", "cancelled", "unknown"
]
CallStatus = Literal["completed", "error", "timeout", "aborted", "denied", "unanswered", "mismatch"]
Contract = Literal["plain", "keyed"]
Outcome = Literal["completed", "not sent", "unknown"]


class Payload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one event says. Fields that no reader could do without have no default."""

    VOLATILE: ClassVar[frozenset[str]] = frozenset()


class Component(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One swappable part of the harness: its spec, and what the words of the spec stood for."""

    spec: str
    content: str | None = None  # the text of a prompt, rulebook or tool module: forks need no files


class Issue(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One repair or oddity of an imported file, at its place."""

    code: str
    line: int | None = None
    index: int | None = None
    id: str | None = None
    bytes: int | None = None
    detail: str = ""


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Where an imported run comes from, and how exactly its contexts are known."""

    format: str
    fidelity: Literal["exact", "rebuilt", "text"]
    source: str  # file name without its folder
    source_sha256: str
    importer: int  # version of the rules that were applied
    issues: list[Issue]
    unknown: list[str]  # what the file does not hold: "system prompt", "tool schemas", ...


class TaskStarted(Payload, frozen=True, kw_only=True):
    """The run's first event: the task, the harness by component, and the versions of everything."""

    VOLATILE = frozenset({"versions", "base", "started_at", "origin"})

    task: str
    harness: str  # "branchkit" for the loop of this package, "own" for a user's, else a format
    components: dict[str, Component]
    tools: list[dict[str, Any]]  # schemas as sent to the model, with branchkit's "effect" beside
    budgets: dict[str, int]
    seed: int
    started_at: str  # the run's own clock, which advances by the turn: ISO 8601, UTC
    versions: dict[str, str]
    base: str | None = None  # id of the workspace's base in the pack
    base_hash: str | None = None
    volatile: list[str] = []  # what workspace hashes leave out
    origin: Origin | None = None


class InputReceived(Payload, frozen=True, kw_only=True):
    """A message that came from outside the loop: the task, or a person."""

    message: Message
    source: Literal["task", "person", "harness"] = "task"


class Copied(msgspec.Struct, frozen=True, tag="copy", tag_field="part"):
    """Messages ``start:stop`` of the base context."""

    start: int
    stop: int


class FromEvent(msgspec.Struct, frozen=True, tag="event", tag_field="part"):
    """The message that an event of this run stands for."""

    seq: int


class FromParent(msgspec.Struct, frozen=True, tag="parent", tag_field="part"):
    """The message that an event of the parent run stands for."""

    seq: int


class New(msgspec.Struct, frozen=True, tag="new", tag_field="part"):
    """A message that stands in no event: a system prompt, a result delivered anew after a swap."""

    message: Message


Part = Copied | FromEvent | FromParent | New


class ContextBuilt(Payload, frozen=True, kw_only=True):
    """What the model is about to see, as a difference to an earlier context (R9, R12).

    ``base_seq`` is the ContextBuilt that ``Copied`` parts refer to; it lies in the parent run when
    ``base_in_parent``. ``context_hash`` accumulates over messages and tool schemas.
    """

    # How the context is written down, by positions that one more Checkpoint event would shift. What
    # it says is in context_hash.
    VOLATILE = frozenset({"parts", "base_seq", "base_in_parent"})

    parts: list[Part]
    messages: int
    context_hash: str
    request_hash: str
    sampling: dict[str, Any]
    base_seq: int | None = None
    base_in_parent: bool = False


class ModelReplied(Payload, frozen=True, kw_only=True):
    """One reply, as obtained, with what the provider said about itself (R4)."""

    VOLATILE = frozenset({"provider_id", "provider_call_ids", "duration_ms"})

    message: Message
    request_hash: str
    requested_model: str
    served_model: str
    finish_reason: str
    usage: dict[str, int]
    provider_id: str = ""
    provider_call_ids: list[str] = []
    duration_ms: float | None = None


class ModelFailed(Payload, frozen=True, kw_only=True):
    """The model was asked and gave no reply. An observation: replay gives it again (R53)."""

    VOLATILE = frozenset({"duration_ms"})

    request_hash: str
    error: str
    duration_ms: float | None = None


class ToolProposed(Payload, frozen=True, kw_only=True):
    """The harness read this action out of the reply (R3, first of four).

    ``call_id`` is the journal's own (``call_step``): providers repeat theirs within a run.
    """

    call_id: str
    name: str
    arguments: dict[str, Any] | None
    problem: str | None = None  # why the arguments could not be read


class ToolAuthorized(Payload, frozen=True, kw_only=True):
    """What the policy decided, and by which of its rules (R3, second of four)."""

    call_id: str
    decision: Literal["allow", "deny", "hold"]
    policy: str
    reason: str


class ApprovalRequested(Payload, frozen=True, kw_only=True):
    """The policy held the call for a person; the run waits."""

    call_id: str
    reason: str


class ApprovalResolved(Payload, frozen=True, kw_only=True):
    """What a person said of a call that was held. Past ``expires_at`` it counts for nothing."""

    call_id: str
    decision: Literal["allow", "deny"]
    by: str
    reason: str = ""
    expires_at: str | None = None  # ISO 8601 with a zone


class ToolIntent(Payload, frozen=True, kw_only=True):
    """The call is about to leave the host: durable before it does (R20; R3, third of four)."""

    VOLATILE = frozenset({"idempotency_key", "contract"})

    call_id: str
    name: str
    request_hash: str
    effect: Effect
    idempotency_key: str
    contract: Contract = "plain"  # keyed: whoever gets the call does it once for each key


class ToolResult(Payload, frozen=True, kw_only=True):
    """The whole observation (R3, last of four). Text over the inline limit stands in the blobs."""

    VOLATILE = frozenset({"duration_ms"})

    call_id: str
    status: CallStatus
    sha256: str  # of the whole text, bare hex
    bytes: int
    text: str | None = None
    blob: str | None = None
    exit_code: int | None = None
    duration_ms: float | None = None


class Escalated(Payload, frozen=True, kw_only=True):
    """Only a person can say what became of this call; the run waits and sends nothing (R22)."""

    call_id: str
    question: str


class Settled(Payload, frozen=True, kw_only=True):
    """What became of a call that was in doubt, and who knows it (R22).

    ``not sent`` means that its effect is not in the world and will not come: it was never done, or
    was undone with the files (``redo``). After ``completed`` and ``unknown`` the call has a result.
    """

    call_id: str
    outcome: Outcome
    by: Literal["key", "probe", "person", "redo"]
    who: str = ""
    detail: str = ""


class Resumed(Payload, frozen=True, kw_only=True):
    """Another process goes on with the run, as if its journal ended with ``continues_after``.

    What stands between that event and this one is set aside: it happened and the run does not
    build on it. ``record_hash`` is the record's hash after ``continues_after``.
    """

    continues_after: int
    record_hash: str
    snapshot: str | None = None  # of the workspace that it goes on with
    redone: list[str] = []  # calls whose effect on the files was undone with them


class Cancelled(Payload, frozen=True, kw_only=True):
    """A person ended the run; it is not resumed."""

    by: str
    reason: str = ""


class Delivered(Payload, frozen=True, kw_only=True):
    """What of a result the model is shown. ``text`` is None where that is the whole result.

    ``role`` is ``user`` for harnesses that speak plain text. ``message`` is the message word for
    word, where it is neither plain form (imports).
    """

    call_id: str
    rule: str
    text: str | None = None
    role: Literal["tool", "user"] = "tool"
    message: Message | None = None
    omitted_lines: int = 0
    omitted_bytes: int = 0


class EnvironmentRead(Payload, frozen=True, kw_only=True):
    """A clock, an identifier, entropy or a listing that the harness asked for (R52)."""

    source: str
    request_hash: str
    arguments: list[Any]
    value: Any


class Compacted(Payload, frozen=True, kw_only=True):
    """The messages that replace the history so far, exactly as obtained (R10)."""

    VOLATILE = frozenset({"tokens_before"})

    messages: list[Message]
    reason: str
    tokens_before: int | None = None


class StateTransition(Payload, frozen=True, kw_only=True):
    """The record before and after a turn (R5)."""

    cause_seq: int
    before_hash: str
    after_hash: str
    reducer_version: int


class Checkpoint(Payload, frozen=True, kw_only=True):
    """A workspace snapshot bound to this place of the journal, durable before this was written."""

    VOLATILE = frozenset({"snapshot", "changed_bytes", "duration_ms"})

    record_hash: str
    snapshot: str
    tree_hash: str
    files: int
    changed_bytes: int
    duration_ms: float | None = None  # how long the run stood still for it


class Forked(Payload, frozen=True, kw_only=True):
    """First event of a branch: where in which run it begins, and what is different."""

    VOLATILE = frozenset({"parent_run_id", "parent_event_hash", "snapshot", "arm", "seed"})

    parent_run_id: str
    parent_seq: int
    parent_event_hash: str
    turn: int
    arm: str
    seed: int
    swap: dict[str, str] | None  # {"component", "spec", "hash"}; None in the control arm
    components: dict[str, Component]
    budgets: dict[str, int]
    snapshot: str | None = None
    redelivered_from: int = 1


class TaskFinished(Payload, frozen=True, kw_only=True):
    """The run's end and why it ended."""

    status: EndStatus
    reason: str = ""
