"""SDKs over a recorded HTTP transport: real clients, a real server, then the server gone (R50).

What an SDK shows of a recorded run and of its replay is compared whole: every object that it gave
out, streamed pieces and all.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anthropic
import httpx
import httpx2
import openai
import pytest

import branchkit
from branchkit.errors import Diverged, UsageError
from branchkit.journal.events import EnvironmentRead, ModelReplied
from branchkit.journal.file import read
from branchkit.testing.model_server import Answer, ModelServer, cut, refuse
from branchkit.testing.model_wire import Said, chat, messages, responses, zipped

KEY = "sk-" + "n0t4Real" * 4
BOTH = Said("Let me see: é 日本", [("add", {"a": 2, "b": 3}), ("add", {"a": 40, "b": 5})])
END = Said("It is 5 and 45.")
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
}
Seen = list[str]


def busy() -> Answer:
    """A refusal after which a client tries again at once."""
    return refuse(429)._replace(headers={"retry-after-ms": "1"})


def add(arguments: str | dict[str, int]) -> str:
    given = json.loads(arguments) if isinstance(arguments, str) else arguments
    return str(given["a"] + given["b"])


def chat_agent(client: openai.OpenAI, seen: Seen, *, stream: bool) -> None:
    """The loop that everybody writes, over chat completions."""
    tools: Any = [{"type": "function", "function": {"name": "add", "parameters": SCHEMA}}]
    said: list[Any] = [{"role": "user", "content": "add them"}]
    while True:
        if stream:
            with client.chat.completions.stream(model="m", messages=said, tools=tools) as events:
                seen += [
                    str(event.type) + event.model_dump_json(warnings=False) for event in events
                ]
                reply: Any = events.get_final_completion().choices[0].message
        else:
            whole = client.chat.completions.create(model="m", messages=said, tools=tools)
            seen.append(whole.model_dump_json())
            reply = whole.choices[0].message
        said.append(reply.model_dump(exclude_none=True, include={"role", "content", "tool_calls"}))
        if not reply.tool_calls:
            return
        for call in reply.tool_calls:
            text = add(call.function.arguments)
            said.append({"role": "tool", "tool_call_id": call.id, "content": text})


def responses_agent(client: openai.OpenAI, seen: Seen, *, stream: bool) -> None:
    """The same over Responses."""
    tools: Any = [{"type": "function", "name": "add", "parameters": SCHEMA, "strict": False}]
    said: list[Any] = [{"role": "user", "content": "add them"}]
    while True:
        asked: dict[str, Any] = {"model": "m", "input": said, "tools": tools, "instructions": "add"}
        if stream:
            with client.responses.stream(**asked) as events:
                seen += [event.model_dump_json(warnings=False) for event in events]
                found = events.get_final_response()
        else:
            found = client.responses.create(**asked)
            seen.append(found.model_dump_json(warnings=False))
        calls = [item for item in found.output if item.type == "function_call"]
        if not calls:
            return
        said += [item.model_dump(exclude_none=True) for item in found.output]
        for call in calls:
            text = add(call.arguments)
            said.append({"type": "function_call_output", "call_id": call.call_id, "output": text})


def messages_agent(client: anthropic.Anthropic, seen: Seen, *, stream: bool) -> None:
    """The same over Anthropic's Messages."""
    tools: Any = [{"name": "add", "description": "a + b", "input_schema": SCHEMA}]
    said: list[Any] = [{"role": "user", "content": "add them"}]
    while True:
        asked: dict[str, Any] = {"model": "m", "max_tokens": 99, "messages": said, "tools": tools}
        if stream:
            with client.messages.stream(system="add", **asked) as events:
                seen += [event.model_dump_json(warnings=False) for event in events]
                found = events.get_final_message()
        else:
            found = client.messages.create(system="add", **asked)
            seen.append(found.model_dump_json(warnings=False))
        calls = [block for block in found.content if block.type == "tool_use"]
        if not calls:
            return
        said.append({"role": "assistant", "content": [b.model_dump() for b in found.content]})
        results = [
            {"type": "tool_result", "tool_use_id": call.id, "content": add(call.input)}  # type: ignore[arg-type]
            for call in calls
        ]
        said.append({"role": "user", "content": results})


def an_openai(wire: Any, url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=url, api_key=KEY, http_client=wire.client(), max_retries=2)


def an_anthropic(wire: Any, url: str) -> anthropic.Anthropic:
    base = url.removesuffix("/v1")
    return anthropic.Anthropic(base_url=base, api_key=KEY, http_client=wire.client(), max_retries=2)


CASES: dict[str, tuple[Callable[..., Any], Callable[..., None], Callable[..., Answer]]] = {
    "chat": (an_openai, chat_agent, chat),
    "responses": (an_openai, responses_agent, responses),
    "messages": (an_anthropic, messages_agent, messages),
}


@pytest.fixture(params=[f"{name}-{how}" for name in CASES for how in ("whole", "stream")])
def case(request: pytest.FixtureRequest) -> tuple[Any, Any, Any, bool]:
    name, _, how = request.param.partition("-")
    return (*CASES[name], how == "stream")


def test_an_sdk_is_recorded_once_and_replayed_with_the_server_gone(
    case: tuple[Any, Any, Any, bool], tmp_path: Path
) -> None:
    """Retries, a compressed answer, two calls at once: the same objects, and nothing is sent."""
    client, agent, answer, stream = case
    journal = tmp_path / "run.journal.jsonl"
    script = [busy(), busy(), zipped(answer(BOTH, stream=stream)), answer(END, stream=stream)]
    recorded: Seen = []
    with ModelServer(script) as server, branchkit.wire(journal) as wire:
        agent(client(wire, server.url), recorded, stream=stream)
        assert server.count == 4
    replayed: Seen = []
    with branchkit.wire(journal, "replay") as wire:
        agent(client(wire, server.url), replayed, stream=stream)
    assert replayed == recorded
    assert KEY not in journal.read_text()

    with branchkit.open(journal) as run:
        assert run.turns == 2, "a retry is no turn of its own"
        reply = run.rewind(1, workspace=False).recorded["reply"]["message"]
        calls = [call["function"] for call in reply["tool_calls"]]
        given = [json.loads(call["arguments"]) for call in calls]
        assert given == [arguments for _, arguments in BOTH.calls]
        assert reply["content"] == BOTH.text
        assert "45" in str(run.rewind(2, workspace=False).context[-1]), (
            "what the second request held"
        )
    events, damage = read(journal)
    assert not damage
    exchanged = [e.payload for e in events if isinstance(e.payload, EnvironmentRead)]
    statuses = [one.value["status"] for one in exchanged if one.source == "http"]
    assert statuses == [429, 429, 200, 200]


def test_another_request_stops_at_its_turn(
    case: tuple[Any, Any, Any, bool], tmp_path: Path
) -> None:
    """R51, R55: no SDK's ``except Exception`` swallows it, and nothing is asked again."""
    client, agent, answer, stream = case
    journal = tmp_path / "run.journal.jsonl"
    with (
        ModelServer([answer(BOTH, stream=stream), answer(END, stream=stream)]) as server,
        branchkit.wire(journal) as wire,
    ):
        agent(client(wire, server.url), [], stream=stream)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "add", lambda arguments: "another result")
        with pytest.raises(Diverged) as caught, branchkit.wire(journal, "replay") as wire:
            agent(client(wire, server.url), [], stream=stream)
    assert caught.value.report["step_id"] == "t0002"
    assert caught.value.report["actual"]["kind"] == "ContextBuilt"  # type: ignore[index]


def test_a_harness_that_stops_early_leaves_events_over(tmp_path: Path) -> None:
    """R55: every event is consumed."""
    journal = tmp_path / "run.journal.jsonl"
    with ModelServer([chat(BOTH), chat(END)]) as server, branchkit.wire(journal) as wire:
        chat_agent(an_openai(wire, server.url), [], stream=False)
    with (
        pytest.raises(Diverged, match="made TaskFinished"),
        branchkit.wire(journal, "replay"),
    ):
        pass


@pytest.mark.parametrize("after_bytes", [0, 1, 37, 300, 900])
def test_a_stream_that_is_cut_is_replayed_as_it_broke(tmp_path: Path, after_bytes: int) -> None:
    """R53: the same pieces, then the same error; the retry that the harness makes is a new one."""
    journal = tmp_path / "run.journal.jsonl"

    def agent(wire: Any, url: str) -> Seen:
        seen: Seen = []
        said: Any = [{"role": "user", "content": "go"}]
        client = an_openai(wire, url)
        while True:
            try:
                for piece in client.chat.completions.create(model="m", messages=said, stream=True):
                    seen.append(piece.model_dump_json())
                return seen
            except (openai.APIError, httpx2.TransportError) as error:
                seen.append(type(error).__name__)

    broken = cut(chat(Said("a text that takes a while"), stream=True), after_bytes)
    with ModelServer([broken, chat(END, stream=True)]) as server, branchkit.wire(journal) as wire:
        recorded = agent(wire, server.url)
    with branchkit.wire(journal, "replay") as wire:
        assert agent(wire, server.url) == recorded
    assert any("Error" in one for one in recorded)
    with branchkit.open(journal) as run:
        assert run.turns == 1


def test_a_refusal_that_stays_is_an_error_both_times(tmp_path: Path) -> None:
    """R53: a run that failed is replayed to its failure."""
    journal = tmp_path / "run.journal.jsonl"
    said = refuse(400, '{"error": {"message": "no such model"}}')
    with (
        ModelServer([said]) as server,
        pytest.raises(openai.BadRequestError),
        branchkit.wire(journal) as wire,
    ):
        chat_agent(an_openai(wire, server.url), [], stream=False)
    with (
        pytest.raises(openai.BadRequestError, match="no such model"),
        branchkit.wire(journal, "replay") as wire,
    ):
        chat_agent(an_openai(wire, server.url), [], stream=False)


def test_a_server_that_is_not_there_is_an_error_both_times(tmp_path: Path) -> None:
    journal = tmp_path / "run.journal.jsonl"
    with ModelServer([]) as server:
        url = server.url
    with pytest.raises(openai.APIConnectionError), branchkit.wire(journal) as wire:
        chat_agent(an_openai(wire, url), [], stream=False)
    with pytest.raises(openai.APIConnectionError), branchkit.wire(journal, "replay") as wire:
        chat_agent(an_openai(wire, url), [], stream=False)


def test_what_is_no_model_request_is_refused(tmp_path: Path) -> None:
    """A hole in the tape would be found at the replay only: it is refused when it is made."""
    journal = tmp_path / "run.journal.jsonl"
    with ModelServer([chat(END)]) as server, branchkit.wire(journal) as wire:
        with pytest.raises(UsageError, match="GET /v1/models is no request to a model"):
            wire.client().get(f"{server.url}/models")
        chat_agent(an_openai(wire, server.url), [], stream=False)
    with branchkit.wire(journal, "replay") as wire:
        with pytest.raises(Diverged, match="a replay sends nothing"):
            wire.client().get(f"{server.url}/models")
        chat_agent(an_openai(wire, server.url), [], stream=False)


def test_a_secret_in_a_reply_is_nowhere_on_the_disk(tmp_path: Path) -> None:
    """R11: not in the reply's event, nor in pieces in the raw stream; the SDK gets it whole."""
    journal = tmp_path / "run.journal.jsonl"
    secret = "sk-" + "Marked00" * 4
    with (
        ModelServer([chat(Said(f"the key is {secret}"), stream=True)]) as server,
        branchkit.wire(journal) as wire,
    ):
        seen: Seen = []
        chat_agent(an_openai(wire, server.url), seen, stream=True)
    assert any(secret in one for one in seen)
    text = journal.read_text()
    assert secret not in text
    assert "Marked00" not in text
    events, _ = read(journal)
    [http] = [e.payload for e in events if getattr(e.payload, "source", "") == "http"]
    assert isinstance(http, EnvironmentRead)
    assert http.value["body"] is None
    with pytest.raises(Diverged, match="held a secret"), branchkit.wire(journal, "replay") as wire:
        chat_agent(an_openai(wire, server.url), [], stream=True)


def test_tools_of_the_session_are_not_run_again(tmp_path: Path) -> None:
    """R50: a tool that goes through the session is answered by the tape."""
    journal = tmp_path / "run.journal.jsonl"
    ran: list[int] = []

    def double(number: int) -> str:
        """Twice as much."""
        ran.append(number)
        return str(2 * number)

    def agent(wire: Any, url: str) -> list[Any]:
        client = an_openai(wire, url)
        said: list[Any] = [{"role": "user", "content": "double 21"}]
        reply: Any = client.chat.completions.create(model="m", messages=said).choices[0].message
        given = json.loads(reply.tool_calls[0].function.arguments)
        return [wire.tool("double", given), wire.session.random()]

    script = [chat(Said(calls=[("double", {"number": 21})]))]
    with ModelServer(script) as server, branchkit.wire(journal, tools=[double]) as wire:
        recorded = agent(wire, server.url)
    with branchkit.wire(journal, "replay") as wire:
        assert agent(wire, server.url) == recorded
    assert recorded[0] == "42"
    assert ran == [21]


@pytest.mark.parametrize("module", [httpx2, httpx], ids=["httpx2", "httpx"])
@pytest.mark.parametrize("everywhere", [False, True])
def test_either_library_is_recorded(tmp_path: Path, module: Any, everywhere: bool) -> None:
    """One interface under two names: whole, in a stream, and asynchronous."""
    journal = tmp_path / "run.journal.jsonl"
    body = {"model": "m", "messages": [{"role": "user", "content": "go"}]}

    def agent(wire: Any, url: str) -> list[Any]:
        asked = f"{url}/chat/completions"
        with module.Client() if everywhere else wire.client(module) as client:
            seen = [client.post(asked, json=body).json()]
            with client.stream("POST", asked, json={**body, "stream": True}) as answer:
                seen.append("".join(answer.iter_text()))

        async def asynchronous() -> Any:
            made = module.AsyncClient() if everywhere else wire.async_client(module)
            async with made as client:
                return (await client.post(asked, json=body)).json()

        return [*seen, asyncio.run(asynchronous())]

    script = [zipped(chat(BOTH)), chat(END, stream=True), chat(END)]
    with ModelServer(script) as server, branchkit.wire(journal, everywhere=everywhere) as wire:
        recorded = agent(wire, server.url)
    with branchkit.wire(journal, "replay", everywhere=everywhere) as wire:
        assert agent(wire, server.url) == recorded


def test_an_agent_of_pydantic_ai_is_recorded_without_a_change(tmp_path: Path) -> None:
    """``everywhere``: whoever makes the client, and wherever it is made."""
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    def ask(url: str) -> tuple[str, list[Any]]:
        model = OpenAIChatModel("m", provider=OpenAIProvider(base_url=url, api_key=KEY))
        agent = Agent(model, instructions="add")

        @agent.tool_plain
        def add(a: int, b: int) -> int:
            """The sum."""
            return a + b

        async def run() -> tuple[str, list[Any]]:
            found = await agent.run("add them")
            parts = [part for message in found.all_messages() for part in message.parts]
            return found.output, [(type(p).__name__, getattr(p, "content", None)) for p in parts]

        return asyncio.run(run())

    journal = tmp_path / "run.journal.jsonl"
    with (
        ModelServer([busy(), chat(BOTH), chat(END)]) as server,
        branchkit.wire(journal, everywhere=True),
    ):
        recorded = ask(server.url)
    assert recorded[0] == END.text
    with branchkit.wire(journal, "replay", everywhere=True):
        assert ask(server.url) == recorded
    with branchkit.open(journal) as run:
        assert run.turns == 2
        assert isinstance(run.recorded.events[-3].payload, ModelReplied)
