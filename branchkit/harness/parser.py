"""Parsers: what calls stand in a reply.

``native``        the ``tool_calls`` of the message
``fenced:LANG``   the one fenced code block of that language is a command for ``bash``, answered as
                  a user message; for harnesses that speak plain text (mini-swe-agent is one). A
                  model that calls tools natively is understood too.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from branchkit.boundary.calls import Call, native_calls
from branchkit.errors import UsageError
from branchkit.journal.events import Message, call_step

Parser = Callable[[Message, int], list[Call]]


def parse(spec: str) -> Parser:
    """The parser that ``spec`` names. Raises UsageError."""
    kind, _, language = spec.partition(":")
    if spec == "native":
        return native_calls
    if kind == "fenced" and language.isidentifier():
        return lambda message, turn: _fenced(message, turn, language)
    raise UsageError(f"{spec!r} names no parser", hint="write native or fenced:LANGUAGE")


def _fenced(message: Message, turn: int, language: str) -> list[Call]:
    if message.get("tool_calls"):
        return native_calls(message, turn)
    blocks = re.findall(
        rf"^```{language}[ \t]*\n(.*?)^```[ \t]*$", str(message.get("content") or ""), re.M | re.S
    )
    call_id = call_step(turn, 1)
    if len(blocks) == 1:
        return [Call(call_id, "bash", {"command": blocks[0].rstrip("\n")}, role="user")]
    if not blocks:
        return []
    problem = f"Exactly one ```{language} block is expected, there are {len(blocks)}"
    return [Call(call_id, "bash", None, problem, role="user")]
