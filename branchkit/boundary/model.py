"""What a model is to the boundary: one request, one reply."""

from __future__ import annotations

import hashlib
from typing import Any, Protocol

import msgspec

from branchkit.journal.events import Message


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What one reply is asked with. ``seed`` is the run's seed mixed with the turn."""

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

    def describe(self) -> dict[str, Any]:
        """Facts about the model: names, versions, hashes. No secrets."""
        ...

    def reply(self, request: ModelRequest) -> ModelReply:
        """The reply to ``request``. Raises ModelError."""
        ...

    def close(self) -> None:
        """Let go of connections and processes."""
        ...


def seed_for_turn(seed: int, turn: int) -> int:
    """The seed of one request: equal for equal (seed, turn), unrelated between neighbours."""
    return int.from_bytes(hashlib.sha256(f"{seed}:{turn}".encode()).digest()[:4], "big") >> 1
