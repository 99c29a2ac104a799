"""Runs of any length, recorded by the real session: a model and a tool that answer at once."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import branchkit
from branchkit.boundary.model import ModelRequest
from branchkit.journal.events import Message

RESULT_BYTES = 1024


def answer(request: ModelRequest) -> Message:
    """One call of ``look``, another one each turn."""
    call = {"name": "look", "arguments": f'{{"number":{request.turn}}}'}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": f"call_{request.turn}", "type": "function", "function": call}],
    }


def look(number: int) -> str:
    """A result of 1 KiB, another one each time."""
    line = f"{number:08} of what a tool says of what it was asked to look at\n"
    return (line * (RESULT_BYTES // len(line) + 1))[:RESULT_BYTES]


def record(path: Path, turns: int, *, window: int | None = None) -> Path:
    """A run of ``turns`` turns; with ``window`` the model is shown only so many messages."""
    with branchkit.session(path, "record", model=answer, tools=[look], task="look") as session:
        messages: list[Any] = [session.input({"role": "user", "content": "look at all of it"})]
        for _ in range(turns):
            shown = messages if window is None else [messages[0], *messages[1:][-window:]]
            reply = session.model(shown)
            messages += [reply.message, *(session.tool(call) for call in reply.calls)]
            if window is not None:
                del messages[1 : -window - 2]
    return path


if __name__ == "__main__":
    record(Path(sys.argv[1]), int(sys.argv[2]), window=int(sys.argv[3]) or None)
