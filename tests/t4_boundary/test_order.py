"""Proposal, authorization, durable intent, action, observation, delivery: in this order, each once.

The journal file is read from inside the tool, because what counts is what a crash would leave.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from loops import events_of, plain_loop, proposes, record, says, scripted

import branchkit
from branchkit import disk
from branchkit.boundary.calls import Call
from branchkit.boundary.session import Decision, Delivery, Session, Waiting
from branchkit.errors import UsageError
from branchkit.journal.events import Delivered, ToolResult
from branchkit.record.fold import fold

WHOLE = ["ToolProposed", "ToolAuthorized", "ToolIntent", "ToolResult", "Delivered"]


def kinds_by_call(path: Path) -> dict[str, list[str]]:
    found = defaultdict(list)
    for event in events_of(path):
        if "." in event.step_id:
            found[event.step_id].append(event.kind)
    return dict(found)


def test_every_call_goes_through_the_same_steps(tmp_path: Path) -> None:
    """R20, R3: the four events of an action, in order, tied by the journal's own call id."""
    path = tmp_path / "a.journal.jsonl"
    model = scripted(
        proposes(("look", {}), ("look", {})), proposes(("look", {}), ("nothing", {})), says("done")
    )

    def look() -> str:
        return "seen"

    record(path, plain_loop, model, [look])
    assert kinds_by_call(path) == dict.fromkeys(["t0001.1", "t0001.2", "t0002.1", "t0002.2"], WHOLE)


def test_the_intent_is_in_the_file_when_the_tool_runs(tmp_path: Path) -> None:
    """R20: a crash at this very moment would leave a journal that knows of the call."""
    path = tmp_path / "a.journal.jsonl"
    seen: list[list[str]] = []

    def look(number: int) -> str:
        events = events_of(path)
        call = fold(None, events).calls[events[-1].step_id]
        seen.append([events[-1].kind, call.call_id, call.word])
        return "seen"

    calls = proposes(("look", {"number": 1}), ("look", {"number": 2}))
    record(path, plain_loop, scripted(calls, says("done")), [look])
    assert seen == [["ToolIntent", "t0001.1", "in doubt"], ["ToolIntent", "t0001.2", "in doubt"]]


def test_nothing_is_sent_before_its_intent_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R20: fdatasync has returned for every byte of the file when the tool is entered."""
    path = tmp_path / "a.journal.jsonl"
    synced: list[int] = []
    real = disk.fdatasync

    def spy(fd: int) -> None:
        real(fd)
        synced.append(disk.size_bytes(fd))

    def look() -> str:
        assert synced[-1] == path.stat().st_size
        assert b'"ToolIntent"' in path.read_bytes().splitlines()[-1]
        return "seen"

    monkeypatch.setattr(disk, "fdatasync", spy)
    record(path, plain_loop, scripted(proposes(("look", {})), says("done")), [look])
    assert events_of(path)[-1].kind == "TaskFinished"


def test_the_question_is_in_the_file_when_the_model_is_asked(tmp_path: Path) -> None:
    path = tmp_path / "a.journal.jsonl"
    last: list[str] = []

    def model(request: Any) -> dict[str, Any]:
        last.append(events_of(path)[-1].kind)
        return scripted(proposes(("look", {})), says("done"))(request)

    record(path, plain_loop, model)
    assert last == ["ContextBuilt", "ContextBuilt"]


def test_a_result_is_durable_before_the_loop_has_it(tmp_path: Path) -> None:
    path = tmp_path / "a.journal.jsonl"

    def agent(session: Session) -> None:
        answer = session.model([session.input({"role": "user", "content": "go"})])
        session.tool(answer.calls[0])
        assert events_of(path)[-1].kind == "Delivered"

    record(path, agent, scripted(proposes(("look", {}))))


def denied(call: Call) -> Decision:
    return Decision("deny", "house rules", "not on a Friday")


def held(call: Call) -> Decision:
    return Decision("hold", "house rules", "a person must look")


def test_a_denied_call_is_answered_without_being_sent(tmp_path: Path) -> None:
    path = tmp_path / "a.journal.jsonl"
    ran: list[str] = []

    def delete(name: str) -> str:
        ran.append(name)
        return "gone"

    def agent(session: Session) -> str:
        answer = session.model([session.input({"role": "user", "content": "go"})])
        return str(session.tool(answer.calls[0], decide=denied)["content"])

    model = scripted(proposes(("delete", {"name": "x"})))
    said = record(path, agent, model, [delete])
    assert (ran, said) == ([], "The call was denied: not on a Friday")
    assert kinds_by_call(path)["t0001.1"] == [kind for kind in WHOLE if kind != "ToolIntent"]
    (call,) = fold(None, events_of(path)).calls.values()
    assert (call.intent, call.status, call.decision) == (None, "denied", "deny")


def test_a_held_call_waits_and_is_not_sent(tmp_path: Path) -> None:
    """R27: the words for it are "not sent"."""
    path = tmp_path / "a.journal.jsonl"
    ran: list[str] = []

    def delete(name: str) -> str:
        ran.append(name)
        return "gone"

    def agent(session: Session) -> None:
        answer = session.model([session.input({"role": "user", "content": "go"})])
        session.tool(answer.calls[0], decide=held)

    with pytest.raises(Waiting, match="a person must look"):
        record(path, agent, scripted(proposes(("delete", {"name": "x"}))), [delete])
    assert ran == []
    after = fold(None, events_of(path))
    assert after.pending_approvals == ["t0001.1"]
    assert after.calls["t0001.1"].word == "not sent"
    assert kinds_by_call(path)["t0001.1"] == ["ToolProposed", "ToolAuthorized", "ApprovalRequested"]


@pytest.mark.parametrize("arguments", ["{name: x}", '["x"]', '{"name": NaN}'])
def test_a_call_that_cannot_be_read_is_answered_without_being_sent(
    tmp_path: Path, arguments: str
) -> None:
    path = tmp_path / "a.journal.jsonl"
    ran: list[str] = []

    def delete(name: str) -> str:
        ran.append(name)
        return "gone"

    record(path, plain_loop, scripted(proposes(("delete", arguments)), says("done")), [delete])
    assert ran == []
    assert kinds_by_call(path)["t0001.1"] == ["ToolProposed", "ToolResult", "Delivered"]
    (result,) = [e.payload for e in events_of(path) if isinstance(e.payload, ToolResult)]
    assert result.status == "error"
    assert result.text is not None
    assert "delete are not" in result.text


def test_what_is_delivered_may_be_less_than_what_came_back(tmp_path: Path) -> None:
    """R9: the model is shown a part, the journal keeps the whole."""
    path = tmp_path / "a.journal.jsonl"

    def agent(session: Session) -> str:
        answer = session.model([session.input({"role": "user", "content": "go"})])
        message = session.tool(
            answer.calls[0], deliver=lambda text: Delivery("first", text[:5], 0, len(text) - 5)
        )
        return str(message["content"])

    def look() -> str:
        return "only the first word is shown"

    assert record(path, agent, scripted(proposes(("look", {}))), [look]) == "only "
    events = events_of(path)
    (full,) = [e.payload for e in events if isinstance(e.payload, ToolResult)]
    (part,) = [e.payload for e in events if isinstance(e.payload, Delivered)]
    assert (full.text, part.text) == ("only the first word is shown", "only ")


def test_a_run_is_never_continued_by_accident(tmp_path: Path) -> None:
    path = tmp_path / "a.journal.jsonl"
    record(path, plain_loop, scripted(says("done")))
    before = path.read_bytes()
    with (
        pytest.raises(UsageError, match="exists"),
        branchkit.session(path, model=scripted(says("again"))),
    ):
        pass
    assert path.read_bytes() == before
