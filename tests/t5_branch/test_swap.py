"""What a swap may say, and what is refused before anything starts (R59)."""

from __future__ import annotations

from pathlib import Path

import pytest

from branchkit.branch.fork import Options, fork
from branchkit.branch.swap import SWAPPABLE, parse_swap
from branchkit.errors import SandboxMissing, TurnOutside, UsageError
from branchkit.harness.components import component_hash
from branchkit.journal.events import Component
from branchkit.replay.recorded import Recorded

SAMPLE = Path(__file__).resolve().parents[2] / "sample_journals" / "branch_cleanup"
JOURNAL = SAMPLE / "branch_cleanup.journal.jsonl"


@pytest.fixture(scope="module")
def sample() -> Recorded:
    return Recorded.open(JOURNAL)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("truncation", "is no swap"),
        ("truncation=", "is no swap"),
        ("=none", "no component ''"),
        ("tuncration=none", "no component 'tuncration'"),
        ("workspace=other", "no component 'workspace'"),
        ("truncation=none,model=openai:x", "swaps truncation and model in one arm"),
        ("sampling=temperature:1,prompt=@p.txt", "swaps sampling and prompt in one arm"),
        ("truncation=none; sampling=slip:0", "swaps truncation and sampling in one arm"),
        ("truncation=some", "some"),
        ("truncation=head:0l", "head:0l"),
        ("sampling=hot", "NAME:NUMBER"),
        ("policy=maybe:bash", "no policy rule"),
        ("parser=xml", "names no parser"),
        ("prompt=be nice", "names no file"),
        ("prompt=@no-such-file.txt", "no-such-file.txt cannot be read"),
        ("observation=@text.txt", "is incomplete"),
        ("observation=t0022.1", "is incomplete"),
        ("observation=t0022.1:@no-such-file.txt", "cannot be read"),
        ("decision=delete it", "is incomplete"),
        ("decision=@no-such-file.json", "cannot be read"),
    ],
)
def test_what_cannot_be_meant(sample: Recorded, text: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_swap(text, sample.record.components)
    assert says in caught.value.message
    assert caught.value.hint
    assert caught.value.exit_code == 64


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("not json", "is not JSON"),
        ("[]", "is not an assistant message"),
        ('{"role": "user", "content": "x"}', "is not an assistant message"),
        ('{"role": "assistant", "tool_calls": "x"}', "is not an assistant message"),
        ('{"role": "assistant", "tool_calls": [{}]}', "is not an assistant message"),
        ('{"role": "assistant", "content": 7}', "is not an assistant message"),
    ],
)
def test_decisions_that_are_none(sample: Recorded, tmp_path: Path, content: str, says: str) -> None:
    (tmp_path / "d.json").write_text(content)
    with pytest.raises(UsageError, match=says):
        parse_swap(f"decision=@{tmp_path / 'd.json'}", sample.record.components)


def test_a_file_that_is_no_text(sample: Recorded, tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="cannot be read"):
        parse_swap(f"prompt=@{tmp_path / 'p.txt'}", sample.record.components)


def test_a_swap_is_declared_with_the_hash_of_its_text(sample: Recorded, tmp_path: Path) -> None:
    (tmp_path / "p.txt").write_text("Be nice.")
    swap = parse_swap(f"prompt=@{tmp_path / 'p.txt'}", sample.record.components)
    assert swap.name == "prompt=@p.txt", "no folder of this machine goes into a journal"
    expected = Component(spec="@p.txt", content="Be nice.")
    assert swap.declared() == {
        "component": "prompt", "spec": "@p.txt", "hash": component_hash(expected),
    }  # fmt: skip


def test_a_file_is_read_anew_though_the_recorded_one_had_its_name(
    sample: Recorded, tmp_path: Path
) -> None:
    """Somebody edits prompt.txt and swaps it in: the edit is what is meant."""
    (tmp_path / "prompt.txt").write_text("Edited.")
    recorded = sample.record.components
    assert recorded["prompt"].spec == "@prompt.txt"
    assert parse_swap(f"prompt=@{tmp_path / 'prompt.txt'}", recorded).part.content == "Edited."
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        assert parse_swap("prompt=@prompt.txt", recorded).part.content == "Edited."


def test_the_runs_own_stand_in_needs_no_file(sample: Recorded) -> None:
    own = sample.record.components["model"]
    assert parse_swap(f"model={own.spec}", sample.record.components).part == own
    with pytest.raises(UsageError, match="is not part of this run"):
        fork(sample, 22, ["model=rulebook:another"])


@pytest.mark.parametrize("name", [name for name in SWAPPABLE if name in ("sampling", "policy")])
def test_an_at_sign_and_equal_signs_within_a_spec(sample: Recorded, name: str) -> None:
    spec = {"sampling": "temperature:0.7,top_p:0.9", "policy": "deny:delete_*,hold:bash"}[name]
    assert parse_swap(f" {name} ={spec}", sample.record.components).spec == spec


def test_a_url_in_a_model_is_no_file(sample: Recorded) -> None:
    swap = parse_swap("model=openai:m@http://localhost:1/v1?a=b", sample.record.components)
    assert swap.part == Component(spec="openai:m@http://localhost:1/v1?a=b")


@pytest.mark.parametrize("turn", [-1, 27, 99])
def test_turns_that_the_run_does_not_have(sample: Recorded, turn: int) -> None:
    with pytest.raises(TurnOutside, match=f"turn {turn} is outside 0..26"):
        fork(sample, turn)


@pytest.mark.parametrize(
    "options",
    [{"n": 0}, {"jobs": 0}, {"max_turns": 0}, {"max_calls": -1}, {"redeliver_from": 0}],
)
def test_numbers_that_make_no_sense(sample: Recorded, options: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="is less than 1"):
        fork(sample, 22, options=Options(**options))  # type: ignore[arg-type]


def test_the_same_arm_twice(sample: Recorded) -> None:
    with pytest.raises(UsageError, match="the same arm twice"):
        fork(sample, 22, ["truncation=none", "truncation=none"])


def test_without_bubblewrap_nothing_is_started(
    sample: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tools of a branch would run unconfined: refused, with the remedy, before a file is made."""
    monkeypatch.setenv("BRANCHKIT_NO_BWRAP", "1")
    with pytest.raises(SandboxMissing, match="live branches need bubblewrap") as caught:
        fork(sample, 22, ["truncation=none"], options=Options(store=tmp_path / "store"))
    assert "apt-get install bubblewrap" in caught.value.hint
    assert caught.value.exit_code == 77
    assert list(tmp_path.iterdir()) == []
