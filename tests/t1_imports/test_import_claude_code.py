"""Claude Code sessions: replies in one piece, the active path, compactions, children, doubts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from imported import FIXTURES, opened, saved, saved_lines

from branchkit.errors import InputRefused

SESSION = FIXTURES / "claude_session.jsonl"


def record(own: str, parent: str | None, content: Any, **fields: Any) -> bytes:
    """One line; ``reply`` makes it an assistant line of that message id."""
    reply = fields.pop("reply", None)
    message = {"role": "assistant" if reply else "user", "content": content}
    if reply:
        message |= {"id": reply, "model": "m", "usage": {"output_tokens": 1}}
    kind = "assistant" if reply else "user"
    line = {"parentUuid": parent, "type": kind, "uuid": own, "sessionId": "s", "message": message}
    return json.dumps(line | fields).encode()


def call(own: str, name: str = "Bash") -> dict[str, Any]:
    return {"type": "tool_use", "id": own, "name": name, "input": {"command": "ls"}}


def result(own: str, text: str) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": own, "content": text}


def test_lines_with_one_message_id_are_one_reply_and_its_usage_counts_once(tmp_path: Path) -> None:
    """R80: five lines, one turn; tokens are those of the last line."""
    run = opened(SESSION, tmp_path)
    assert run.imported.turns == 3
    reply = run.of_kind("ModelReplied")[0].payload
    assert reply.usage == {  # type: ignore[attr-defined]
        "prompt_tokens": 7,
        "completion_tokens": 90,
        "cache_read_tokens": 100,
        "cache_write_tokens": 20,
    }
    assert reply.provider_call_ids == ["toolu_1", "toolu_2", "toolu_3"]  # type: ignore[attr-defined]
    message = reply.message  # type: ignore[attr-defined]
    assert message["content"] == "I look."
    assert [each["id"] for each in message["tool_calls"]] == ["t0001.1", "t0001.2", "t0001.3"]
    assert message["thinking_blocks"] == [{"type": "thinking", "thinking": "", "signature": "c2ln"}]


def test_the_context_follows_the_active_path(tmp_path: Path) -> None:
    """R58: parallel results hang side by side and are all there; what was taken back is not."""
    run = opened(SESSION, tmp_path)
    first, second, third = run.context(1), run.context(2), run.context(3)
    assert [message["role"] for message in first] == ["user", "user"]
    assert [message["role"] for message in second] == ["user"] * 2 + ["assistant"] + ["tool"] * 3
    assert [message.get("tool_call_id") for message in second[3:]] == [
        "t0001.2",
        "t0001.1",
        "t0001.3",
    ]
    assert "taken back" not in json.dumps(second)
    assert [message["content"] for message in third] == [
        "Summary: the shop has one key.",
        "Go on, please",
    ]
    assert run.imported.compactions == [
        {"trigger": "auto", "tokens_before": 9000, "tokens_after": 700, "messages": 1}
    ]


def test_statuses_and_doubts(tmp_path: Path) -> None:
    run = opened(SESSION, tmp_path)
    assert run.statuses() == [
        "completed",
        "error",
        "completed",
        "completed",
        "timeout",
        "unanswered",
    ]
    assert [(i.code, i.line, i.id) for i in run.imported.issues] == [
        ("hollow_thinking", 7, None),
        ("unanswered_call", None, "toolu_6"),
    ]
    calls = run.recorded.record.calls
    assert (calls["t0001.2"].decision, calls["t0001.2"].intent) == ("deny", None)
    assert calls["t0003.2"].word == "in doubt"
    assert run.recorded.record.status == "cancelled"


def test_only_what_a_person_wrote_is_a_user_message(tmp_path: Path) -> None:
    run = opened(SESSION, tmp_path)
    assert run.imported.user_messages == 2
    assert run.recorded.started.task == "Open the shop"
    assert run.imported.checkpoint_hints == 1
    assert {"system prompt", "tool schemas"} <= set(run.imported.unknown)


def test_an_output_that_was_put_aside_is_read_from_beside(tmp_path: Path) -> None:
    run = opened(SESSION, tmp_path)
    assert run.recorded.contexts.full_text("t0002.1").startswith("compiled 0\n")
    (shown,) = [e.payload for e in run.of_kind("Delivered") if e.step_id == "t0002.1"]
    assert shown.text == "<persisted-output>first lines</persisted-output>"  # type: ignore[attr-defined]


def test_without_its_side_file_the_preview_is_the_result_and_that_is_said(tmp_path: Path) -> None:
    path = tmp_path / "alone.jsonl"
    path.write_bytes(SESSION.read_bytes())
    run = opened(path, tmp_path)
    (issue,) = [issue for issue in run.imported.issues if issue.code == "missing_side_file"]
    assert (issue.line, issue.id) == (20, "b1.txt")


def test_children_are_found_in_the_file_and_beside_it(tmp_path: Path) -> None:
    run = opened(SESSION, tmp_path)
    inside, beside = run.imported.children
    assert (inside.call, inside.turns, inside.calls) == ("toolu_3", 2, ["toolu_s"])
    assert (beside.call, beside.agent, beside.agent_type) == ("toolu_4", "beef", "Builder")
    assert (beside.turns, beside.calls) == (1, ["toolu_k"])


def test_a_child_alone_is_a_conversation(tmp_path: Path) -> None:
    run = opened(FIXTURES / "claude_session" / "subagents" / "agent-beef.jsonl", tmp_path)
    assert (run.imported.turns, run.imported.user_messages) == (1, 1)


def test_results_are_paired_in_the_turn_where_ids_repeat(tmp_path: Path) -> None:
    lines = [
        record("u1", None, "go"),
        record("a1", "u1", [call("same")], reply="r1"),
        record("u2", "a1", [result("same", "one")]),
        record("a2", "u2", [call("same")], reply="r2"),
        record("u3", "a2", [result("same", "two")]),
        record("u4", "u3", [result("same", "three")]),
        record("u5", "u4", [result("never", "four")]),
        record("a3", "u5", "done", reply="r3"),
    ]
    run = opened(saved_lines(tmp_path, *lines), tmp_path)
    assert [run.recorded.contexts.full_text(f"t000{turn}.1") for turn in (1, 2)] == ["one", "two"]
    assert [(i.code, i.line, i.id) for i in run.imported.issues] == [
        ("duplicate_result", 6, "same"),
        ("orphan_result", 7, "never"),
        ("duplicate_call_id", None, "same"),
    ]


def test_snapshots_are_no_nodes_and_resumed_copies_count_once(tmp_path: Path) -> None:
    snapshot = json.dumps({"type": "file-history-snapshot", "messageId": "u1"}).encode()
    lines = [
        snapshot,
        record("u1", None, "go"),
        record("a1", "u1", "gone", reply="r1"),
        snapshot,
        record("u1", None, "go"),
        record("a1", "u1", "gone", reply="r1"),
        record("u2", "a1", "and back"),
    ]
    run = opened(saved_lines(tmp_path, *lines), tmp_path)
    assert (run.imported.turns, run.imported.user_messages) == (1, 2)
    assert run.codes() == ["duplicate_record"] * 2
    assert run.imported.checkpoint_hints == 2


def test_records_of_the_first_versions_and_of_the_web_export_are_read(tmp_path: Path) -> None:
    old = [
        {"type": "user", "uuid": "1", "message": {"role": "user", "content": "go"}},
        {"type": "tool_use", "uuid": "2", "name": "bash", "input": {"command": "ls"}},
        {"type": "tool_result", "uuid": "3", "name": "bash", "output": "a"},
        {"type": "assistant", "uuid": "4", "message": {"role": "assistant", "content": "done"}},
    ]
    lines = saved_lines(tmp_path, *(json.dumps(each).encode() for each in old))
    export = saved(tmp_path, "export.json", {"loglines": old})
    for path in (lines, export):
        run = opened(path, tmp_path)
        assert (run.imported.turns, run.statuses(), run.codes()) == (
            2,
            ["completed"],
            ["no_call_ids"],
        )


def test_a_torn_line_costs_one_record_and_is_said_at_its_place(tmp_path: Path) -> None:
    """R80: cases of real files: the record behind the damage is there."""
    torn = record("u1", None, "go")[:70]
    lines = [
        record("u1", None, "go"),
        record("a1", "u1", [call("t1")], reply="r1"),
        torn + record("u2", "a1", [result("t1", "one")]),
        record("a2", "u2", "done", reply="r2"),
    ]
    run = opened(saved_lines(tmp_path, *lines), tmp_path)
    assert run.statuses() == ["completed"]
    assert [(i.code, i.line, i.bytes) for i in run.imported.issues] == [("torn_prefix", 3, 70)]


def test_lone_surrogates_stay_what_they_are(tmp_path: Path) -> None:
    lines = [
        record("u1", None, "go"),
        record("a1", "u1", [call("t1")], reply="r1"),
        record("u2", "a1", [result("t1", "done \ud83d!")]),
        record("a2", "u2", "done", reply="r2"),
    ]
    run = opened(saved_lines(tmp_path, *lines), tmp_path)
    assert run.context(2)[-1]["content"] == "done \ud83d!"
    assert [(i.code, i.line) for i in run.imported.issues] == [("lone_surrogate", 3)]


def test_an_index_without_messages_is_refused(tmp_path: Path) -> None:
    line = json.dumps({"type": "summary", "summary": "x", "leafUuid": "y"}).encode()
    with pytest.raises(InputRefused, match="no record"):
        opened(saved_lines(tmp_path, line), tmp_path)
