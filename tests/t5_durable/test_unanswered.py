"""Calls that got no answer, by real HTTP: lost replies, expired keys, queues, rights (R26).

The counting service commits before it replies, so its rows are what happened.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from loops import events_of, plain_loop, proposes, replay, says, scripted
from world import World, held

import branchkit
from branchkit.boundary.calls import Call
from branchkit.boundary.session import Decision, Session
from branchkit.boundary.settlement import Waiting
from branchkit.durable.answers import approve, cancel, settle
from branchkit.durable.states import calls
from branchkit.errors import ContextDrift, UsageError
from branchkit.harness.tools import Key, KeyMismatch, ProbeAnswer, Tool, tool
from branchkit.journal.events import Settled, ToolIntent, ToolResult
from branchkit.record.fold import fold
from branchkit.replay import strict
from branchkit.replay.recorded import Recorded
from branchkit.testing.crash import arm, in_child
from branchkit.testing.effect_client import Refused, perform, probe
from branchkit.testing.effect_service import EffectService, effects


@pytest.fixture
def keyed(tmp_path: Path) -> Iterator[EffectService]:
    with EffectService(tmp_path / "keyed.sqlite", contract="keyed", in_process=True) as service:
        yield service


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[EffectService]:
    path = tmp_path / "plain.sqlite"
    with EffectService(path, contract="plain", probe=True, in_process=True) as service:
        yield service


def order_by_key(url: str, **contract: Any) -> Tool:
    """A tool of the keyed service."""

    def order(article: str, key: Key) -> str:
        try:
            return perform(url, article, key=key).receipt
        except Refused as error:
            raise KeyMismatch(str(error)) from error

    return tool(effect="external", key=True, **contract)(order)


def order_with_probe(url: str) -> Tool:
    """A tool of the plain service, which can be asked what it did."""

    def look(arguments: dict[str, Any], _key: str) -> ProbeAnswer:
        known = probe(url, arguments["article"])
        match known.state:
            case "done":
                return ProbeAnswer("completed", known.receipt)
            case "absent":
                return ProbeAnswer("not_done")
            case _:
                return ProbeAnswer("unknown", "it is queued")

    def order(article: str) -> str:
        return perform(url, article).receipt

    return tool(effect="external", probe=look)(order)


def go(path: Path, tools: list[Tool], mode: Any = "record", at: str = "", **more: Any) -> str:
    """The last word of a run that orders a book; or the question that it waits with."""

    def model(request: Any) -> Any:
        if at:
            arm(at)
        return scripted(proposes(("order", {"article": "book"})), says("done"))(request)

    try:
        with branchkit.session(path, mode, model=model, tools=tools, **more) as session:
            return plain_loop(session)
    except Waiting as waiting:
        return str(waiting)


def settlements(path: Path) -> list[tuple[str, str]]:
    return [
        (event.payload.by, event.payload.outcome)
        for event in events_of(path)
        if isinstance(event.payload, Settled)
    ]


# ---- while the run is live ----


def test_a_lost_reply_under_a_key(tmp_path: Path, keyed: EffectService) -> None:
    """D11, N18: no answer came, so it is sent again under its key: one row, the old receipt."""
    path = tmp_path / "a.journal.jsonl"
    keyed.switch(lose_replies=1)
    assert go(path, [order_by_key(keyed.url)]) == "done"
    assert keyed.audit().rows == 1
    assert settlements(path) == [("key", "completed")]
    assert replay(path, plain_loop) == "done"


@pytest.mark.parametrize("lost", [{"lose_replies": 1}, {"drop_requests": 1}])
def test_a_lost_reply_and_a_probe(
    tmp_path: Path, plain: EffectService, lost: dict[str, int]
) -> None:
    """D09, D11: both answers of the probe; to the client the two losses look the same."""
    path = tmp_path / "a.journal.jsonl"
    plain.switch(**lost)
    assert go(path, [order_with_probe(plain.url)]) == "done"
    assert plain.audit().rows == 1
    assert settlements(path) == [("probe", "completed")]
    assert replay(path, plain_loop) == "done"


def test_a_lost_reply_and_nobody_who_knows(tmp_path: Path, plain: EffectService) -> None:
    """D10, D11, K05: asked, not tried again; the person's word goes to the model."""
    path = tmp_path / "a.journal.jsonl"
    plain.switch(lose_replies=1)

    def order(article: str) -> str:
        return perform(plain.url, article).receipt

    tools = [tool(effect="external")(order)]
    question = go(path, tools)
    assert question.startswith("Was order (t0001.1) done?")
    assert [row.state for row in calls(path)] == ["in doubt"]
    assert fold(None, events_of(path)).status == "waiting"
    with pytest.raises(Waiting, match="Was order"):  # R53: the waiting, too, is replayed
        replay(path, plain_loop)
    assert strict.replay(Recorded.open(path), plain_loop).ok
    settle(path, "t0001.1", "completed", result="r-1", by="me")
    assert go(path, tools, "resume") == "done"
    assert plain.audit().rows == 1
    assert replay(path, plain_loop) == "done"


def test_the_key_stands_for_another_request(tmp_path: Path, keyed: EffectService) -> None:
    """N21: other parameters under one key: asked, not retried."""
    path = tmp_path / "a.journal.jsonl"
    keyed.switch(lose_replies=1)
    seen: list[str] = []

    def order(article: str, key: Key) -> str:
        seen.append(key)
        try:
            # A tool with a bug: what it sends is not determined by what it is asked.
            return perform(keyed.url, article, key=key, parameters={"try": len(seen)}).receipt
        except Refused as error:
            raise KeyMismatch(str(error)) from error

    question = go(path, [tool(effect="external", key=True)(order)])
    assert "its key stands for another request" in question
    assert (keyed.audit().rows, len(seen), len(set(seen))) == (1, 2, 1)


# ---- after a crash ----


def test_the_key_is_kept_across_restarts(tmp_path: Path, keyed: EffectService) -> None:
    """N11, N16: the same key in the intent, at the first try and after the restart."""
    path = tmp_path / "a.journal.jsonl"
    tools = [order_by_key(keyed.url)]
    assert in_child(go, path, tools, "record", "effect_done").killed
    (intent,) = [e.payload for e in events_of(path) if isinstance(e.payload, ToolIntent)]
    assert in_child(go, path, tools, "resume").result() == "done"
    assert keyed.audit().rows == 1
    assert [effect.key for effect in effects(keyed.db)] == [intent.idempotency_key]
    assert intent.contract == "keyed"


def test_a_key_that_the_server_has_forgotten(tmp_path: Path, keyed: EffectService) -> None:
    """N20: past its time a key protects nothing: asked, not sent."""
    path = tmp_path / "a.journal.jsonl"
    assert in_child(go, path, [order_by_key(keyed.url)], "record", "effect_done").killed
    question = go(path, [order_by_key(keyed.url, key_ttl_s=0.001)], "resume")
    assert "the server forgets it after 0.001 s" in question
    assert keyed.audit().rows == 1


def test_a_request_that_is_still_under_way(tmp_path: Path, plain: EffectService) -> None:
    """N23: a queue with delayed delivery: the probe cannot tell yet, so nothing is sent again."""
    path = tmp_path / "a.journal.jsonl"
    plain.switch(queued=True)
    tools = [order_with_probe(plain.url)]
    assert in_child(go, path, tools, "record", "effect_done").killed
    assert "it is queued" in go(path, tools, "resume")
    before = path.read_bytes()
    assert "it is queued" in go(path, tools, "resume")
    assert path.read_bytes() == before
    plain.deliver()
    assert go(path, tools, "resume") == "done"  # the probe is asked each time, the person is not
    assert plain.audit().rows == 1


def test_what_was_allowed_then_and_is_not_now(tmp_path: Path, keyed: EffectService) -> None:
    """N12: a call is not sent again against today's policy, not even under its key."""
    path = tmp_path / "a.journal.jsonl"
    tools = [order_by_key(keyed.url)]
    assert in_child(go, path, tools, "record", "effect_done").killed

    def today(call: Call) -> Decision:
        return Decision("deny", "today", f"no more {call.name}")

    assert "it may not be sent again: deny, no more order" in go(
        path, tools, "resume", decide=today
    )
    assert (keyed.audit().rows, calls(path)[0].state) == (1, "in doubt")


def test_a_tool_that_takes_no_key_any_more(tmp_path: Path, keyed: EffectService) -> None:
    """A key protects only while the tool hands it on."""
    path = tmp_path / "a.journal.jsonl"
    assert in_child(go, path, [order_by_key(keyed.url)], "record", "effect_done").killed

    def order(article: str) -> str:
        return perform(keyed.url, article, key="another").receipt

    assert "no longer takes a key" in go(path, [tool(effect="external")(order)], "resume")
    assert keyed.audit().rows == 1


def test_a_schema_that_reads_the_arguments_otherwise(tmp_path: Path, keyed: EffectService) -> None:
    """G20: arguments in doubt are not given to a tool that has changed since."""
    path = tmp_path / "a.journal.jsonl"
    assert in_child(go, path, [order_by_key(keyed.url)], "record", "effect_done").killed

    def order(article: str, key: Key, copies: int = 2) -> str:
        return perform(keyed.url, article, key=key, parameters={"copies": copies}).receipt

    question = go(path, [tool(effect="external", key=True)(order)], "resume")
    assert "its schema has changed" in question
    assert keyed.audit().rows == 1


def test_arguments_that_held_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R11: the journal does not keep it, so nothing is sent in its place; the model is told."""
    path, world = tmp_path / "a.journal.jsonl", World(tmp_path)
    monkeypatch.setenv("SHOP_API_KEY", "sk-0123456789abcdef0123456789abcdef")

    def look(_arguments: dict[str, Any], _key: str) -> ProbeAnswer:
        return ProbeAnswer("not_done")

    def order(article: str) -> str:
        world.do("orders", article)
        return "ordered"

    def run(mode: Any, at: str) -> str:
        def model(request: Any) -> Any:
            if at:
                arm(at)
            secret = {"article": "sk-0123456789abcdef0123456789abcdef"}
            return scripted(proposes(("order", secret)), says("done"))(request)

        tools = [tool(effect="external", probe=look)(order)]
        with branchkit.session(path, mode, model=model, tools=tools) as session:
            return plain_loop(session)

    assert in_child(run, "record", "intent_durable").killed
    assert run("resume", "") == "done"
    assert world.count("orders") == 0
    (row,) = calls(path)
    assert (row.state, row.status) == ("not sent", "denied")
    assert replay(path, plain_loop) == "done"


# ---- approvals ----


def approved(session: Session) -> str:
    answer = session.model([session.input({"role": "user", "content": "go"})])
    return str(session.tool(answer.calls[0], decide=held)["content"])


def run_held(path: Path, world: World, mode: Any) -> str:
    model = scripted(proposes(("act", {})), says("done"))
    try:
        with branchkit.session(path, mode, model=model, tools=[world.tool("plain")]) as session:
            return approved(session)
    except Waiting as waiting:
        return str(waiting)


def test_an_approval_that_has_expired(tmp_path: Path) -> None:
    """G11, N30: it counts for nothing: asked again, nothing sent; a new one does."""
    path, world = tmp_path / "a.journal.jsonl", World(tmp_path)
    assert "a person must look" in run_held(path, world, "record")
    approve(path, "t0001.1", by="me", expires_at="2020-01-01T00:00:00+00:00")
    assert "the approval ended at 2020" in run_held(path, world, "resume")
    assert world.count("act") == 0
    assert calls(path)[0].state == "not sent"
    approve(path, "t0001.1", by="me", expires_at="2120-01-01T00:00:00+00:00")
    assert run_held(path, world, "resume") == "act done"
    assert world.count("act") == 1
    assert replay(path, approved) == "act done"


def test_an_answer_needs_a_time_zone(tmp_path: Path) -> None:
    path, world = tmp_path / "a.journal.jsonl", World(tmp_path)
    run_held(path, world, "record")
    with pytest.raises(UsageError, match="no time zone"):
        approve(path, "t0001.1", expires_at="2120-01-01T00:00:00")


def test_a_cancelled_run_is_not_resumed(tmp_path: Path) -> None:
    path, world = tmp_path / "a.journal.jsonl", World(tmp_path)
    run_held(path, world, "record")
    assert cancel(path, by="me", reason="no longer needed").status == "cancelled"
    with pytest.raises(UsageError, match=r"has ended \(cancelled\)"):
        run_held(path, world, "resume")
    assert world.count("act") == 0


# ---- what a resume keeps ----


def test_a_loop_that_was_changed_in_between(tmp_path: Path) -> None:
    """R42, G07: drift, and nothing new is sent; the old loop still goes on."""
    path, world = tmp_path / "a.journal.jsonl", World(tmp_path)

    def run(mode: Any, task: str, at: str) -> str:
        def model(request: Any) -> Any:
            if at and request.turn == 2:
                arm(at)
            return scripted(proposes(("act", {})), says("done"))(request)

        with branchkit.session(path, mode, model=model, tools=[world.tool("keyed")]) as session:
            return plain_loop(session, task)

    assert in_child(run, "record", "go", "model_answered").killed
    with pytest.raises(ContextDrift, match="InputReceived") as caught:
        run("resume", "go elsewhere", "")
    assert caught.value.report["step_id"] == "t0000"
    assert in_child(run, "resume", "go", "").result() == "done"
    assert world.count("act") == 1


def test_a_summary_is_made_once(tmp_path: Path) -> None:
    """R10, C05, K04: after a crash the recorded summary is used, byte for byte."""
    path, world = tmp_path / "a.journal.jsonl", World(tmp_path)

    def agent(session: Session) -> str:
        messages = [session.input({"role": "user", "content": "go"})]
        answer = session.model(messages)
        messages += [answer.message, session.tool(answer.calls[0])]

        def summarise() -> list[dict[str, Any]]:
            world.do("summaries")
            return [{"role": "user", "content": f"so far: {world.count('summaries')}"}]

        return session.model(session.compact(summarise, reason="too long")).text

    def run(mode: Any, at: str) -> str:
        def model(request: Any) -> Any:
            if at and request.turn == 2:
                arm(at)
            return scripted(proposes(("act", {})), says("done"))(request)

        with branchkit.session(path, mode, model=model, tools=[world.tool("pure")]) as session:
            return agent(session)

    assert in_child(run, "record", "model_answered").killed
    assert in_child(run, "resume", "").result() == "done"
    assert world.count("summaries") == 1
    assert replay(path, agent) == "done"


def test_identifiers_go_on(tmp_path: Path) -> None:
    """R52: what was drawn before the crash is not drawn again after it."""
    path, world = tmp_path / "a.journal.jsonl", World(tmp_path)

    def agent(session: Session) -> list[str]:
        drawn = [session.uuid4()]
        answer = session.model([session.input({"role": "user", "content": drawn[0]})])
        session.tool(answer.calls[0])
        return [*drawn, session.uuid4()]

    def run(mode: Any, at: str) -> list[str]:
        def model(request: Any) -> Any:
            if at:
                arm(at)
            return scripted(proposes(("act", {})))(request)

        with branchkit.session(path, mode, model=model, tools=[world.tool("keyed")]) as session:
            return agent(session)

    assert in_child(run, "record", "call.delivered").killed
    first, second = in_child(run, "resume", "").result()
    assert first != second
    assert replay(path, agent) == [first, second]
    (result,) = [e.payload for e in events_of(path) if isinstance(e.payload, ToolResult)]
    assert result.status == "completed"
