"""Models behind one interface, and the spec that names each of them.

``openai:NAME[@URL]``   chat completions at any base URL (key from ``OPENAI_API_KEY``, never recorded)
``rulebook:NAME``       a deterministic stand-in that follows written rules (see ``rulebook``)
``local:smollm2``       a real sampled model on this machine, constrained by a grammar
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

Message = dict[str, Any]  # OpenAI chat shape: role, content, tool_calls, tool_call_id


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What one reply is asked with. ``seed`` is the branch's seed mixed with the turn."""

    messages: list[Message]
    tools: list[dict[str, Any]]  # {"type": "function", "function": {name, description, parameters}}
    sampling: dict[str, Any]
    seed: int
    turn: int


class ModelReply(msgspec.Struct, frozen=True, kw_only=True):
    """One reply in OpenAI chat shape, with what the provider said about itself."""

    message: Message
    finish_reason: str
    usage: dict[str, int]
    served_model: str
    provider_id: str = ""


class Model(Protocol):
    """Something that replies. ``describe`` gives facts that are recorded as versions (R4)."""

    spec: str

    def describe(self) -> dict[str, Any]: ...

    def reply(self, request: ModelRequest) -> ModelReply:
        """The reply to ``request``. Raises ModelError."""
        ...

    def close(self) -> None: ...
