"""A recording process killed by SIGKILL at each point around an action (R21, R27)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from loops import events_of, plain_loop, proposes, replay, says, scripted

import branchkit
from branchkit.journal.events import ToolProposed
from branchkit.journal.file import Writer, read, verify
from branchkit.record.fold import fold
from branchkit.record.record import Record

HERE = Path(__file__).parent


class Crash(NamedTuple):
    """``armed`` is where the named crash point begins to count: before the call, or inside it."""

    armed: str
    point: str
    word: str | None  # of the call after reopening; None: the journal does not know it yet
    happened: bool  # whether the effect is in the world


CRASHES = [
    Crash("before", "commit.before_write", None, False),
    Crash("before", "commit.after_write", "in doubt", False),
    Crash("before", "commit.after_sync", "in doubt", False),
    Crash("before", "intent_durable", "in doubt", False),
    Crash("inside", "effect_done", "in doubt", True),
    Crash("inside", "commit.before_write", "in doubt", True),
    Crash("inside", "commit.after_write", "completed", True),
    Crash("inside", "commit.after_sync", "completed", True),
]


def victim(folder: Path, armed: str, point: str) -> None:
    """The process that is killed: one call with an effect, which a file counts."""

    def pay() -> str:
        with (folder / "payments").open("a") as stream:
            stream.write("paid\n")
        if armed == "inside":
            os.environ["BRANCHKIT_CRASH_AT"] = point
        return "paid"

    model = scripted(proposes(("pay", {})), says("done"))
    with branchkit.session(folder / "a.journal.jsonl", model=model, tools=[pay]) as session:
        messages = [session.input({"role": "user", "content": "go"})]
        answer = session.model(messages)
        if armed == "before":
            os.environ["BRANCHKIT_CRASH_AT"] = point
        messages += [answer.message, session.tool(answer.calls[0])]
        session.model(messages)


def killed(folder: Path, crash: Crash) -> Path:
    code = f"import test_crash_points as t, pathlib; t.victim(pathlib.Path({str(folder)!r}), "
    code += f"{crash.armed!r}, {crash.point!r})"
    path = os.pathsep.join([str(HERE), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    return folder / "a.journal.jsonl"


def after(path: Path) -> Record:
    return fold(None, events_of(path))


@pytest.mark.parametrize("crash", CRASHES, ids=lambda crash: f"{crash.armed}-{crash.point}")
def test_killed_around_an_action(tmp_path: Path, crash: Crash) -> None:
    """R21: what stands in the journal is exactly one of the three words, and it is the truth."""
    path = killed(tmp_path, crash)
    assert (tmp_path / "payments").exists() == crash.happened
    calls = after(path).calls
    assert {name: call.word for name, call in calls.items()} == (
        {} if crash.word is None else {"t0001.1": crash.word}
    )
    # R28: what happened is described by an intent; reading again finds the same, once.
    assert after(path).logical == after(path).logical
    proposed = [e for e in events_of(path) if isinstance(e.payload, ToolProposed)]
    assert len(proposed) == len(calls)
    before = path.read_bytes()
    paid = (tmp_path / "payments").read_text() if crash.happened else ""
    replay(path, plain_loop)  # everything recorded is consumed, then the tape ends: nothing is sent
    assert path.read_bytes() == before
    assert ((tmp_path / "payments").read_text() if crash.happened else "") == paid


def test_the_killed_writers_file_is_taken_over(tmp_path: Path) -> None:
    """The lock goes with the process; the next writer goes on at the end of what is there."""
    path = killed(tmp_path, CRASHES[3])
    count = len(events_of(path))
    writer = Writer(path, run_id=events_of(path)[0].run_id, now=lambda: "2026-01-01T00:00:00Z")
    assert writer.seq == count
    writer.close()
    assert verify(path).ok
    assert len(read(path)[0]) == count
