"""SWE-agent: the stored request is the context; what old versions did not store is rebuilt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from imported import FIXTURES, fixture_json, opened, saved

from branchkit.errors import InputRefused
from branchkit.journal.events import Component


def words(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    kept = ("role", "content", "tool_calls")
    return [{key: message[key] for key in kept if key in message} for message in messages]


def test_rewind_shows_the_stored_queries(tmp_path: Path) -> None:
    """R58, R80: also where a history processor left something out of a later request."""
    run = opened(FIXTURES / "swe_query.traj", tmp_path)
    steps = fixture_json("swe_query.traj")["trajectory"]
    assert run.imported.fidelity == "exact"
    for turn, step in enumerate(steps, start=1):
        assert words(run.context(turn)) == words(step["query"])
    assert "omitted" in str(run.context(3)[4]["content"])
    assert run.context(3)[4]["tool_call_id"] == "c1"


def test_the_lists_of_version_1_0_are_those_after_the_step(tmp_path: Path) -> None:
    run = opened(FIXTURES / "swe_messages.traj", tmp_path)
    value = fixture_json("swe_messages.traj")
    lists = [step["messages"] for step in value["trajectory"]]
    assert run.imported.fidelity == "exact"
    assert words(run.context(1)) == words(lists[0][:2])
    for turn in (2, 3, 4):
        assert words(run.context(turn)) == words(lists[turn - 2])


def test_old_files_are_rebuilt_from_their_history(tmp_path: Path) -> None:
    run = opened(FIXTURES / "swe_old.traj", tmp_path)
    history = fixture_json("swe_old.traj")["history"]
    assert run.imported.fidelity == "rebuilt"
    assert "what history processors left out" in run.imported.unknown
    for turn, place in ((1, 2), (2, 4), (3, 6), (4, 7)):
        assert words(run.context(turn)) == words(history[:place])
    assert [call.name for call in run.imported.calls] == ["bash", "bash"]
    assert run.statuses() == ["completed", "unanswered"]
    assert run.codes() == ["no_call_ids", "unanswered_call"]
    assert run.imported.end == "exit_forfeit"


def test_results_are_the_observations_and_big_ones_are_blobs(tmp_path: Path, store: Path) -> None:
    run = opened(FIXTURES / "swe_query.traj", tmp_path)
    observed = fixture_json("swe_query.traj")["trajectory"][0]["observation"]
    assert run.recorded.contexts.full_text("t0001.1") == observed
    (result,) = [e.payload for e in run.of_kind("ToolResult") if e.step_id == "t0001.1"]
    assert (result.text, result.blob) == (None, run.imported.calls[0].result_sha256)  # type: ignore[attr-defined]
    assert run.statuses() == ["completed", "completed", "timeout", "completed"]


def test_the_base_and_the_totals_are_facts_of_the_start(tmp_path: Path) -> None:
    run = opened(FIXTURES / "swe_query.traj", tmp_path)
    started = run.recorded.started
    facts = {name: text for name, text in started.versions.items() if name.startswith("base.")}
    assert facts == {
        "base.repo": "shop",
        "base.commit": "1" * 40,
        "base.image": "shop:1",
        "base.setup": '["make"]',
    }
    assert run.imported.totals == {"input": 900, "output": 40, "cost": 0.5}
    assert started.components["model"] == Component(spec="imported:model-c")
    assert started.components["sampling"] == Component(spec="temperature:0.0,top_p:1.0")
    assert started.task == "ISSUE: the shop is closed"
    assert run.imported.user_messages == 1


def test_a_run_that_a_limit_stopped_leaves_its_last_call_in_doubt(tmp_path: Path) -> None:
    value = fixture_json("swe_query.traj")
    value["trajectory"][-1]["observation"] = ""
    value["info"]["exit_status"] = "exit_cost"
    run = opened(saved(tmp_path, "cost.traj", value), tmp_path)
    assert run.statuses()[-1] == "unanswered"
    assert (run.codes(), run.recorded.record.status) == (["unanswered_call"], "max_calls")


def test_a_file_without_its_history_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputRefused, match="no history"):
        opened(saved(tmp_path, "bare.traj", {"trajectory": [{"action": "ls"}]}), tmp_path)
