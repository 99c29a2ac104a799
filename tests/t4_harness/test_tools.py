"""Tools: schemas from type hints, validation as observations, the standard six, all in process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

from branchkit.errors import UsageError
from branchkit.harness.standard_tools import standard_tools
from branchkit.harness.tools import (
    JSON,
    STANDARD,
    Tool,
    ToolOutcome,
    ToolRefused,
    as_outcome,
    load_tools,
    tool,
)


@tool(effect="workspace")
def delete_branch(
    name: str,
    force: bool = False,
    retries: int = 3,
    kinds: list[str] | None = None,
    mode: Literal["soft", "hard"] = "soft",
    ratio: float = 0.5,
    extra: dict[str, int] = {},  # noqa: B006  copied for each call
) -> str:
    """Delete a branch.

    It is not asked twice.

    name: the branch
    mode: how
    """
    return f"{name} {force} {retries} {kinds} {mode} {ratio} {extra}"


def test_the_schema_comes_from_the_type_hints() -> None:
    assert delete_branch.schema.openai() == {
        "type": "function",
        "function": {
            "name": "delete_branch",
            "description": "Delete a branch.\n\nIt is not asked twice.",
            "parameters": {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "description": "the branch"},
                    "force": {"type": "boolean", "default": False},
                    "retries": {"type": "integer", "default": 3},
                    "kinds": {
                        "anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}],
                        "default": None,
                    },
                    "mode": {"enum": ["hard", "soft"], "default": "soft", "description": "how"},
                    "ratio": {"type": "number", "default": 0.5},
                    "extra": {
                        "type": "object",
                        "additionalProperties": {"type": "integer"},
                        "default": {},
                    },
                },
                "required": ["name"],
                "additionalProperties": False,
            },
        },
    }


def test_a_good_call_gets_its_defaults() -> None:
    outcome = delete_branch.run({"name": "old", "ratio": 1, "kinds": ["a"]})
    assert outcome == ToolOutcome("completed", "old False 3 ['a'] soft 1.0 {}")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "missing argument `name`"),
        ({"name": 3}, "Expected `str`, got `int` (argument `name`)"),
        ({"name": "x", "force": "yes"}, "Expected `bool`, got `str` (argument `force`)"),
        ({"name": "x", "forse": True}, "unknown argument `forse`"),
        ({"name": "x", "mode": "firm"}, "Invalid enum value 'firm' (argument `mode`)"),
        ({"name": "x", "kinds": ["a", 1]}, "Expected `str`, got `int` (argument `kinds[1]`)"),
        ({"name": "x", "retries": 1.5}, "Expected `int`, got `float` (argument `retries`)"),
    ],
)
def test_a_bad_call_is_an_observation(arguments: dict[str, JSON], said: str) -> None:
    """R53: the model reads what was wrong; nothing is raised."""
    outcome = delete_branch.run(arguments)
    assert outcome == ToolOutcome("error", f"invalid arguments for delete_branch: {said}")


SOURCE = """
from __future__ import annotations
from dataclasses import dataclass
from branchkit.harness.tools import tool, ToolRefused
from branchkit.harness.standard_tools import read_file

@dataclass
class Point:
    x: int
    y: int = 0

@tool(effect="pure")
def zeta(point: Point) -> dict:
    "Where it is."
    return {"y": point.y, "x": point.x}

@tool(effect="external")
def alpha(kind: str) -> str:
    if kind == "refused":
        raise ToolRefused("not today")
    return {}[kind]
"""


def test_tools_are_loaded_from_source_in_their_order() -> None:
    zeta, alpha = load_tools(SOURCE)
    assert (zeta.name, zeta.schema.effect, alpha.name) == ("zeta", "pure", "alpha")
    assert zeta.schema.parameters["$defs"]["Point"]["required"] == ["x"]
    assert json.loads(zeta.run({"point": {"x": 1}}).text) == {"x": 1, "y": 0}
    assert alpha.run({"kind": "refused"}) == ToolOutcome("error", "not today")
    assert alpha.run({"kind": "k"}) == ToolOutcome("error", "KeyError: 'k'")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("", "defines no tool"),
        ("x = 1 +", "SyntaxError"),
        ("1/0", "ZeroDivisionError"),
        ("@tool(effect='pure')\ndef f(a): ...", "parameter a has no type"),
        ("@tool(effect='pure')\ndef f(*a: int): ...", "parameter a cannot be given by name"),
        ("@tool(effect='nice')\ndef f(): ...", "effect 'nice' is unknown"),
        ("@tool(effect='pure')\ndef f(a: type(tool)): ...", "has no JSON Schema"),
    ],
)
def test_a_module_that_is_no_tools_module_is_refused(body: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        load_tools("from branchkit.harness.tools import tool\n" + body)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("é", "é"),
        (None, ""),
        (b"\xff", "\ufffd"),
        ({"b": 1, "a": [2]}, None),
        ("\ud83d\ude00", "😀"),
    ],
)
def test_what_a_tool_returns_is_shown_as_text(value: Any, text: str | None) -> None:
    shown = as_outcome(value).text
    assert shown == text if text is not None else json.loads(shown) == value
    assert as_outcome("a\ud800b").text == "a\ufffdb"


Call = Callable[..., ToolOutcome]


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Call a standard tool in an empty workspace beside which there is a secret."""
    (tmp_path / "secret.txt").write_text("secret")
    (tmp_path / "ws").mkdir()
    monkeypatch.chdir(tmp_path / "ws")
    tools: dict[str, Tool] = {t.name: t for t in standard_tools(STANDARD, sandboxed=False)}
    return lambda name, **arguments: tools[name].run(arguments)


def test_the_effects_of_the_standard_tools() -> None:
    effects = {t.name: t.schema.effect for t in standard_tools(STANDARD, sandboxed=False)}
    assert effects == {
        "bash": "external",
        "read_file": "pure",
        "write_file": "workspace",
        "edit_file": "workspace",
        "list_dir": "pure",
        "grep": "pure",
    }
    assert standard_tools(["bash"], sandboxed=True)[0].schema.effect == "workspace"
    with pytest.raises(ToolRefused, match="no standard tool 'rm'"):
        standard_tools(["rm"], sandboxed=True)


def test_files_are_written_read_and_edited(call: Call) -> None:
    assert (
        call("write_file", path="a/b.txt", content="one\ntwo\n").text == "wrote 8 bytes to a/b.txt"
    )
    assert call("read_file", path="/workspace/a/b.txt").text == "one\ntwo\n"
    assert call("edit_file", path="a/b.txt", old="two", new="2").text == "edited a/b.txt"
    assert Path("a/b.txt").read_text() == "one\n2\n"


@pytest.mark.parametrize(("old", "count"), [("x", 0), ("o", 2)])
def test_an_edit_must_match_exactly_once(call: Call, old: str, count: int) -> None:
    Path("f").write_text("foo")
    outcome = call("edit_file", path="f", old=old, new="y")
    assert outcome.status == "error"
    assert f"occurs {count} times" in outcome.text
    assert Path("f").read_text() == "foo"
    assert call("edit_file", path="f", old="", new="y").status == "error"


def test_an_edit_leaves_bytes_that_are_no_text_alone(call: Call) -> None:
    Path("f").write_bytes(b"\xff\r\nold\r\n")
    call("edit_file", path="f", old="old", new="new")
    assert Path("f").read_bytes() == b"\xff\r\nnew\r\n"


def test_a_part_of_a_file_says_which_part(call: Call) -> None:
    Path("f").write_text("".join(f"{n}\n" for n in range(1, 11)))
    assert call("read_file", path="f", offset=3, limit=2).text == "3\n4\n[lines 3-4 of 10]"
    assert call("read_file", path="f", offset=30).text == "[no line 30: the file has 10 lines]"
    Path("empty").touch()
    assert call("read_file", path="empty").text == ""


OUTSIDE = ["../secret.txt", "/etc/passwd", "link", "dir/secret.txt", "/workspace/../secret.txt"]


@pytest.mark.parametrize("path", OUTSIDE)
@pytest.mark.parametrize("name", ["read_file", "write_file", "edit_file", "list_dir", "grep"])
def test_no_path_leads_out_of_the_workspace(
    call: Call, tmp_path: Path, name: str, path: str
) -> None:
    Path("link").symlink_to(tmp_path / "secret.txt")
    Path("dir").symlink_to(tmp_path)
    more = {"write_file": {"content": "x"}, "edit_file": {"old": "s", "new": "x"}}.get(name, {})
    if name == "grep":
        more = {"pattern": "s"}
    outcome = call(name, path=path, **more)
    assert outcome == ToolOutcome(
        "error", f"{path.removeprefix('/workspace/')} is outside the workspace"
    )
    assert (tmp_path / "secret.txt").read_text() == "secret"


@pytest.mark.parametrize("path", ["missing", "fifo", "folder", "loop", "a\0b", "x" * 300])
def test_what_cannot_be_read_is_said(call: Call, path: str) -> None:
    os.mkfifo("fifo")
    Path("folder").mkdir()
    Path("loop").symlink_to("loop")
    assert call("read_file", path=path).status == "error"


def test_a_listing_is_sorted_and_safe(call: Call) -> None:
    for name in ("b", "a", "Z"):
        Path(name).touch()
    Path("sub").mkdir()
    Path("link").symlink_to("nowhere")
    Path(os.fsdecode(b"bad\xff")).touch()
    assert call("list_dir").text.splitlines() == [
        "Z",
        "a",
        "b",
        "bad\ufffd",
        "link -> nowhere",
        "sub/",
    ]
    assert call("list_dir", path="a").text == "a is not a directory"
    assert call("list_dir", path="no").text == "there is no no"


def test_grep_is_sorted_and_leaves_out_git_and_binaries(call: Call) -> None:
    for name in ("z/1", "a/2", ".git/config", "top"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text("no\nneedle here\n")
    Path("binary").write_bytes(b"needle\0")
    Path("latin").write_bytes(b"needle \xe9\n")
    found = "latin:1:needle \ufffd\ntop:2:needle here\na/2:2:needle here\nz/1:2:needle here"
    assert call("grep", pattern="need.e").text == found
    assert call("grep", pattern="x{3}").text == "[no match]"
    assert call("grep", pattern="(").status == "error"
    assert call("grep", pattern="no", path="z/1").text == "z/1:1:no"


def test_binaries_and_bad_text_are_shown_safely(call: Call) -> None:
    Path("binary").write_bytes(b"\x7fELF\0\0")
    Path("latin").write_bytes(b"caf\xe9")
    assert call("read_file", path="binary").text == "[binary file, 6 bytes]"
    assert call("read_file", path="latin").text == "caf\ufffd"
    assert call("write_file", path="f", content="a\ud800").status == "completed"
    assert Path("f").read_text() == "a\ufffd"


def test_bash_merges_output_and_appends_only_a_failing_exit_code(call: Call) -> None:
    assert call("bash", command="echo out; echo err >&2") == ToolOutcome(
        "completed", "out\nerr\n", 0
    )
    assert call("bash", command="printf x; exit 3") == ToolOutcome(
        "completed", "x\n[exit code 3]", 3
    )
    assert call("bash", command="false").text == "[exit code 1]"
    assert call("bash", command="kill -9 $$").exit_code == 137
    assert call("bash", command="printf '\\377'").text == "\ufffd"
    assert call("bash", command="a\0b").status == "error"


def test_bash_does_not_wait_for_the_background(call: Call) -> None:
    begin = time.monotonic()
    assert call("bash", command="sleep 60 & echo done").text == "done\n"
    assert time.monotonic() - begin < 20


def test_a_time_out_keeps_what_was_printed(call: Call) -> None:
    outcome = call("bash", command="echo begun; sleep 60", timeout_s=0.3)
    assert outcome == ToolOutcome("timeout", "begun\n[timed out after 0.3 s]")


def test_endless_output_is_bounded(call: Call) -> None:
    outcome = call("bash", command="head -c 20000000 /dev/zero | tr '\\0' x")
    assert outcome.text.endswith("x\n[output cut at 16777216 bytes]")
    assert len(outcome.text) < 16777300


def test_the_tool_server_imports_little() -> None:
    """It starts once per branch: nothing heavy may creep in."""
    code = "import sys, branchkit.harness.toolbox; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"pandas", "numpy", "orjson", "asyncio", "httpx2", "git", "socket", "multiprocessing"}
    assert heavy.isdisjoint(done.stdout.split())
