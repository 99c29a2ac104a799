"""One order from a shop, under the conditions that a situation needs; run in processes that die."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal, NamedTuple

from branchkit import session as run_of
from branchkit.boundary.model import ModelRequest
from branchkit.boundary.session import Decision, Waiting
from branchkit.harness.tools import Key, KeyMismatch, ProbeAnswer, Tool, tool
from branchkit.journal.events import Message
from branchkit.testing.crash import arm
from branchkit.testing.effect_service import Refused, perform
from branchkit.testing.effect_service import probe as ask

OPERATION = "order-17"
CALL = "t0001.1"


class Shop(NamedTuple):
    """The run, and what its tool says and does."""

    folder: Path
    url: str
    key: bool = False
    key_ttl_s: float | None = None
    can_ask: bool = False
    token: str | None = None
    amount: int = 5
    allowed: bool = True  # by today's policy
    timeout_s: float = 10.0
    rash: bool = False  # its probe says "not done" of what waits in a queue

    @property
    def journal(self) -> Path:
        return self.folder / "run.journal.jsonl"


def order(
    shop: Shop,
    mode: Literal["record", "resume"],
    before: str | None = None,
    inside: str | None = None,
) -> str:
    """Run it; how it ended. The crash points are armed before the call, and after the effect."""
    seen: list[Message] = []

    def model(request: ModelRequest) -> Message:
        seen[:] = request.messages
        return _reply(request)

    try:
        with run_of(
            shop.journal,
            mode,
            model=model,
            tools=[_tool(shop, inside)],
            decide=lambda _: _decision(shop),
        ) as session:
            messages = [session.input({"role": "user", "content": "Order it."})]
            while (answer := session.model(messages)).calls:
                messages.append(answer.message)
                if before is not None:
                    arm(before)
                messages += [
                    session.tool(call, decide=lambda _: _decision(shop)) for call in answer.calls
                ]
    except Waiting as waiting:
        return f"waiting: {waiting}"
    return f"completed: {seen[-1]['content']}"


def _reply(request: ModelRequest) -> Message:
    if request.turn > 1:
        return {"role": "assistant", "content": "done"}
    function = {"name": "buy", "arguments": json.dumps({"what": OPERATION})}
    calls = [{"id": "1", "type": "function", "function": function}]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def _decision(shop: Shop) -> Decision:
    return Decision("allow") if shop.allowed else Decision("deny", "grants", "the grant has ended")


def _tool(shop: Shop, inside: str | None) -> Tool:
    def buy(what: str, key: Key) -> str:
        parameters = {"amount": shop.amount}
        try:
            receipt = perform(
                shop.url,
                what,
                key=key,
                token=shop.token,
                parameters=parameters,
                timeout_s=shop.timeout_s,
            ).receipt
        except Refused as refused:
            if refused.status == 422:
                raise KeyMismatch(str(refused)) from refused
            raise
        if inside is not None:
            arm(inside)
        return receipt

    def look(arguments: dict[str, Any], _key: str) -> ProbeAnswer:
        known = ask(shop.url, arguments["what"], token=shop.token)
        if known.state == "queued" and not shop.rash:
            return ProbeAnswer("unknown", "it waits in a queue")
        if known.state != "done":
            return ProbeAnswer("not_done")
        return ProbeAnswer("completed", known.receipt or "")

    probe = look if shop.can_ask else None
    return tool(effect="external", key=shop.key, key_ttl_s=shop.key_ttl_s, probe=probe)(buy)
