"""Answers of ``ModelServer`` in the three dialects, whole or streamed, for tests of real SDKs.

    said = Said("It is 5.", calls=[("add", {"a": 2, "b": 3})])
    ModelServer([chat(said, stream=True), responses(said), messages(said, stream=True)])

What is streamed comes in pieces as small as real providers', so a client has to put names,
arguments and texts together. ``cut`` of ``model_server`` ends any of them anywhere.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from branchkit.testing.model_server import Answer

PIECE = 5  # characters of a text or of arguments in one event
EVENT_STREAM = {"content-type": "text/event-stream"}


class Said(NamedTuple):
    """What a reply says, whatever the dialect: text, and calls as name and arguments."""

    text: str = ""
    calls: Sequence[tuple[str, dict[str, Any]]] = ()


def zipped(answer: Answer) -> Answer:
    """``answer`` with its body compressed, as most providers send it."""
    headers = {**answer.headers, "content-encoding": "gzip"}
    return answer._replace(body=gzip.compress(answer.body, mtime=0), headers=headers)


def chat(said: Said, *, stream: bool = False) -> Answer:
    """A chat completion."""
    calls = [
        {"id": f"call_{n}", "type": "function",
         "function": {"name": name, "arguments": json.dumps(given)}}
        for n, (name, given) in enumerate(said.calls)
    ]  # fmt: skip
    reason = "tool_calls" if calls else "stop"
    told = {"id": "chatcmpl-1", "created": 0, "model": "scripted"}
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    if not stream:
        message = {"role": "assistant", "content": said.text or None}
        choice = {"index": 0, "finish_reason": reason, "message": message}
        if calls:
            message["tool_calls"] = calls  # type: ignore[assignment]
        return _whole({**told, "object": "chat.completion", "choices": [choice], "usage": usage})
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"content": piece} for piece in _pieces(said.text)]
    for n, one in enumerate(calls):
        head = {"index": n, **one, "function": {"name": said.calls[n][0], "arguments": ""}}
        deltas.append({"tool_calls": [head]})
        for piece in _pieces(str(one["function"]["arguments"])):  # type: ignore[index]
            deltas.append({"tool_calls": [{"index": n, "function": {"arguments": piece}}]})
    chunk = {**told, "object": "chat.completion.chunk"}
    events = [{**chunk, "choices": [_choice(delta)]} for delta in deltas]
    events.append({**chunk, "choices": [_choice({}, reason)]})
    events.append({**chunk, "choices": [], "usage": usage})
    return _streamed([(None, one) for one in events], "data: [DONE]\n\n")


def _choice(delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "finish_reason": reason}


def responses(said: Said, *, stream: bool = False) -> Answer:
    """An answer of the Responses endpoint."""
    items: list[dict[str, Any]] = []
    if said.text:
        part = {"type": "output_text", "text": said.text, "annotations": []}
        items.append(
            {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed",
             "content": [part]}
        )  # fmt: skip
    for n, (name, given) in enumerate(said.calls):
        items.append(
            {"id": f"fc_{n}", "type": "function_call", "call_id": f"call_{n}", "name": name,
             "arguments": json.dumps(given), "status": "completed"}
        )  # fmt: skip
    usage = {
        "input_tokens": 10, "output_tokens": 5, "total_tokens": 15,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 0},
    }  # fmt: skip
    body = {
        "id": "resp_1", "object": "response", "created_at": 0, "model": "scripted",
        "status": "completed", "output": items, "usage": usage, "parallel_tool_calls": True,
        "tool_choice": "auto", "tools": [],
    }  # fmt: skip
    if not stream:
        return _whole(body)
    return _streamed(list(_response_events(body, items)), "")


def _response_events(
    body: dict[str, Any], items: list[dict[str, Any]]
) -> Iterator[tuple[str, dict[str, Any]]]:
    begun = {**body, "status": "in_progress", "output": [], "usage": None}
    yield "response.created", {"response": begun}
    for at, item in enumerate(items):
        place = {"output_index": at, "item_id": item["id"]}
        if item["type"] == "message":
            yield (
                "response.output_item.added",
                {"output_index": at, "item": {**item, "content": []}},
            )
            empty = {"type": "output_text", "text": "", "annotations": []}
            yield "response.content_part.added", {**place, "content_index": 0, "part": empty}
            for piece in _pieces(item["content"][0]["text"]):
                said = {"content_index": 0, "delta": piece, "logprobs": []}
                yield "response.output_text.delta", {**place, **said}
        else:
            begun_item = {**item, "arguments": "", "status": "in_progress"}
            yield "response.output_item.added", {"output_index": at, "item": begun_item}
            for piece in _pieces(item["arguments"]):
                yield "response.function_call_arguments.delta", {**place, "delta": piece}
        yield "response.output_item.done", {"output_index": at, "item": item}
    yield "response.completed", {"response": body}


def messages(said: Said, *, stream: bool = False) -> Answer:
    """An answer of Anthropic's Messages endpoint."""
    blocks: list[dict[str, Any]] = [{"type": "text", "text": said.text}] if said.text else []
    for n, (name, given) in enumerate(said.calls):
        blocks.append({"type": "tool_use", "id": f"toolu_{n}", "name": name, "input": given})
    usage = {"input_tokens": 10, "output_tokens": 5}
    body = {
        "id": "msg_1", "type": "message", "role": "assistant", "model": "scripted",
        "content": blocks, "stop_reason": "tool_use" if said.calls else "end_turn",
        "stop_sequence": None, "usage": usage,
    }  # fmt: skip
    if not stream:
        return _whole(body)
    return _streamed(list(_message_events(body, blocks)), "")


def _message_events(
    body: dict[str, Any], blocks: list[dict[str, Any]]
) -> Iterator[tuple[str, dict[str, Any]]]:
    begun = {**body, "content": [], "stop_reason": None}
    yield "message_start", {"message": begun}
    for at, block in enumerate(blocks):
        empty = {**block, "text": ""} if block["type"] == "text" else {**block, "input": {}}
        yield "content_block_start", {"index": at, "content_block": empty}
        if block["type"] == "text":
            for piece in _pieces(block["text"]):
                told = {"type": "text_delta", "text": piece}
                yield "content_block_delta", {"index": at, "delta": told}
        else:
            for piece in _pieces(json.dumps(block["input"])):
                told = {"type": "input_json_delta", "partial_json": piece}
                yield "content_block_delta", {"index": at, "delta": told}
        yield "content_block_stop", {"index": at}
    ended = {"stop_reason": body["stop_reason"], "stop_sequence": None}
    yield "message_delta", {"delta": ended, "usage": {"output_tokens": 5}}
    yield "message_stop", {}


def _pieces(text: str) -> Iterator[str]:
    return (text[at : at + PIECE] for at in range(0, len(text), PIECE))


def _whole(body: dict[str, Any]) -> Answer:
    return Answer(200, json.dumps(body).encode("ascii"))


def _streamed(events: Iterable[tuple[str | None, dict[str, Any]]], end: str) -> Answer:
    """Server-sent events; those with a name carry it as ``type`` too, and a number."""
    text = ""
    for number, (name, body) in enumerate(events):
        told = body if name is None else {"type": name, "sequence_number": number, **body}
        head = "" if name is None else f"event: {name}\n"
        # Not ASCII only: a piece of the stream may end within a character.
        text += f"{head}data: {json.dumps(told, ensure_ascii=False)}\n\n"
    return Answer(200, (text + end).encode(), headers=EVENT_STREAM)
