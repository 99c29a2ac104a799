"""The point of commitment of a real run: forks of the control arm, live (R61)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tiny import CHECK, Tiny

import branchkit
from branchkit.branch import commitment as searching
from branchkit.branch.commitment import Plan
from branchkit.branch.comparison import Comparison
from branchkit.branch.fork import fork as forked
from branchkit.cli import main
from branchkit.errors import UsageError

# It would have kept what was to be kept, unless the run noted something else already.
WISER = """
[[rule]]
why = "keep it as long as nothing else was noted"
unless = 'note \\\\{"text":"(second|kept)"\\\\}'
call = "note"
arguments = { text = "kept" }

[[rule]]
why = "nothing is left"
say = "done"
"""


@pytest.fixture
def wiser(tmp_path: Path) -> str:
    (tmp_path / "wiser.toml").write_text(WISER.replace("\\\\", "\\"))
    return f"rulebook:@{tmp_path / 'wiser.toml'}"


def test_the_reply_that_lost_the_run_is_named(tiny: Tiny, store: Path, wiser: str) -> None:
    """Turn 3 notes the wrong thing; until turn 2 the run could be won. Nobody writes the parent."""
    before, announced = tiny.journal.read_bytes(), list[Plan]()
    with branchkit.open(tiny.journal) as run:
        found = run.commitment(CHECK, n=6, model=wiser, announce=announced.append)
    assert (found.finding.kind, found.turn) == ("committed", 2), found
    assert found.record_ok is False
    assert [one.turn for one in found.probes] == [0, 2, 3, 1]
    table = found.table()
    assert table["turn"].to_list() == [0, 1, 2, 3]
    assert table["k"].to_list() == [6, 6, 6, 0]
    assert table["says"].to_list() == ["above", "above", "above", "below"]
    assert announced == [found.plan]
    assert found.plan.probes >= len(found.probes)
    made = sum(len(list((store / "forks" / one.directory).glob("*.jsonl"))) for one in found.probes)
    assert made >= 4 * 6
    assert "Reply 3 committed the run" in repr(found)
    assert found.to_json()["between"] == [2, 2]
    assert tiny.journal.read_bytes() == before


def test_a_run_that_was_not_lost_costs_nothing(tiny: Tiny, store: Path) -> None:
    with branchkit.open(tiny.journal) as run:
        found = run.commitment("test -f notes.txt", n=6)
    assert (found.finding.kind, found.probes, found.plan.model_calls) == ("not lost", [], 0)


def test_a_dry_run_says_what_it_may_cost_and_asks_nobody(
    tiny: Tiny, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forks = sorted((store / "forks").glob("*")) if (store / "forks").exists() else []
    code = main(["commitment", str(tiny.journal), "--check", CHECK, "-n", "3", "--dry-run"])
    said = capsys.readouterr().out
    assert code == 0
    assert said.startswith("at most 4 probes of 3 branches, ")
    assert "fewer than 6" in said
    assert (sorted((store / "forks").glob("*")) if forks else []) == forks


def test_an_interrupt_keeps_what_was_found(
    tiny: Tiny, store: Path, wiser: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second probe is cut off before it has a branch; the first is in the answer."""
    calls = list[int]()

    def interrupted(recorded: Any, turn: int, *rest: Any, **options: Any) -> Comparison:
        calls.append(turn)
        if len(calls) > 1:
            raise KeyboardInterrupt
        return forked(recorded, turn, *rest, **options)

    monkeypatch.setattr(searching, "fork", interrupted)
    with branchkit.open(tiny.journal) as run:
        found = run.commitment(CHECK, n=1, model=wiser)
    assert calls == [0, 2]
    assert [(one.turn, one.success.k) for one in found.probes] == [(0, 1)]
    assert found.finding.kind == "unfinished"
    assert "turn 2 would have been next" in repr(found)


def test_what_makes_no_sense_is_refused(tiny: Tiny, store: Path) -> None:
    with branchkit.open(tiny.journal) as run:
        with pytest.raises(UsageError, match="control arm alone"):
            run.commitment(CHECK, sizes={"a": 3})
        with pytest.raises(UsageError, match="-n 0"):
            run.commitment(CHECK, n=0)
        with pytest.raises(UsageError, match="options are"):
            run.commitment(CHECK, nonsense=1)
