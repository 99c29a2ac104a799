"""``openai:`` over real HTTP: what goes out, what is retried, what is said, what stays secret."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import branchkit
from branchkit.boundary.calls import native_calls
from branchkit.boundary.model import ModelReply, ModelRequest
from branchkit.boundary.session import Session
from branchkit.errors import ModelError, UsageError
from branchkit.harness.components import parse_sampling
from branchkit.harness.models import open_model
from branchkit.harness.openai_model import ATTEMPTS, OpenAIModel, pause_s
from branchkit.journal.events import ModelFailed
from branchkit.journal.file import read
from branchkit.testing.model_server import (
    Answer,
    ModelServer,
    Script,
    babble,
    call,
    calls,
    cut,
    refuse,
    reply,
    say,
)

KEY = "sk-marked-secret-0123456789"
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


def model_at(server: ModelServer, pauses: list[int] | None = None) -> OpenAIModel:
    """A model that does not wait, and notes when it would have."""
    noted = pauses if pauses is not None else []

    def no_pause(attempt: int) -> float:
        noted.append(attempt)
        return 0.0

    return OpenAIModel(f"openai:some-model@{server.url}", pause_s=no_pause)


def request(**changes: Any) -> ModelRequest:
    fields: dict[str, Any] = {
        "messages": [{"role": "user", "content": "What is 2 + 3?"}],
        "tools": [],
        "sampling": {},
        "seed": 7,
        "turn": 1,
    }
    return ModelRequest(**(fields | changes))


def ask(script: Script, **changes: Any) -> ModelReply:
    with ModelServer(script) as server:
        model = model_at(server)
        try:
            return model.reply(request(**changes))
        finally:
            model.close()


def refused(*script: Answer) -> tuple[str, int]:
    """What the model's error says, and how many requests were made."""
    with ModelServer(script) as server:
        model = model_at(server)
        with pytest.raises(ModelError) as caught:
            model.reply(request())
        model.close()
        return str(caught.value), server.count


def test_a_reply_with_what_the_provider_said_about_itself() -> None:
    got = ask([say("It is 5.")])
    assert got.message == {"role": "assistant", "content": "It is 5."}
    assert (got.finish_reason, got.served_model) == ("stop", "scripted")
    assert (got.provider_id, got.usage["completion_tokens"]) == ("chatcmpl-scripted", 5)


def test_the_request_as_it_arrives() -> None:
    with ModelServer([say("yes")]) as server:
        model = model_at(server)
        model.reply(request(tools=TOOLS, sampling={"temperature": 0.7, "max_tokens": 50.0}))
        model.close()
        (got,) = server.requests
    assert got.path == "/v1/chat/completions"
    assert got.headers["authorization"] == f"Bearer {KEY}"
    assert got.body == {
        "model": "some-model",
        "messages": [{"role": "user", "content": "What is 2 + 3?"}],
        "tools": TOOLS,
        "seed": 7,
        "temperature": 0.7,
        "max_tokens": 50,
    }
    assert isinstance(got.body["max_tokens"], int), "50.0 tokens are refused by providers"


def test_without_a_key_no_authorization_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    with ModelServer([say("yes")]) as server:
        model = model_at(server)
        model.reply(request())
        model.close()
    assert "authorization" not in server.requests[0].headers


@pytest.mark.parametrize("status", [408, 429, 500, 503, 529])
def test_overload_is_waited_out(status: int) -> None:
    pauses: list[int] = []
    with ModelServer([refuse(status), refuse(status), say("at last")]) as server:
        model = model_at(server, pauses)
        assert model.reply(request()).message["content"] == "at last"
        model.close()
    assert pauses == [1, 2]
    assert server.count == 3


def test_a_lost_connection_is_tried_again() -> None:
    assert ask([cut(say("half of it"), 20), cut(say("x")), say("whole")]).message["content"] == (
        "whole"
    )


def test_the_waits_grow_and_end() -> None:
    assert [pause_s(attempt) for attempt in range(1, ATTEMPTS)] == [0.5, 2.0, 8.0]


def test_overload_that_does_not_end_is_an_error_with_the_providers_words() -> None:
    said, count = refused(*[refuse(429, "slow down, please")] * 9)
    assert count == ATTEMPTS
    assert "HTTP 429: slow down, please" in said
    assert "branchkit doctor" in said


@pytest.mark.parametrize("status", [400, 401, 403, 404, 422])
def test_what_waiting_cannot_mend_is_not_retried(status: int) -> None:
    said, count = refused(refuse(status, "no such model"), say("never"))
    assert count == 1
    assert f"HTTP {status}: no such model" in said


def test_nobody_listens() -> None:
    with ModelServer([]) as server:
        url = server.url
    model = OpenAIModel(f"openai:m@{url}", pause_s=lambda _attempt: 0.0)
    with pytest.raises(ModelError, match="ConnectError"):
        model.reply(request())
    model.close()


@pytest.mark.parametrize(
    "body",
    [
        "<html>please log in</html>",
        '{"choices": [',
        "[]",
        "null",
        "{}",
        '{"choices": []}',
        '{"choices": [{}]}',
        '{"choices": [null]}',
        '{"choices": [{"message": null}]}',
        '{"choices": [{"message": {"content": 7}}]}',
        '{"choices": [{"message": {"tool_calls": [null]}}]}',
        '{"choices": [{"message": {"tool_calls": [{"id": "x"}]}}]}',
        "[" * 100_000,
        "",
        "\udcff",
    ],
)
def test_an_answer_that_is_no_completion_is_an_error_and_not_retried(body: str) -> None:
    said, count = refused(babble(body), say("never"))
    assert count == 1
    assert "answered with no completion" in said
    assert len(said) < 700


@pytest.mark.parametrize(
    "extra",
    [
        {"reasoning_content": "let me think", "annotations": [], "audio": None},
        {"tool_calls": None, "refusal": None},
    ],
)
def test_what_a_provider_adds_to_a_message_is_left_out(extra: dict[str, Any]) -> None:
    got = ask([reply({"role": "assistant", "content": "hm", **extra})])
    assert got.message == {"role": "assistant", "content": "hm"}


def test_a_reply_cut_in_the_middle_of_an_emoji_is_a_reply() -> None:
    got = ask([say("fine \ud83d")])
    assert got.message["content"] == "fine \ud83d"


def test_half_a_surrogate_pair_goes_out_as_a_replacement_character() -> None:
    messages = [{"role": "tool", "tool_call_id": "t0001.1", "content": "broken \ud83d"}]
    with ModelServer([say("yes")]) as server:
        model = model_at(server)
        model.reply(request(messages=messages))
        model.close()
    assert server.requests[0].body["messages"][0]["content"] == "broken \ufffd"


@pytest.mark.parametrize(
    ("text", "arguments", "problem"),
    [
        ('{"a": 1}', {"a": 1}, None),
        ("", {}, None),
        ('{"a": "\\ud83d"}', {"a": "\ud83d"}, None),
        ("{a: 1}", None, "are not JSON"),
        ('{"a": NaN}', None, "are not JSON"),
        ('{"a": NaN, "b": "\\ud83d"}', None, "are not JSON"),
        ("[1]", None, "not a JSON object"),
    ],
)
def test_arguments_as_models_write_them(
    text: str, arguments: dict[str, Any] | None, problem: str | None
) -> None:
    (got,) = native_calls(ask([calls(("add", text))]).message, 3)
    assert (got.call_id, got.name, got.arguments) == ("t0003.1", "add", arguments)
    assert (problem or "") in (got.problem or "")
    assert (got.problem is None) == (problem is None)


def agent(session: Session) -> str:
    messages = [session.input({"role": "user", "content": "What is 2 + 3?"})]
    while (answer := session.model(messages)).calls:
        messages += [answer.message, *(session.tool(one) for one in answer.calls)]
    return answer.text


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def test_call_ids_on_the_wire_have_no_dot_and_are_unlike_within_a_run(tmp_path: Path) -> None:
    """Providers repeat their call ids within a run; ours go out as t0001-1 and come back so."""
    with ModelServer([call("add", a=2, b=3), call("add", a=5, b=1), say("6")]) as server:
        path = tmp_path / "a.journal.jsonl"
        with branchkit.session(path, model=f"openai:m@{server.url}", tools=[add]) as session:
            assert agent(session) == "6"
    last = server.requests[-1].body["messages"]
    ids = [one["id"] for message in last for one in message.get("tool_calls", [])]
    answers = [message["tool_call_id"] for message in last if message["role"] == "tool"]
    assert ids == answers == ["t0001-1", "t0002-1"]
    assert "call_0" in path.read_text(), "the provider's own id is kept, as data"


Trouble = Callable[[Path, str], None]


def succeed(path: Path, url: str) -> None:
    with branchkit.session(path, model=f"openai:m@{url}", tools=[add]) as session:
        agent(session)


def fail(path: Path, url: str) -> None:
    with (
        pytest.raises(ModelError),
        branchkit.session(path, model=f"openai:m@{url}", tools=[add]) as session,
    ):
        agent(session)


@pytest.mark.parametrize(
    ("answer", "run"),
    [
        (say("fine"), succeed),
        (refuse(401, f"Incorrect API key provided: {KEY}"), fail),
        (babble(f"your key {KEY} is welcome here"), fail),
    ],
)
def test_the_key_is_nowhere_on_disk(tmp_path: Path, answer: Answer, run: Trouble) -> None:
    """R11: also where the provider repeats the key in its error, as some do."""
    with ModelServer([answer]) as server:
        run(tmp_path / "a.journal.jsonl", server.url)
        assert server.requests[0].headers["authorization"].endswith(KEY)
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert kept
    assert KEY.encode() not in kept


@pytest.mark.parametrize("bad", [f"{KEY}\ntail", f"{KEY}\x07", f"{KEY}é"])
def test_a_key_that_cannot_be_sent_is_not_quoted(bad: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", bad)
    said, count = refused(say("never"))
    assert count == 0
    assert "OPENAI_API_KEY holds characters" in said
    assert KEY not in said


def test_a_failed_model_is_an_event_and_is_replayed(tmp_path: Path) -> None:
    """R53: the failure is an observation; replay gives it again with the server gone."""
    path = tmp_path / "a.journal.jsonl"
    with ModelServer([refuse(400, "too long")]) as server:
        fail(path, server.url)
    failures = [e.payload for e in read(path)[0] if isinstance(e.payload, ModelFailed)]
    assert len(failures) == 1
    assert "HTTP 400: too long" in failures[0].error
    with pytest.raises(ModelError, match="too long"), branchkit.session(path, "replay") as session:
        agent(session)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("openai:", "names no model"),
        ("openai:@http://localhost/v1", "names no model"),
        ("openai:m@localhost:8000", "is no URL"),
        ("openai:m@http://", "is no URL"),
        ("openai:m@http://host:port/v1", "is no URL"),
        ("openai:m@http://me:secret@host/v1", "holds a user name or password"),
    ],
)
def test_specs_that_make_no_sense(spec: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        open_model(spec)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("spec", ["temperature", "temperature:hot", "top_p:nan", "top_p:inf", ":1"])
def test_sampling_that_is_no_number(spec: str) -> None:
    with pytest.raises(UsageError, match="NAME:NUMBER"):
        parse_sampling(spec)


def test_the_server_says_when_its_script_is_over() -> None:
    said, count = refused()
    assert count == 1
    assert "the script ended after 0 answers" in said


def test_the_servers_script_may_be_a_function() -> None:
    def echo(body: Any) -> Answer:
        return say(json.dumps(body["messages"][-1]["content"]))

    assert ask(echo).message["content"] == '"What is 2 + 3?"'
