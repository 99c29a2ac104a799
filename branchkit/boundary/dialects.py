"""What a request to a model asks and what its answer says, in the three dialects of HTTP.

Chat completions, Responses (both OpenAI's), and Messages (Anthropic's); streamed or whole. Only
read here: what was sent and received is kept to the letter by ``intercept``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from branchkit.boundary.calls import reply_message
from branchkit.journal.events import Message

Body = dict[str, Any]


class Asked(NamedTuple):
    """A request's body: the messages, and everything else that it says."""

    messages: list[Message]
    settings: Body


class Answered(NamedTuple):
    """What an answer says. ``message`` is in OpenAI chat shape."""

    message: Message
    finish_reason: str
    usage: dict[str, int]
    served_model: str
    provider_id: str


class Dialect(NamedTuple):
    """How one kind of endpoint speaks."""

    path_end: str
    split: Callable[[Body], Asked]
    whole: Callable[[Body], Answered]
    streamed: Callable[[list[Body]], Body | None]  # None: the end marker did not come


def dialect_of(path: str) -> Dialect | None:
    """The dialect of an endpoint by the end of its path; None if it is no model's."""
    return next((one for one in DIALECTS if path.rstrip("/").endswith(one.path_end)), None)


def read_answer(dialect: Dialect, text: str, *, stream: bool) -> Answered | None:
    """What ``text``, a body with status 200, says; None if it is cut off or is no answer.

    A stream is whole when the protocol's own end marker has come, whatever the connection did:
    clients stop reading there.
    """
    try:
        found = dialect.streamed(list(_events(text))) if stream else json.loads(text)
        return None if found is None else dialect.whole(found)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError):
        return None


def _events(text: str) -> Iterator[Body]:
    """The JSON of each server-sent event; the marker ``[DONE]`` is ``{"done": true}``."""
    for block in text.replace("\r\n", "\n").split("\n\n"):
        lines = [line[5:].lstrip() for line in block.split("\n") if line.startswith("data:")]
        if not lines:
            continue
        data = "\n".join(lines)
        yield {"done": True} if data.strip() == "[DONE]" else json.loads(data)


def _answered(
    text: str, calls: list[Body], reason: object, usage: object, told: Mapping[str, Any]
) -> Answered:
    message = reply_message({"content": text, **({"tool_calls": calls} if calls else {})})
    numbers = usage if isinstance(usage, dict) else {}
    counted = {name: value for name, value in numbers.items() if type(value) is int}
    model, own_id = told.get("model"), told.get("id")
    return Answered({"role": "assistant", **message}, str(reason or ""), counted,
                    str(model or ""), str(own_id or ""))  # fmt: skip


def _call(own_id: object, name: object, arguments: object) -> Body:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": str(own_id), "type": "function", "function": {"name": name, "arguments": text}}


# --- chat completions ---


def _chat_split(body: Body) -> Asked:
    rest = {name: value for name, value in body.items() if name != "messages"}
    return Asked(list(body["messages"]), rest)


def _chat_whole(body: Body) -> Answered:
    choice = body["choices"][0]
    said = choice["message"]
    calls = [
        _call(one.get("id", ""), one["function"]["name"], one["function"].get("arguments", ""))
        for one in said.get("tool_calls") or []
    ]
    text = said.get("content") or ""
    return _answered(text, calls, choice.get("finish_reason"), body.get("usage"), body)


def _chat_streamed(events: list[Body]) -> Body | None:
    if not events or events[-1] != {"done": True}:
        return None
    text, calls, reason, usage, told = "", dict[int, Body](), None, None, dict[str, Any]()
    for event in events[:-1]:
        told = told or event
        usage = event.get("usage") or usage
        for choice in event.get("choices") or []:
            delta = choice.get("delta") or {}
            text += delta.get("content") or ""
            reason = choice.get("finish_reason") or reason
            for piece in delta.get("tool_calls") or []:
                call = calls.setdefault(piece["index"], {"function": {"name": "", "arguments": ""}})
                call["id"] = piece.get("id") or call.get("id", "")
                function = piece.get("function") or {}
                call["function"]["name"] += function.get("name") or ""
                call["function"]["arguments"] += function.get("arguments") or ""
    message = {"content": text, "tool_calls": [calls[at] for at in sorted(calls)]}
    return {
        "id": told.get("id"), "model": told.get("model"), "usage": usage,
        "choices": [{"message": message, "finish_reason": reason}],
    }  # fmt: skip


# --- Responses ---


def _responses_split(body: Body) -> Asked:
    given = body.get("input", [])
    messages = [{"role": "user", "content": given}] if isinstance(given, str) else list(given)
    if "instructions" in body:
        messages.insert(0, {"role": "system", "content": body["instructions"]})
    rest = {name: value for name, value in body.items() if name not in ("input", "instructions")}
    return Asked(messages, rest)


def _responses_whole(body: Body) -> Answered:
    text, calls = "", []
    for item in body["output"]:
        if item["type"] == "function_call":
            calls.append(_call(item.get("call_id", ""), item["name"], item["arguments"]))
        elif item["type"] == "message":
            text += "".join(part.get("text") or "" for part in item["content"])
    return _answered(text, calls, body.get("status"), body.get("usage"), body)


def _responses_streamed(events: list[Body]) -> Body | None:
    ends = ("response.completed", "response.incomplete", "response.failed")
    return next((event["response"] for event in events if event.get("type") in ends), None)


# --- Messages ---


def _messages_split(body: Body) -> Asked:
    messages = list(body["messages"])
    if "system" in body:
        messages.insert(0, {"role": "system", "content": body["system"]})
    rest = {name: value for name, value in body.items() if name not in ("messages", "system")}
    return Asked(messages, rest)


def _messages_whole(body: Body) -> Answered:
    blocks = body["content"]
    text = "".join(one["text"] for one in blocks if one["type"] == "text")
    calls = [_call(b["id"], b["name"], b["input"]) for b in blocks if b["type"] == "tool_use"]
    return _answered(text, calls, body.get("stop_reason"), body.get("usage"), body)


def _messages_streamed(events: list[Body]) -> Body | None:
    if not any(event.get("type") == "message_stop" for event in events):
        return None
    message: Body = {}
    blocks: dict[int, Body] = {}
    inputs: dict[int, str] = {}
    for event in events:
        match event.get("type"):
            case "message_start":
                message = dict(event["message"])
            case "content_block_start":
                blocks[event["index"]] = dict(event["content_block"])
            case "content_block_delta":
                delta, at = event["delta"], event["index"]
                if delta["type"] == "text_delta":
                    blocks[at]["text"] = blocks[at].get("text", "") + delta["text"]
                elif delta["type"] == "input_json_delta":
                    inputs[at] = inputs.get(at, "") + delta["partial_json"]
            case "message_delta":
                message.update(event["delta"])
                message["usage"] = {**message.get("usage", {}), **(event.get("usage") or {})}
            case _:
                continue
    for at, given in inputs.items():
        blocks[at]["input"] = json.loads(given or "{}")
    return {**message, "content": [blocks[at] for at in sorted(blocks)]}


DIALECTS = (
    Dialect("/chat/completions", _chat_split, _chat_whole, _chat_streamed),
    Dialect("/responses", _responses_split, _responses_whole, _responses_streamed),
    Dialect("/messages", _messages_split, _messages_whole, _messages_streamed),
)
