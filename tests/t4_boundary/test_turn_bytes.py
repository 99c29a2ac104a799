"""What a turn of a loop of your own takes on disk (R13)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

import branchkit
from branchkit.boundary.model import ModelRequest
from branchkit.journal.events import KINDS, Message
from branchkit.journal.file import verify
from branchkit.journal.shapes import shape

RESULT = ("what a tool says of what it was asked to look at\n" * 21)[:1024]


def answer(request: ModelRequest) -> Message:
    """One call of ``look``, another one each turn."""
    call = {"name": "look", "arguments": f'{{"number":{request.turn}}}'}
    function = {"id": f"call_{request.turn}", "type": "function", "function": call}
    return {"role": "assistant", "content": None, "tool_calls": [function]}


def look(number: int) -> str:
    """A result of 1 KiB, another one each time."""
    return f"{number:08}{RESULT[8:]}"


def recorded(path: Path, turns: int, window: int | None) -> Path:
    """A run of ``turns`` turns; with ``window`` the model is shown only so many messages."""
    with branchkit.session(path, model=answer, tools=[look], task="look") as session:
        messages: list[Any] = [session.input({"role": "user", "content": "look at all of it"})]
        for _ in range(turns):
            shown = messages if window is None else [messages[0], *messages[1:][-window:]]
            reply = session.model(shown)
            messages += [reply.message, *(session.tool(call) for call in reply.calls)]
    return path


def middle(path: Path) -> bytes:
    """The journal without its start and its end: nothing but turns."""
    lines = path.read_bytes().splitlines(keepends=True)
    return b"".join(line for line in lines[2:-1])


@pytest.mark.parametrize("window", [None, 40])
def test_a_turn_is_as_long_late_in_a_run_as_early(tmp_path: Path, window: int | None) -> None:
    """R13: flat within 5 % from 40 turns to 1,000, and 5.3 KB at most with results of 1 KiB."""
    short = len(middle(recorded(tmp_path / "short.journal.jsonl", 40, window))) / 40
    long = len(middle(recorded(tmp_path / "long.journal.jsonl", 1_000, window))) / 1_000
    assert verify(tmp_path / "long.journal.jsonl").ok
    assert abs(long / short - 1) <= 0.05
    assert max(short, long) <= 5_350


def test_no_line_says_what_a_reader_takes_it_to_be(tmp_path: Path) -> None:
    """R13: a field at its default is left out."""
    for line in recorded(tmp_path / "run.journal.jsonl", 3, None).read_bytes().splitlines():
        event = orjson.loads(line)
        for name, default in shape(KINDS[event["kind"]]).defaults:
            assert name not in event["payload"] or event["payload"][name] != default
