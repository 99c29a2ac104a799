"""The calls in a reply, under the journal's own ids.

Providers repeat call ids within a run (49 of 200 runs of one published benchmark do), so the id of
a call is its step: ``t0023.2``. Adapters write it ``t0023-2`` on the wire, since some providers
take letters, digits, ``_`` and ``-`` only.
"""

from __future__ import annotations

import json
import re
from typing import Any, Literal, NamedTuple

import msgspec
import orjson

from branchkit.journal.events import Message, call_step

_HALF = re.compile(r"\\u[dD][89a-fA-F]")


class Call(NamedTuple):
    """One action that a reply proposes. ``problem`` says why its arguments cannot be read."""

    call_id: str
    name: str
    arguments: dict[str, Any] | None
    problem: str | None = None
    role: Literal["tool", "user"] = "tool"  # of the message that answers it


class _Function(msgspec.Struct):
    name: str
    arguments: str | dict[str, Any] | None = None


class _ProposedCall(msgspec.Struct):
    function: _Function
    id: str | None = None
    type: str = "function"


class _Reply(msgspec.Struct):
    role: str = "assistant"
    content: str | list[dict[str, Any]] | None = None
    tool_calls: list[_ProposedCall] | None = None
    refusal: str | None = None


def reply_message(value: Any) -> Message:
    """The assistant message in OpenAI shape that ``value`` is, without what else stands in it.

    Raises ValueError if it is none: nothing behind the boundary looks at its types again.
    """
    plain = msgspec.to_builtins(msgspec.convert(value, _Reply))
    return {"content": ""} | {name: item for name, item in plain.items() if item is not None}


def provider_ids(message: Message) -> list[str]:
    """The ids that the provider gave the calls of ``message``."""
    return [str(call.get("id", "")) for call in message.get("tool_calls") or []]


def with_own_ids(message: Message, turn: int) -> Message:
    """``message`` with the journal's ids in place of the provider's."""
    calls = message.get("tool_calls") or []
    if not calls:
        return {key: value for key, value in message.items() if key != "tool_calls"}
    own = [{**call, "id": call_step(turn, number)} for number, call in enumerate(calls, start=1)]
    return {**message, "tool_calls": own}


def native_calls(message: Message, turn: int) -> list[Call]:
    """The calls that stand in ``tool_calls`` of an assistant message, in order."""
    return [
        _call(call_step(turn, number), call.get("function") or {})
        for number, call in enumerate(message.get("tool_calls") or [], start=1)
    ]


def _parsed(text: str) -> Any:
    """The JSON value that ``text`` spells. Raises ValueError."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        # Half a surrogate pair as an escape is JSON, and models do write it; orjson refuses it.
        if not _HALF.search(text):
            raise
        return json.loads(text, parse_constant=_refuse)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _call(call_id: str, function: dict[str, Any]) -> Call:
    name, raw = str(function.get("name", "")), function.get("arguments", "")
    if isinstance(raw, dict):
        return Call(call_id, name, raw)
    try:
        arguments = _parsed(raw or "{}")
    except ValueError as error:
        return Call(call_id, name, None, f"The arguments of {name} are not JSON: {error}")
    if not isinstance(arguments, dict):
        return Call(call_id, name, None, f"The arguments of {name} are not a JSON object")
    return Call(call_id, name, arguments)
