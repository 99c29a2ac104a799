"""What a branch's end says: exit codes of checks, budgets, and what is no verdict at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny import Tiny, job

from branchkit.branch.run import Limits, branch_seed, run_branch, verdict_of
from branchkit.branch.swap import parse_swap
from branchkit.harness import live
from branchkit.journal.file import read
from branchkit.record.fold import fold


@pytest.mark.parametrize(
    ("code", "verdict"),
    [
        (0, True), (1, False), (2, False), (125, False),
        (126, None), (127, None), (128, None), (137, None), (255, None),
        (-9, None), (None, None),
    ],
)  # fmt: skip
def test_exit_codes(code: int | None, verdict: bool | None) -> None:
    assert verdict_of(code) is verdict


@pytest.mark.parametrize(
    ("check", "ok"),
    [
        ("test -f README && pwd && exit 0", True),
        ("echo broken >&2; exit 1", False),
        ("exit 126", None),
        ("no-such-command", None),
        ("kill -9 $$", None),
        ("sleep 60", None),
    ],
)
def test_a_check_in_the_branchs_workspace(
    tiny: Tiny, store: Path, monkeypatch: pytest.MonkeyPatch, check: str, ok: bool | None
) -> None:
    """0 is success, 1-125 failure, a time-out and the rest are counted apart."""
    monkeypatch.setattr(live, "CHECK_TIMEOUT_S", 1.0)
    result = run_branch(job(tiny, store, check=check))
    assert (result.error, result.status, result.ok) == (None, "completed", ok)
    if ok is True:
        assert result.check_output.strip() == "/workspace"
    if ok is False:
        assert "broken" in result.check_output


@pytest.mark.parametrize(
    ("limits", "status"),
    [(Limits(max_turns=1), "max_turns"), (Limits(max_calls=1), "max_calls")],
)
def test_a_spent_budget_is_no_verdict(tiny: Tiny, store: Path, limits: Limits, status: str) -> None:
    """The branch did not get to its end, so its end is not judged."""
    result = run_branch(job(tiny, store, turn=1, limits=limits, check="exit 1"))
    assert (result.error, result.status, result.ok) == (None, status, None)
    assert "not checked" in result.check_output
    events = read(Path(result.journal))[0]
    assert sum(event.kind == "ModelReplied" for event in events) == 1
    assert fold(None, events).status == status


def test_a_held_call_is_no_verdict(tiny: Tiny, store: Path) -> None:
    swap = parse_swap("policy=hold:note", tiny.open().record.components)
    result = run_branch(job(tiny, store, turn=1, swap=swap, arm="policy", check="exit 0"))
    assert (result.error, result.status, result.ok) == (None, "waiting", None)


def test_a_model_that_fails_ends_its_branch_and_says_so(tiny: Tiny, store: Path) -> None:
    parts = tiny.open().record.components
    swap = parse_swap("model=openai:m@http://127.0.0.1:9/v1", parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("branchkit.harness.openai_model.ATTEMPTS", 1)
        result = run_branch(job(tiny, store, turn=1, swap=swap, arm="model", check="exit 0"))
    assert (result.status, result.ok) == ("failed", None)
    assert "ConnectError" in result.reason


def test_what_cannot_start_is_an_error_of_this_branch_alone(tiny: Tiny, store: Path) -> None:
    result = run_branch(job(tiny, store, parent=str(tiny.journal.with_name("gone.journal.jsonl"))))
    assert result.status is None
    assert result.error is not None
    assert "gone.journal.jsonl" in result.error


def test_seeds_are_common_to_arms_and_unlike_within_one() -> None:
    assert len({branch_seed(0, number) for number in range(1000)}) == 1000
    assert branch_seed(0, 1) != branch_seed(1, 0)
    assert all(0 <= branch_seed(7, number) < 2**32 for number in range(100))
