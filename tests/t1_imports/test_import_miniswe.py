"""mini-swe-agent: contexts are the file's own prefixes; the pseudo message stays outside."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from imported import FIXTURES, fixture_json, opened, saved

from branchkit.errors import InputRefused
from branchkit.journal.events import Component


def sent(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in message.items() if k != "extra"} for message in messages]


@pytest.mark.parametrize("name", ["mini_v1.traj.json", "mini_v2.traj.json"])
def test_rewind_shows_the_very_messages_that_the_model_saw(name: str, tmp_path: Path) -> None:
    """R58, R80: at every turn of an exact import, word for word, and after the last."""
    value = fixture_json(name)
    messages = value if isinstance(value, list) else value["messages"]
    run = opened(FIXTURES / name, tmp_path)
    assert run.imported.fidelity == "exact"
    shown = [message for message in messages if message["role"] != "exit"]
    replies = [place for place, message in enumerate(shown) if message["role"] == "assistant"]
    assert run.recorded.turns == run.imported.turns == len(replies)
    for turn, place in enumerate([*replies, len(shown)], start=1):
        assert run.context(turn) == sent(shown[:place])


def test_version_1_commands_are_calls_of_bash(tmp_path: Path) -> None:
    run = opened(FIXTURES / "mini_v1.traj.json", tmp_path)
    assert [(call.id, call.name) for call in run.imported.calls] == [
        ("t0001.1", "bash"),
        ("t0003.1", "bash"),
        ("t0004.1", "bash"),
        ("t0005.1", "bash"),
    ]
    assert run.statuses() == ["completed", "timeout", "completed", "completed"]
    proposed = [event.payload.arguments for event in run.of_kind("ToolProposed")]  # type: ignore[attr-defined]
    assert proposed[0] == {"command": "ls -a"}
    results = [event.payload for event in run.of_kind("ToolResult")]
    assert [result.exit_code for result in results] == [0, None, 1, None]  # type: ignore[attr-defined]
    assert run.codes() == ["legacy_layout", "no_call_ids"]
    assert "model" in run.imported.unknown
    started = run.recorded.started
    assert started.components["parser"] == Component(spec="fenced:mswea_bash_command")
    assert started.components["tools"] == Component(spec="bash")
    assert (started.task, run.recorded.record.status) == (
        "Fix the shop.\r\nIt is closed.",
        "completed",
    )


def test_the_parser_reads_the_fence_that_the_run_used(tmp_path: Path) -> None:
    value = [
        {"role": "user", "content": "Count"},
        {"role": "assistant", "content": "I count.\n\n```bash\nwc -l a\n```"},
    ]
    run = opened(saved(tmp_path, "plain.traj.json", value), tmp_path)
    assert run.recorded.started.components["parser"] == Component(spec="fenced:bash")


def test_a_reply_with_two_blocks_ran_nothing(tmp_path: Path) -> None:
    run = opened(FIXTURES / "mini_v1.traj.json", tmp_path)
    (complaint,) = [event.payload for event in run.of_kind("InputReceived") if event.turn == 2]
    assert complaint.source == "harness"  # type: ignore[attr-defined]
    assert run.imported.user_messages == 1


def test_version_2_results_are_what_the_command_gave_not_what_the_template_made_of_it(
    tmp_path: Path,
) -> None:
    """The whole output is kept where the file has it, so that a truncation can be swapped."""
    run = opened(FIXTURES / "mini_v2.traj.json", tmp_path)
    assert run.statuses() == ["completed", "timeout", "completed"]
    whole = "row\n" * 900
    assert run.imported.calls[0].result_sha256 == hashlib.sha256(whole.encode()).hexdigest()
    assert run.recorded.contexts.full_text("t0001.1") == whole
    cut = next(e.payload for e in run.of_kind("Delivered") if e.step_id == "t0001.1")
    assert "898 rows left out" in cut.text  # type: ignore[attr-defined]


def test_results_keep_their_own_order_and_calls_theirs(tmp_path: Path) -> None:
    run = opened(FIXTURES / "mini_v2.traj.json", tmp_path)
    assert [event.step_id for event in run.of_kind("ToolProposed")][:2] == ["t0001.1", "t0001.2"]
    assert [event.step_id for event in run.of_kind("ToolResult")][:2] == ["t0001.2", "t0001.1"]


def test_version_2_says_model_tokens_times_and_end(tmp_path: Path) -> None:
    run = opened(FIXTURES / "mini_v2.traj.json", tmp_path)
    assert run.imported.model == "model-b-1"
    assert run.imported.totals == {"input": 130, "output": 13, "cost": 0.25}
    started = run.recorded.started
    assert started.components["model"] == Component(spec="imported:vendor/model-b")
    assert started.components["sampling"] == Component(spec="temperature:0.5")
    assert started.versions["base.image"] == "shop:3"
    assert started.started_at == "2026-01-01T00:00:01.500000+00:00"
    assert run.recorded.events[-1].recorded_at == "2026-01-01T00:00:20.000000+00:00"
    assert run.codes() == ["duplicate_call_id"]
    assert len({call.call_id for call in run.imported.calls}) == 3
    assert (run.imported.user_messages, run.imported.end) == (2, "Submitted")


def test_a_call_that_the_end_left_open_is_in_doubt(tmp_path: Path) -> None:
    value = fixture_json("mini_v2.traj.json")
    value["info"]["exit_status"] = value["messages"][-1]["extra"]["exit_status"] = "LimitsExceeded"
    run = opened(saved(tmp_path, "cut.traj.json", value), tmp_path)
    assert run.statuses()[-1] == "unanswered"
    assert [i.id for i in run.imported.issues if i.code == "unanswered_call"] == ["call_x"]
    assert run.recorded.record.calls["t0003.1"].word == "in doubt"
    assert run.recorded.record.status == "max_turns"


def test_a_file_that_was_cut_while_it_was_saved_keeps_its_whole_messages(tmp_path: Path) -> None:
    data = (FIXTURES / "mini_v2.traj.json").read_bytes()
    path = tmp_path / "cut.traj.json"
    path.write_bytes(data[: data.index(b"Please submit now")])
    run = opened(path, tmp_path)
    assert (run.imported.turns, run.codes()[0]) == (2, "truncated_json")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"trajectory_format": "mini-swe-agent-2.0", "messages": []}, "mini-swe-agent-2.0"),
        (
            {"trajectory_format": "mini-swe-agent-1.1", "messages": [{"object": "response"}]},
            "Responses API",
        ),
    ],
)
def test_what_is_newer_or_other_is_refused_by_name(
    value: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(InputRefused, match=words):
        opened(saved(tmp_path, "new.traj.json", value), tmp_path)
