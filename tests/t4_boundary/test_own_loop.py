"""``branchkit.session``: a user's loop recorded and replayed, and what its journal costs."""

from __future__ import annotations

import inspect
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from loops import events_of, plain_loop, proposes, record, replay, says, scripted

import branchkit
from branchkit.boundary.model import ModelReply, ModelRequest
from branchkit.boundary.recording import Recording
from branchkit.boundary.replaying import Replaying
from branchkit.boundary.session import Delivery, Session
from branchkit.boundary.settlement import Observation, Tools
from branchkit.errors import Diverged, JournalDamaged, UsageError
from branchkit.journal.blobs import INLINE_LIMIT_BYTES, Blobs
from branchkit.journal.events import Component, ContextBuilt, Message, TaskStarted, ToolResult
from branchkit.journal.file import Writer
from branchkit.record.context import Contexts
from branchkit.record.fold import fold
from branchkit.testing.model_server import ModelServer, call, say

MODEL = ""  # set by the test, to where its server listens


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


# The fifteen lines of a user: nothing of branchkit's but ``session``.
def my_loop(path: Path, mode: Any) -> str:
    with branchkit.session(path, mode, model=MODEL, tools=[add]) as s:
        messages = [s.input({"role": "user", "content": "What is 2 + 3?"})]
        while (reply := s.model(messages)).calls:
            messages += [reply.message, *(s.tool(one) for one in reply.calls)]
        return f"{s.now().isoformat()} {reply.text}"


def test_fifteen_lines_recorded_over_http_and_replayed_with_the_server_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R50, R55: neither model nor tool is there any more, and the loop is none the wiser."""
    written = inspect.getsource(add) + inspect.getsource(my_loop)
    assert len(written.splitlines()) <= 15
    path = tmp_path / "run.journal.jsonl"
    with ModelServer([call("add", a=2, b=3), say("It is 5.")]) as server:
        monkeypatch.setitem(globals(), "MODEL", f"openai:any@{server.url}")
        first = my_loop(path, "record")
    assert first.endswith("It is 5.")
    before, asked = path.read_bytes(), server.count
    assert my_loop(path, "replay") == first
    assert (path.read_bytes(), server.count) == (before, asked)


def test_a_mode_that_is_neither(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="neither"):
        my_loop(tmp_path / "a.journal.jsonl", "live")


def test_recording_needs_a_model(tmp_path: Path) -> None:
    with (
        pytest.raises(UsageError, match="needs a model"),
        branchkit.session(tmp_path / "a.journal.jsonl"),
    ):
        pass


def test_a_damaged_journal_is_not_replayed(tmp_path: Path) -> None:
    path = tmp_path / "a.journal.jsonl"
    record(path, plain_loop, scripted(says("done")))
    path.write_bytes(path.read_bytes().replace(b"done", b"dome"))
    with pytest.raises(JournalDamaged, match="hash_mismatch"):
        replay(path, plain_loop)


ODD = [
    "\ud83d",
    "half \udc00 and \ud83d\ude00",
    "\x00\x1b[31m",
    "\ufeff",
    "é" * 3000,
    "\ud83d" * 3000,
    "a pair in two code points: " + "\ud83d\ude00" * 3000,
]


@pytest.mark.parametrize("text", ODD, ids=lambda text: ascii(text[:12]))
def test_odd_text_survives_recording_and_replay(
    tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lone surrogates too, inline and in the blobs: what the loop saw is what it sees again."""
    monkeypatch.setenv("BRANCHKIT_STORE", str(tmp_path / "store"))
    path, blobs = tmp_path / "a.journal.jsonl", Blobs(tmp_path / "store" / "blobs")
    model = scripted(proposes(("look", {"odd": text}), text=text), says(text))
    tool = {"type": "function", "function": {"name": "look", "parameters": {}}}
    started = TaskStarted(
        task=text, harness="own", components={"model": Component(spec="function:odd")},
        tools=[tool], budgets={}, seed=0, started_at="2026-01-01T00:00:00+00:00", versions={},
    )  # fmt: skip

    class Odd:
        spec = "function:odd"

        def describe(self) -> dict[str, Any]:
            return {}

        def reply(self, request: ModelRequest) -> ModelReply:
            return ModelReply(
                message=model(request), finish_reason="", usage={}, served_model="odd"
            )

        def close(self) -> None:
            pass

    def loop(session: Session) -> list[Message]:
        session.begin(started)
        messages = [session.input({"role": "user", "content": text})]
        answer = session.model(messages)
        shown = session.tool(answer.calls[0], deliver=half)
        messages += [
            answer.message,
            shown,
            session.model([*messages, answer.message, shown]).message,
        ]
        session.finish("completed")
        return messages

    writer = Writer(path, run_id="odd", now=lambda: "2026-01-01T00:00:00Z")
    mode = Recording(
        writer, blobs, model=Odd(), clock=lambda turn: "",
        tools=Tools(lambda name, arguments, turn, key: Observation("completed", text)),
    )  # fmt: skip
    first = loop(Session(mode, tools=[tool]))
    writer.close()
    events = events_of(path)
    again = loop(Session(Replaying(events, Contexts(events, blobs.get)), tools=[tool]))
    assert list(map(joined, again)) == list(map(joined, first))
    (result,) = [e.payload for e in events if isinstance(e.payload, ToolResult)]
    assert (result.blob is None) == (result.bytes <= INLINE_LIMIT_BYTES)


def half(text: str) -> Delivery:
    """A rule that counts bytes, which both sides must count alike."""
    kept = text[: len(text) // 2]
    missing = len(text[len(kept) :].encode("utf-8", "surrogatepass"))
    return Delivery("half", kept, omitted_bytes=missing)


def joined(message: Message) -> str:
    """The content with surrogate pairs as the characters they spell: one text in JSON."""
    content = str(message["content"])
    return content.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def numbers() -> Any:
    """Numbers that JSON does not have."""
    return {"nan": float("nan"), "inf": float("-inf"), "huge": 2**80}


def test_a_tools_nan_survives(tmp_path: Path) -> None:
    path = tmp_path / "a.journal.jsonl"

    def agent(session: Session) -> str:
        answer = session.model([session.input({"role": "user", "content": "go"})])
        return str(session.tool(answer.calls[0])["content"])

    first = record(path, agent, scripted(proposes(("numbers", {}))), [numbers])
    assert "NaN" in first
    assert str(2**80) in first
    assert replay(path, agent) == first


def long_run(path: Path, turns: int) -> None:
    """A run with marked texts: of the person, of the model, and results of one KiB."""

    def work(turn: int) -> str:
        return f"<result-{turn}>".ljust(1024, "r")

    replies = [
        proposes(("work", {"turn": turn}), text=f"<thought-{turn}>") for turn in range(1, turns)
    ]
    record(path, plain_with_prompt, scripted(*replies, says("<the end>")), [work])


def plain_with_prompt(session: Session) -> None:
    messages = [
        {"role": "system", "content": "<prompt>".ljust(500, "p")},
        session.input({"role": "user", "content": "<task>"}),
    ]
    while (answer := session.model(messages)).calls:
        messages += [answer.message, *(session.tool(one) for one in answer.calls)]


def test_no_message_stands_twice(tmp_path: Path) -> None:
    """R12: thirty turns, and every text is in the file once; contexts refer to it."""
    path = tmp_path / "a.journal.jsonl"
    long_run(path, 30)
    text = path.read_text()
    marks = ["<prompt>", "<task>", "<the end>"]
    marks += [f"<{kind}-{turn}>" for kind in ("result", "thought") for turn in range(1, 30)]
    assert {mark: text.count(mark) for mark in marks} == dict.fromkeys(marks, 1)


def test_bytes_a_turn_stay_flat(tmp_path: Path) -> None:
    """R13: a late turn costs what an early one does, though its context is four times as long."""
    path = tmp_path / "a.journal.jsonl"
    long_run(path, 52)
    by_turn: Counter[int] = Counter()
    for event, line in zip(events_of(path), path.read_bytes().splitlines(), strict=True):
        by_turn[event.turn] += len(line) + 1
    early = sum(by_turn[turn] for turn in range(10, 20)) / 10
    late = sum(by_turn[turn] for turn in range(40, 50)) / 10
    assert abs(late / early - 1) < 0.1


def test_contexts_are_what_the_model_was_given(tmp_path: Path) -> None:
    """R9: rebuilt from the journal for every turn, message by message, edits included."""
    path = tmp_path / "a.journal.jsonl"
    given: list[list[Message]] = []
    model = scripted(*(proposes(("add", {"a": n, "b": n})) for n in range(9)), says("done"))

    def spy(request: ModelRequest) -> Message:
        given.append(list(request.messages))
        return model(request)

    def forgetful(session: Session) -> None:
        """Drops, edits and reorders what came before, as real harnesses do."""
        messages = [session.input({"role": "user", "content": "go"})]
        while (answer := session.model(messages)).calls:
            messages += [answer.message, *(session.tool(one) for one in answer.calls)]
            if session.turn % 3 == 0:
                messages = [
                    {"role": "system", "content": f"so far: {session.turn}"},
                    *messages[-3:],
                ]
            if session.turn % 4 == 0:
                messages = [messages[0], *messages[:0:-1]]

    record(path, forgetful, spy, [add])
    contexts = Contexts(events_of(path), Blobs(tmp_path / "none").get)
    rebuilt = [[item.message for item in contexts.at_turn(turn)] for turn in sorted(contexts.turns)]
    assert rebuilt == given
    replay(path, forgetful)


def test_the_record_is_the_same_live_and_folded(tmp_path: Path) -> None:
    """R2: nothing of the record lives in memory alone."""
    path = tmp_path / "a.journal.jsonl"
    with branchkit.session(path, model=scripted(proposes(("add", {"a": 1, "b": 2})), says("3")),
                           tools=[add]) as session:  # fmt: skip
        plain_loop(session)
    assert session.record == fold(None, events_of(path))
    assert session.record.usage == {"model_calls": 2, "tool_calls": 1}


def test_sampling_is_part_of_the_request(tmp_path: Path) -> None:
    path = tmp_path / "a.journal.jsonl"

    def at(temperature: float) -> Any:
        return lambda session: session.model(
            [session.input({"role": "user", "content": "go"})],
            sampling={"temperature": temperature},
        )

    record(path, at(0.5), scripted(says("done")))
    (built,) = [e.payload for e in events_of(path) if isinstance(e.payload, ContextBuilt)]
    assert built.sampling == {"temperature": 0.5}
    with pytest.raises(Diverged):
        replay(path, at(0.6))
