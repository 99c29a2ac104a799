"""``openai:NAME[@URL]``: chat completions at any base URL (OpenAI, vLLM, llama.cpp, a gateway).

The key comes from ``OPENAI_API_KEY`` at the moment of the call and is never part of an event.
"""

from __future__ import annotations

import os
import time
from typing import Any

from branchkit.boundary.model import ModelReply, ModelRequest
from branchkit.errors import ModelError, UsageError
from branchkit.journal.events import Message

DEFAULT_URL = "https://api.openai.com/v1"
TIMEOUT_S = 120.0
ATTEMPTS = 4
_RETRIED = {408, 409, 429, 500, 502, 503, 504, 529}


class OpenAIModel:
    """A chat-completions endpoint. Over-load and rate limits are waited out, four times at most."""

    def __init__(self, spec: str) -> None:
        """Raises UsageError if the spec has no model name."""
        import httpx2

        name, _, url = spec.removeprefix("openai:").partition("@")
        if not name:
            raise UsageError(
                f"{spec!r} names no model", hint="write openai:NAME or openai:NAME@URL"
            )
        self.spec = spec
        self._name = name
        self._url = (url or DEFAULT_URL).rstrip("/")
        self._client = httpx2.Client(timeout=TIMEOUT_S)

    def describe(self) -> dict[str, Any]:
        """What is recorded of it."""
        return {"model": self._name, "url": self._url}

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def reply(self, request: ModelRequest) -> ModelReply:
        """One chat completion. Raises ModelError after the last attempt."""
        body: dict[str, Any] = {
            "model": self._name,
            "messages": [_on_the_wire(message) for message in request.messages],
            "seed": request.seed,
            **request.sampling,
        }
        if request.tools:
            body["tools"] = request.tools
        return _read(self._post(body))

    def _post(self, body: dict[str, Any]) -> dict[str, Any]:
        import httpx2

        key = os.environ.get("OPENAI_API_KEY")
        headers = {"authorization": f"Bearer {key}"} if key else {}
        problem = ""
        for attempt in range(ATTEMPTS):
            if attempt:
                time.sleep(_pause_s(attempt))
            try:
                answer = self._client.post(
                    f"{self._url}/chat/completions", json=body, headers=headers
                )
            except httpx2.TransportError as error:
                problem = f"{type(error).__name__}: {error}"
                continue
            if answer.status_code == 200:
                return _json(answer.text, self._url)
            problem = f"HTTP {answer.status_code}: {answer.text[:300]}"
            if answer.status_code not in _RETRIED:
                break
        raise ModelError(
            f"{self._url} gave no reply: {problem}",
            hint="check the URL, OPENAI_API_KEY and the network; `branchkit doctor` tries it",
        )


def _pause_s(attempt: int) -> float:
    return 0.5 * 4.0 ** (attempt - 1)


def _json(text: str, url: str) -> dict[str, Any]:
    import orjson

    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        value = None
    if not isinstance(value, dict) or not value.get("choices"):
        raise ModelError(
            f"{url} answered with no completion: {text[:300]}",
            hint="is this a chat-completions endpoint?",
        )
    return value


def _on_the_wire(message: Message) -> Message:
    """The message with call ids that every provider takes, and without lone surrogates."""
    wire = dict(message)
    if "tool_call_id" in wire:
        wire["tool_call_id"] = _wire_id(wire["tool_call_id"])
    if wire.get("tool_calls"):
        wire["tool_calls"] = [{**call, "id": _wire_id(call["id"])} for call in wire["tool_calls"]]
    if isinstance(wire.get("content"), str):
        wire["content"] = wire["content"].encode("utf-8", "replace").decode()
    return wire


def _wire_id(call_id: str) -> str:
    return call_id.replace(".", "-")


def _read(answer: dict[str, Any]) -> ModelReply:
    choice = answer["choices"][0]
    message = {
        key: value
        for key, value in choice["message"].items()
        if key in ("role", "content", "tool_calls", "refusal") and value is not None
    }
    message.setdefault("role", "assistant")
    message.setdefault("content", "")
    usage = answer.get("usage") or {}
    return ModelReply(
        message=message,
        finish_reason=str(choice.get("finish_reason") or ""),
        usage={name: value for name, value in usage.items() if isinstance(value, int)},
        served_model=str(answer.get("model") or ""),
        provider_id=str(answer.get("id") or ""),
    )
