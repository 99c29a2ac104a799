"""The tape: each recorded event is consumed once, and the first difference stops (R51, R55)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from loops import events_of, plain_loop, proposes, rechained, record, replay, says, scripted

from branchkit.boundary.calls import Call
from branchkit.boundary.session import Decision, Session
from branchkit.errors import Diverged
from branchkit.harness.tools import ToolOutcome, ToolRefused, tool
from branchkit.journal.events import (
    Event,
    ModelReplied,
    Payload,
    StateTransition,
    ToolResult,
)
from branchkit.record.fold import fold

REPLIES = (
    proposes(("look", {"path": "a"}), ("look", {"path": "b"})),
    proposes(("touch", {"path": "c"})),
    says("done"),
)
ran: list[str] = []


def look(path: str) -> str:
    """Look at a path."""
    ran.append(path)
    return f"{path} is there"


def touch(path: str) -> str:
    """Touch a path."""
    ran.append(path)
    return "touched"


def only_looks(call: Call) -> Decision:
    if call.name == "look":
        return Decision("allow", "looks")
    return Decision("deny", "looks", "only looking is allowed")


def agent(
    session: Session,
    *,
    change: Callable[[Call], Call] = lambda call: call,
    after_turn: Callable[[Session], object] = lambda session: None,
    task: str = "go",
    stop: int = 99,
) -> str:
    """A loop with a policy and an environment, which can be told to do one thing otherwise."""
    messages = [session.input({"role": "user", "content": f"{task} {session.uuid4()}"})]
    while session.turn < stop and (answer := session.model(messages)).calls:
        messages.append(answer.message)
        messages += [session.tool(change(call), decide=only_looks) for call in answer.calls]
        after_turn(session)
    return str(messages[-1]["content"])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    recorded = tmp_path / "a.journal.jsonl"
    record(recorded, agent, scripted(*REPLIES), [look, touch])
    ran.clear()
    return recorded


def diverged(path: Path, loop: Callable[[Session], Any]) -> dict[str, Any]:
    """The report of the divergence that ``loop`` runs into."""
    with pytest.raises(Diverged) as caught:
        replay(path, loop)
    assert ran == [], "a replay runs no tool"
    assert str(caught.value.report["seq"]) in str(caught.value)
    return caught.value.report


def test_the_same_loop_replays_to_the_same_end(path: Path) -> None:
    before = path.read_bytes()
    assert replay(path, agent) == "The call was denied: only looking is allowed"
    assert ran == []
    assert path.read_bytes() == before


def test_one_changed_argument_stops_at_its_step(path: Path) -> None:
    """R51, R55, R56: with what was expected and what came instead."""

    def other(call: Call) -> Call:
        return call._replace(arguments={"path": "z"}) if call.call_id == "t0001.2" else call

    report = diverged(path, lambda session: agent(session, change=other))
    assert report["step_id"] == "t0001.2"
    assert report["expected"]["payload"]["arguments"] == {"path": "b"}
    assert report["actual"]["payload"]["arguments"] == {"path": "z"}
    at = [e for e in events_of(path) if e.seq < report["seq"]]
    assert report["record_hash"] == fold(None, at).logical


def test_another_order_of_calls_is_a_difference(path: Path) -> None:
    """M11: an answer is never given because its turn has come."""

    def swapped(session: Session) -> None:
        messages = [session.input({"role": "user", "content": f"go {session.uuid4()}"})]
        answer = session.model(messages)
        first, second = answer.calls
        session.tool(first._replace(arguments=second.arguments), decide=only_looks)

    assert diverged(path, swapped)["step_id"] == "t0001.1"


def test_another_message_stops_at_its_step(path: Path) -> None:
    report = diverged(path, lambda session: agent(session, task="stop"))
    assert (report["step_id"], report["expected"]["kind"]) == ("t0000", "InputReceived")


def test_another_decision_of_the_policy_stops_before_the_call(path: Path) -> None:
    def lenient(session: Session) -> None:
        messages = [session.input({"role": "user", "content": f"go {session.uuid4()}"})]
        while (answer := session.model(messages)).calls:
            messages += [answer.message, *(session.tool(call) for call in answer.calls)]

    report = diverged(path, lenient)
    assert (report["step_id"], report["expected"]["kind"]) == ("t0001.1", "ToolAuthorized")


def test_an_additional_call_stops(path: Path) -> None:
    def more(session: Session) -> object:
        return session.tool(Call(f"{session.turn:05d}.9", "look", {"path": "more"}))

    report = diverged(path, lambda session: agent(session, after_turn=more))
    assert report["expected"]["kind"] == "StateTransition", "what was due at this place"
    assert report["actual"]["payload"]["arguments"] == {"path": "more"}


def test_an_additional_reply_stops(path: Path) -> None:
    def talkative(session: Session) -> None:
        agent(session)
        session.model([{"role": "user", "content": "and now?"}])

    report = diverged(path, talkative)
    assert (report["step_id"], report["actual"]["kind"]) == ("t0004", "ContextBuilt")
    assert report["expected"]["kind"] == "TaskFinished"


def test_an_additional_read_of_the_clock_stops(path: Path) -> None:
    report = diverged(path, lambda session: agent(session, after_turn=lambda s: s.now()))
    assert report["actual"]["kind"] == "EnvironmentRead"


def test_events_that_are_left_over_are_found(path: Path) -> None:
    """``--fail-on-unused-events``: a loop that ends early is not an equal one."""
    report = diverged(path, lambda session: agent(session, stop=2))
    assert (report["expected"]["kind"], report["expected"]["step_id"]) == ("ContextBuilt", "t0003")
    assert (report["actual"]["kind"], report["step_id"]) == ("TaskFinished", "t0002")


def test_an_event_that_the_loop_passed_over_is_found_at_the_end(tmp_path: Path) -> None:
    """Nothing asks for it any more, so only the count at the end can tell."""

    path = tmp_path / "a.journal.jsonl"
    record(path, lambda session: session.now(), scripted())
    report = diverged(path, lambda session: None)
    assert report["expected"]["kind"] == "EnvironmentRead"
    assert report["actual"]["kind"] == "nothing: it has ended"


def _renumbered(gone: int) -> Callable[[Event], Payload]:
    """References by number follow the deletion, so that nothing but the loss itself is wrong."""

    def change(event: Event) -> Payload:
        payload = event.payload
        if isinstance(payload, StateTransition) and payload.cause_seq > gone:
            return msgspec.structs.replace(payload, cause_seq=payload.cause_seq - 1)
        return payload

    return change


def test_each_deleted_event_is_found_before_the_end(path: Path, tmp_path: Path) -> None:
    """R55: the file was chained anew without it, so only the replayed loop can tell.

    Not the first, without which there is no run, and not the last, without which the run has no
    end: that shows against an anchor alone (``verify --anchor``).
    """
    events = events_of(path)
    for gone in events[1:-1]:
        left = [event for event in events if event is not gone]
        touched = rechained(tmp_path / "touched.journal.jsonl", left, _renumbered(gone.seq))
        report = diverged(touched, agent)
        assert report["step_id"] <= f"{gone.step_id}~", gone


def test_each_doubled_event_is_found(path: Path, tmp_path: Path) -> None:
    events = events_of(path)
    for twice in events[1:-1]:
        more = events[: twice.seq + 1] + events[twice.seq :]
        touched = rechained(tmp_path / "touched.journal.jsonl", more)
        diverged(touched, agent)


def test_a_changed_reply_or_result_is_found(path: Path, tmp_path: Path) -> None:
    """Chained anew with another content: the contexts that hold it have another hash."""

    def other(payload: Payload) -> Payload:
        if isinstance(payload, ModelReplied):
            return msgspec.structs.replace(payload, message=payload.message | {"content": "other"})
        assert isinstance(payload, ToolResult)
        return msgspec.structs.replace(payload, text="other", sha256="0" * 64)

    events = events_of(path)
    changed = [e for e in events if isinstance(e.payload, ModelReplied | ToolResult)]
    for place in changed:
        touched = rechained(
            tmp_path / "touched.journal.jsonl",
            events,
            lambda e, place=place: other(e.payload) if e.seq == place.seq else e.payload,  # type: ignore[misc]
        )
        assert diverged(touched, agent)["seq"] >= place.seq


def breaks() -> str:
    """Fail."""
    raise OSError("no such device")


def refuses() -> str:
    """Refuse."""
    raise ToolRefused("not today")


def hangs() -> ToolOutcome:
    """Run out of time."""
    return ToolOutcome("timeout", "[no answer within 60 s]")


def dies() -> ToolOutcome:
    """Die."""
    return ToolOutcome("aborted", "[the tool server died during this call]")


def test_errors_and_timeouts_of_tools_are_observations(tmp_path: Path) -> None:
    """R53: recorded with their status and given again, tools and all gone."""
    path = tmp_path / "a.journal.jsonl"
    tools = [tool(effect="pure")(one) for one in (breaks, refuses, hangs, dies)]
    calls = proposes(*((name, {}) for name in ("breaks", "refuses", "hangs", "dies", "unknown")))
    first = record(path, every_result, scripted(calls, says("done")), tools)
    assert replay(path, every_result) == first
    assert [call.status for call in fold(None, events_of(path)).calls.values()] == [
        "error", "error", "timeout", "aborted", "error",
    ]  # fmt: skip
    assert "no such device" in first[0]
    assert "60 s" in first[2]
    assert "there is no tool 'unknown'" in first[4]


def every_result(session: Session) -> list[str]:
    answer = session.model([session.input({"role": "user", "content": "go"})])
    return [str(session.tool(call)["content"]) for call in answer.calls]


def test_an_exception_of_the_loop_is_its_recorded_end(tmp_path: Path) -> None:
    path = tmp_path / "a.journal.jsonl"

    def clumsy(session: Session) -> None:
        plain_loop(session)
        raise ZeroDivisionError("of its own")

    with pytest.raises(ZeroDivisionError):
        record(path, clumsy, scripted(says("hm")))
    with pytest.raises(ZeroDivisionError):
        replay(path, clumsy)
    record_ = fold(None, events_of(path))
    assert record_.status == "failed"
    with pytest.raises(Diverged):
        replay(path, plain_loop)


def test_a_loop_cannot_swallow_a_divergence(path: Path) -> None:
    """STYLE 8: ``except Exception`` around a call does not hide it."""

    def careless(session: Session) -> None:
        messages = [session.input({"role": "user", "content": f"go {session.uuid4()}"})]
        answer = session.model(messages)
        for call in answer.calls:
            try:
                session.tool(call._replace(name="other"))
            except Exception:  # noqa: BLE001, S112  what users write
                continue

    diverged(path, careless)
