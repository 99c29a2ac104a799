"""``openai:NAME[@URL]``: chat completions at any base URL (OpenAI, vLLM, llama.cpp, a gateway).

The key comes from ``OPENAI_API_KEY`` at the moment of the call and is never part of an event.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec
import orjson

from branchkit.boundary.calls import reply_message
from branchkit.boundary.model import ModelReply, ModelRequest
from branchkit.errors import ModelError, UsageError
from branchkit.harness.tools import clean_value
from branchkit.journal.events import Message

if TYPE_CHECKING:
    from ssl import SSLContext

DEFAULT_URL = "https://api.openai.com/v1"
TIMEOUT_S = 120.0
ATTEMPTS = 4
_RETRIED = {408, 409, 429, 500, 502, 503, 504, 529}


def pause_s(attempt: int) -> float:
    """How long to wait before attempt 1, 2, 3 after the first one: 0.5, 2, 8 seconds."""
    return 0.5 * 4.0 ** (attempt - 1)


class _Choice(msgspec.Struct):
    message: dict[str, Any]
    finish_reason: str | None = None


class _Completion(msgspec.Struct):
    choices: list[_Choice]
    usage: dict[str, Any] | None = None
    model: str | None = None
    id: str | None = None


class OpenAIModel:
    """A chat-completions endpoint. Over-load and rate limits are waited out, four times at most."""

    def __init__(self, spec: str, *, pause_s: Callable[[int], float] = pause_s) -> None:
        """``pause_s`` gives the seconds before each further attempt.

        Raises UsageError if the spec has no model name, or a URL that is none or holds a password.
        """
        import httpx2

        name, _, url = spec.removeprefix("openai:").partition("@")
        if not name:
            raise UsageError(
                f"{spec!r} names no model", hint="write openai:NAME or openai:NAME@URL"
            )
        self._url = _checked(url or DEFAULT_URL).rstrip("/")
        self.spec = spec
        self._name = name
        self._pause_s = pause_s
        self._client = httpx2.Client(timeout=TIMEOUT_S, verify=_tls())

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
            **{name: _number(value) for name, value in request.sampling.items()},
        }
        if request.tools:
            body["tools"] = request.tools
        return self._post(orjson.dumps(clean_value(body)))

    def _post(self, body: bytes) -> ModelReply:
        import httpx2

        key = _key()
        headers = {"content-type": "application/json"}
        if key:
            headers["authorization"] = f"Bearer {key}"
        problem = ""
        for attempt in range(ATTEMPTS):
            if attempt:
                time.sleep(self._pause_s(attempt))
            try:
                answer = self._client.post(
                    f"{self._url}/chat/completions", content=body, headers=headers
                )
            except httpx2.RequestError as error:
                problem = _without(key, f"{type(error).__name__}: {error}")
                continue
            if answer.status_code == 200:
                return self._read(answer.content, key)
            problem = f"HTTP {answer.status_code}: {_excerpt(answer.content, key)}"
            if answer.status_code not in _RETRIED:
                break
        raise ModelError(
            f"{self._url} gave no reply: {problem}",
            hint="check the URL, OPENAI_API_KEY and the network; `branchkit doctor` tries it",
        )

    def _read(self, body: bytes, key: str) -> ModelReply:
        try:
            completion = msgspec.convert(_json(body), _Completion)
            choice = completion.choices[0]
            message = reply_message(choice.message)
        except (ValueError, IndexError, RecursionError, msgspec.ValidationError):
            raise ModelError(
                f"{self._url} answered with no completion: {_excerpt(body, key)}",
                hint="is this a chat-completions endpoint?",
            ) from None
        usage = completion.usage or {}
        return ModelReply(
            message=message,
            finish_reason=choice.finish_reason or "",
            usage={name: value for name, value in usage.items() if isinstance(value, int)},
            served_model=completion.model or "",
            provider_id=completion.id or "",
        )


@cache
def _tls() -> SSLContext:
    """One for all models of a process: reading the certificates takes 150 ms each time."""
    import httpx2

    return httpx2.create_ssl_context()


def _checked(url: str) -> str:
    """``url`` if it can be asked and recorded."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # it is read, and found to be wrong, only when it is asked for
    except ValueError as error:
        raise UsageError(f"{url!r} is no URL: {error}", hint="write http(s)://HOST/v1") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{url!r} is no URL", hint="write http(s)://HOST/v1")
    if parts.username or parts.password:
        raise UsageError(
            f"the URL of {parts.hostname} holds a user name or password, and specs are recorded",
            hint="put the key into OPENAI_API_KEY",
        )
    return url


def _key() -> str:
    key = os.environ.get("OPENAI_API_KEY", "").strip()
    if not (key.isascii() and key.isprintable()):
        # An HTTP library that cannot send a header quotes it in its error.
        raise ModelError(
            "OPENAI_API_KEY holds characters that cannot be sent", hint="is it one line of ASCII?"
        )
    return key


def _excerpt(body: bytes, key: str) -> str:
    """The beginning of what a provider said. Some repeat the key in what they say about it."""
    return _without(key, body.decode("utf-8", "replace"))[:300]


def _without(key: str, text: str) -> str:
    return text.replace(key, "[OPENAI_API_KEY]") if key else text


def _json(body: bytes) -> Any:
    """``body`` as a JSON value. Raises ValueError."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        # A reply cut in the middle of an emoji ends in half a surrogate pair, as an escape. That is
        # JSON, and the reply was paid for; orjson refuses it.
        return json.loads(body)


_WIRE_KEYS = ("role", "content", "name", "tool_calls", "tool_call_id", "refusal")


def _on_the_wire(message: Message) -> Message:
    """The message with call ids that every provider takes, and with what the dialect knows.

    An imported message may carry more, such as signed thinking of another provider: not sent.
    """
    wire = {key: value for key, value in message.items() if key in _WIRE_KEYS}
    if "tool_call_id" in wire:
        wire["tool_call_id"] = _wire_id(wire["tool_call_id"])
    if wire.get("tool_calls"):
        wire["tool_calls"] = [{**call, "id": _wire_id(call["id"])} for call in wire["tool_calls"]]
    return wire


def _number(value: Any) -> Any:
    """``max_tokens`` and the like are refused as 50.0, and no setting is refused as an integer."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _wire_id(call_id: str) -> str:
    return call_id.replace(".", "-")
