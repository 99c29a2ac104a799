"""What is complete of a JSON document that was cut off: whole members, whole list elements."""

from __future__ import annotations

import json
import re
from typing import NamedTuple

from branchkit.journal.format import Json

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{},"]', re.DOTALL)
_QUOTE = re.compile(rb'\\.|"', re.DOTALL)
_CLOSING = {"{": "}", "[": "]"}


class Part(NamedTuple):
    """The value of the first ``length`` characters, with what was open closed."""

    value: Json
    length: int


def open_string(data: bytes) -> bool:
    """Whether the quotes of ``data`` leave a string open, or close one that was."""
    return sum(match[0] == b'"' for match in _QUOTE.finditer(data)) % 2 == 1


def complete_part(text: str) -> Part | None:
    """The longest complete part of a cut document; None if it is not one that was merely cut.

    Kept are whole members of the document and whole elements of its lists. An element that is not
    there to its end is left out: half a message is not a message that anybody sent.
    """
    stack: list[str] = []
    best: tuple[int, str] | None = None
    for match in _TOKEN.finditer(text):
        token = match[0]
        if token == '"':  # a string without its end: what follows is its text
            break
        if token in "[{":
            stack.append(token)
            if _keeps(stack):
                best = (match.end(), _closers(stack))
        elif token in "]}":
            if not stack or _CLOSING[stack.pop()] != token:
                return None
            if _keeps(stack):
                best = (match.end(), _closers(stack))
        elif token == "," and _keeps(stack):
            best = (match.start(), _closers(stack))
    if best is None or not stack:
        return None
    length, closers = best
    try:
        return Part(json.loads(text[:length] + closers, strict=False), length)
    except (ValueError, RecursionError):
        return None


def _keeps(stack: list[str]) -> bool:
    """Whether a container may be kept in part: the document itself, and lists directly in it."""
    return len(stack) == 1 or (len(stack) == 2 and stack == ["{", "["])


def _closers(stack: list[str]) -> str:
    return "".join(_CLOSING[opened] for opened in reversed(stack))
