"""An event: an envelope around one payload of a closed union of kinds (``payloads``).

A line of another kind or version is a clear error, never skipped. The logical hash leaves out the
volatile fields of the payload and the envelope's ``recorded_at``, ``run_id`` and hashes (R7).
"""

from __future__ import annotations

import contextlib
import datetime
from decimal import Decimal
from typing import NamedTuple

import msgspec

from branchkit.errors import InputRefused
from branchkit.journal.format import SCHEMA_VERSION, Json, closed_canonical, digest, value_hash
from branchkit.journal.payloads import (
    ApprovalRequested,
    ApprovalResolved,
    CallStatus,
    Cancelled,
    Checkpoint,
    Compacted,
    Component,
    ContextBuilt,
    Contract,
    Copied,
    Delivered,
    Effect,
    EndStatus,
    EnvironmentRead,
    Escalated,
    Forked,
    FromEvent,
    FromParent,
    InputReceived,
    Issue,
    Message,
    ModelFailed,
    ModelReplied,
    New,
    Origin,
    Outcome,
    Part,
    Payload,
    Resumed,
    Settled,
    StateTransition,
    TaskFinished,
    TaskStarted,
    ToolAuthorized,
    ToolIntent,
    ToolProposed,
    ToolResult,
)
from branchkit.journal.shapes import decoded, shape

__all__ = [
    "KINDS",
    "ApprovalRequested",
    "ApprovalResolved",
    "CallStatus",
    "Cancelled",
    "Checkpoint",
    "Compacted",
    "Component",
    "ContextBuilt",
    "Contract",
    "Copied",
    "Delivered",
    "Effect",
    "EndStatus",
    "EnvironmentRead",
    "Escalated",
    "Event",
    "Forked",
    "FromEvent",
    "FromParent",
    "InputReceived",
    "Issue",
    "Message",
    "ModelFailed",
    "ModelReplied",
    "New",
    "Origin",
    "Outcome",
    "Part",
    "Payload",
    "Resumed",
    "Settled",
    "StateTransition",
    "TaskFinished",
    "TaskStarted",
    "ToolAuthorized",
    "ToolIntent",
    "ToolProposed",
    "ToolResult",
    "call_step",
    "check_payload",
    "decode_payload",
    "logical_hash",
    "parse_payload",
    "payload_json",
    "reply_step",
]  # fmt: skip

KINDS: dict[str, type[Payload]] = {
    kind.__name__: kind
    for kind in (
        TaskStarted, InputReceived, ContextBuilt, ModelReplied, ModelFailed, ToolProposed,
        ToolAuthorized, ApprovalRequested, ApprovalResolved, ToolIntent, ToolResult, Escalated,
        Settled, Resumed, Cancelled, Delivered, EnvironmentRead, Compacted, StateTransition,
        Checkpoint, Forked, TaskFinished,
    )
}  # fmt: skip


class Event(NamedTuple):
    """One event with its envelope. ``turn`` 0 is the start; ``step_id`` names reply or call."""

    seq: int
    turn: int
    step_id: str
    payload: Payload
    recorded_at: str
    run_id: str
    prev_event_hash: str
    event_hash: str

    @property
    def kind(self) -> str:
        """The payload's kind, as in the envelope."""
        return type(self.payload).__name__


# msgspec would turn these into strings without a word; left as they are, ``canonical`` refuses.
_NOT_JSON = (
    bytes, bytearray, memoryview, Decimal,
    datetime.datetime, datetime.date, datetime.time, datetime.timedelta,
)  # fmt: skip


def payload_json(payload: Payload) -> dict[str, Json]:
    """The payload as plain JSON values. Raises ValueError if it is nested beyond the stack."""
    try:
        plain: dict[str, Json] = msgspec.to_builtins(
            payload, builtin_types=_NOT_JSON, order="deterministic"
        )
    except RecursionError:
        raise ValueError("nested too deeply to be written as JSON text") from None
    return plain


def check_payload(kind: str, plain: Json) -> None:
    """Return if a reader will accept the payload ``plain``. Raises ValueError.

    A struct does not check its fields when it is made, so a wrong literal would only be found by
    whoever opens the journal later.
    """
    try:
        msgspec.convert(plain, KINDS[kind])
    except KeyError:
        raise ValueError(f"{kind} is no kind of event") from None
    except msgspec.ValidationError as error:
        raise ValueError(f"{kind}: {error}") from None


def parse_payload(kind: str, version: int, value: Json) -> Payload:
    """The typed payload. Raises InputRefused for a kind, a version or a shape that is not known."""
    if version != SCHEMA_VERSION:
        raise InputRefused(
            f"schema version {version} is not {SCHEMA_VERSION}",
            hint="a newer branchkit wrote this journal: upgrade with pip install -U",
        )
    if kind not in KINDS:
        raise InputRefused(
            f"unknown kind of event {kind!r}", hint="a newer branchkit may have written it"
        )
    try:
        return msgspec.convert(value, KINDS[kind])
    except msgspec.ValidationError as error:
        raise InputRefused(
            f"{kind}: {error}", hint="the line is not what branchkit writes"
        ) from None


def decode_payload(kind: str, text: bytes) -> Payload | None:
    """What ``parse_payload`` gives, from the JSON text itself; None where that takes more care."""
    return decoded(KINDS[kind], text) if kind in KINDS else None


def logical_hash(event: Event) -> str:
    """The hash of what affects behaviour: kind, place and payload without volatile fields (R7)."""
    payload = event.payload
    fields = shape(type(payload))
    content = dict(zip(fields.names, fields.values(payload), strict=True))
    told = [type(payload).__name__, event.turn, event.step_id, content]
    if fields.plain:
        for field in fields.open:
            value = content[field]
            if value or type(value) is float:
                break
        else:  # nothing, or an empty list or object, has one spelling
            text = closed_canonical(told)
            if text is not None:
                return digest(text)
        with contextlib.suppress(TypeError):  # a struct where any value may stand
            return value_hash(told)
    plain = payload_json(payload)
    told[3] = {name: plain[name] for name in fields.names}
    return value_hash(told)


def reply_step(turn: int) -> str:
    """The step of the reply of ``turn``: ``t0023``."""
    return f"t{turn:04d}"


def call_step(turn: int, number: int) -> str:
    """The step, and the id, of call ``number`` (from 1) of ``turn``: ``t0023.2``."""
    return f"t{turn:04d}.{number}"
