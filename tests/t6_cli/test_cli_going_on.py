"""A run that was cut off, as typed: what is in doubt, a person's word, and going on (R27, R40)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import branchkit
from branchkit.boundary.calls import Call
from branchkit.boundary.session import Decision, Session
from branchkit.boundary.settlement import Waiting
from branchkit.harness.tools import tool

ROOT = Path(__file__).resolve().parent.parent.parent
SAMPLE = ROOT / "sample_journals/branch_cleanup/branch_cleanup.journal.jsonl"


def said(*arguments: object, code: int = 0) -> str:
    command = [sys.executable, "-m", "branchkit", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=170)
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def answer(*arguments: object) -> Any:
    return json.loads(said(*arguments, "--json"))


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "store"
    monkeypatch.setenv("BRANCHKIT_STORE", os.fspath(path))
    return path


@tool(effect="external")
def mail(to: str) -> str:
    """Send a mail."""
    return f"sent to {to}"


WANTS = {
    "role": "assistant", "content": "",
    "tool_calls": [{"id": "c", "type": "function",
                    "function": {"name": "mail", "arguments": '{"to": "all"}'}}],
}  # fmt: skip


def loop(session: Session, decision: str = "allow") -> None:
    def decide(_call: Call) -> Decision:
        return Decision(decision, "the house rule", "mails are shown first")  # type: ignore[arg-type]

    context = [session.input({"role": "user", "content": "tell everybody"})]
    reply = session.model(context)
    for call in reply.calls:
        session.tool(call, decide=decide)


def test_a_call_in_doubt_is_shown_and_settled_by_a_person(tmp_path: Path) -> None:
    """The process died after the intent: nobody here knows whether the mail left."""
    whole, cut = tmp_path / "whole.journal.jsonl", tmp_path / "cut.journal.jsonl"
    with branchkit.session(whole, model=lambda _: WANTS, tools=[mail]) as session:
        loop(session)
    lines = whole.read_bytes().splitlines(keepends=True)
    intent = next(n for n, line in enumerate(lines) if b'"kind":"ToolIntent"' in line)
    cut.write_bytes(b"".join(lines[: intent + 1]))
    assert [row["state"] for row in answer("calls", cut)["calls"]] == ["in doubt"]
    assert "in doubt" in said("calls", cut)
    assert "t0001.1" in said("settle", cut, "t0009.9", "completed", code=64)
    assert answer("settle", cut, "t0001.1", "completed", "--result", "sent", "--by", "ada") == {
        "call_id": "t0001.1", "state": "completed",
    }  # fmt: skip
    assert answer("verify", cut)["ok"]
    assert answer("cancel", cut, "--reason", "enough")["status"] == "cancelled"


def test_a_held_call_is_approved(tmp_path: Path) -> None:
    """It was not sent, it waits for a person, and the person's word is in the journal."""
    path = tmp_path / "held.journal.jsonl"
    with (
        pytest.raises(Waiting),
        branchkit.session(path, model=lambda _: WANTS, tools=[mail]) as session,
    ):
        loop(session, "hold")
    [row] = answer("calls", path)["calls"]
    assert (row["state"], bool(row["waits_for"])) == ("not sent", True)
    assert answer("approve", path, "t0001.1", "--by", "ada")["decision"] == "allow"
    kinds = [event["kind"] for event in answer("show", path)["events"]]
    assert kinds[-1] == "ApprovalResolved"


def test_a_run_of_ours_goes_on_where_it_was_cut(tmp_path: Path, store: Path) -> None:
    """The sample without its last six turns: no recorded reply is asked for again, and it ends."""
    path = tmp_path / "branch_cleanup.journal.jsonl"
    path.with_name("branch_cleanup.pack").write_bytes(
        SAMPLE.with_suffix("").with_suffix(".pack").read_bytes()
    )
    lines = SAMPLE.read_bytes().splitlines(keepends=True)
    cut = next(n for n, line in enumerate(lines) if b'"step_id":"t0021"' in line)
    path.write_bytes(b"".join(lines[:cut]))
    try:
        found = answer("resume", path)
        assert (found["status"], found["resumed_at_turn"]) == ("completed", 20)
        assert answer("verify", path)["ok"]
        assert path.read_bytes().startswith(b"".join(lines[:cut]))
        assert answer("replay", path)["ok"]
        assert "completed" in answer("resume", path)["reason"]
    finally:
        said("umount")


def test_how_often_to_checkpoint(tmp_path: Path) -> None:
    """R32 from the command line; a figure that nobody measured has to be given."""
    found = answer("cadence", SAMPLE, "--mtbf", 14400, "--pause", 0.5)
    assert found["young_s"] == pytest.approx(120)
    assert "--mtbf" in said("cadence", SAMPLE, "--pause", 0.5, code=64)
