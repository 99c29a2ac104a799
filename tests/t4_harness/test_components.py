"""Components by spec, policies and parsers: what a spec says, and what it cannot say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from branchkit.boundary.calls import Call
from branchkit.errors import UsageError
from branchkit.harness import parser, policy
from branchkit.harness.components import DEFAULTS, build, component, component_hash, parse_sampling
from branchkit.harness.live import standard_tools
from branchkit.harness.tools import STANDARD
from branchkit.journal.events import Component


def test_the_defaults_build() -> None:
    harness = build({})
    assert harness.sampling == {}
    assert harness.prompt("x")["role"] == "system"
    assert harness.deliver("y" * 10_000).text is None
    assert harness.decide(Call("t0001.1", "bash", {})).decision == "allow"


def test_a_prompt_may_name_the_task_and_nothing_else() -> None:
    """A prompt full of dollars and braces, as prompts about shells are, stays as it is."""
    part = Component(spec="@p", content="$task: ${task}! $5 $$ ${HOME} $tasks {task}")
    harness = build({"prompt": part})
    assert harness.prompt("win")["content"] == "win: win! $5 $$ ${HOME} $tasks {task}"


def test_a_file_is_read_once_and_named_without_its_folder(tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("Be kind.")
    part = component("prompt", f"@{tmp_path / 'p.txt'}")
    assert part == Component(spec="@p.txt", content="Be kind.")
    tools = tmp_path / "t.py"
    tools.write_text("x = 1")
    assert component("tools", f"bash,@{tools}") == Component(spec="bash,@t.py", content="x = 1")


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        ("promt", "default"),
        ("prompt", "be kind"),
        ("prompt", "@no/such/file"),
        ("truncation", "head"),
        ("truncation", "head:-1l"),
        ("sampling", "temperature=1"),
        ("parser", "fenced:"),
        ("parser", "fenced:c++"),
        ("policy", "forbid:bash"),
        ("policy", "deny:"),
    ],
)
def test_specs_that_make_no_sense(name: str, spec: str) -> None:
    with pytest.raises(UsageError) as caught:
        component(name, spec)
    assert caught.value.hint


def test_a_component_is_hashed_with_its_text() -> None:
    hashes = {
        component_hash(part)
        for part in (Component(spec="a"), Component(spec="a", content=""),
                     Component(spec="a", content="x"), Component(spec="b", content="x"))
    }  # fmt: skip
    assert len(hashes) == 4


def test_delivery_says_what_is_missing() -> None:
    shown = build({"truncation": Component(spec="head:2l")}).deliver("a\nb\nc\nd\n")
    assert shown.text is not None
    assert shown.text.startswith("a\nb\n")
    assert (shown.rule, shown.omitted_lines, shown.omitted_bytes) == ("head:2l", 2, 4)
    assert build({"truncation": Component(spec="head:4l")}).deliver("a\nb\nc\nd\n").text is None


def test_sampling_by_name() -> None:
    assert parse_sampling("default") == {}
    assert parse_sampling("temperature:0.7, top_p:1") == {"temperature": 0.7, "top_p": 1.0}


@given(st.dictionaries(st.sampled_from(["temperature", "top_p", "slip"]),
                       st.floats(0, 2, allow_nan=False), min_size=1))  # fmt: skip
def test_sampling_round_trip(settings: dict[str, float]) -> None:
    assert parse_sampling(",".join(f"{k}:{v!r}" for k, v in settings.items())) == settings


@pytest.mark.parametrize(
    ("spec", "name", "decision"),
    [
        ("allow", "bash", "allow"),
        ("deny:bash", "bash", "deny"),
        ("deny:bash", "bash2", "allow"),
        ("deny:delete_*", "delete_branch", "deny"),
        ("allow:delete_note,deny:delete_*", "delete_note", "allow"),
        ("deny:*,allow:bash", "bash", "deny"),
        ("hold:bash , deny:*", "bash", "hold"),
        ("deny:Bash", "bash", "allow"),
        ("deny:[ab]*", "add", "deny"),
    ],
)
def test_the_first_rule_of_a_policy_decides(spec: str, name: str, decision: str) -> None:
    decided = policy.parse(spec)(Call("t0001.1", name, {}))
    assert (decided.decision, decided.policy) == (decision, spec)
    assert decided.reason


CALL = [{"id": "t0002.1", "type": "function", "function": {"name": "look", "arguments": "{}"}}]


@pytest.mark.parametrize(
    ("content", "commands"),
    [
        ("I look.\n```bash\nls -l\n```\n", ["ls -l"]),
        ("```bash\nls\ncat x\n\n```", ["ls\ncat x"]),
        ("```bash  \nls\n```   ", ["ls"]),
        ("nothing to run", []),
        ("```python\nprint()\n```", []),
        ("```bash\nls", []),
        ("say ```bash\nls\n``` inline", []),
        ("", []),
        (None, []),
    ],
)
def test_a_fenced_command(content: str | None, commands: list[str]) -> None:
    calls = parser.parse("fenced:bash")({"role": "assistant", "content": content}, 2)
    assert [call.arguments for call in calls] == [{"command": command} for command in commands]
    assert all((c.call_id, c.name, c.role, c.problem) == ("t0002.1", "bash", "user", None)
               for c in calls)  # fmt: skip


def test_two_fenced_commands_are_a_problem_that_the_model_is_told() -> None:
    text = "```bash\nls\n```\nand\n```bash\nrm x\n```"
    (call,) = parser.parse("fenced:bash")({"role": "assistant", "content": text}, 2)
    assert call.arguments is None
    assert call.problem == "Exactly one ```bash block is expected, there are 2"


def test_a_model_that_calls_natively_is_understood_by_both_parsers() -> None:
    message: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": CALL}
    for spec in ("native", "fenced:bash"):
        (call,) = parser.parse(spec)(message, 2)
        assert (call.call_id, call.name, call.arguments, call.role) == (
            "t0002.1", "look", {}, "tool",
        )  # fmt: skip


def test_which_standard_tools_a_spec_names() -> None:
    assert standard_tools("standard") == list(STANDARD)
    assert standard_tools("bash,read_file") == ["bash", "read_file"]
    assert standard_tools("@mine.py") == []
    assert standard_tools("standard,@mine.py") == list(STANDARD)
    with pytest.raises(UsageError, match="no tool 'brash'"):
        standard_tools("brash")


def test_every_default_component_has_its_own_meaning() -> None:
    assert set(DEFAULTS) == {"sampling", "prompt", "truncation", "tools", "parser", "policy"}
