"""Power cuts on a simulated disk, and six ways to break our code that they find (R21, R24, D03)."""

from __future__ import annotations

from pathlib import Path

import power
import pytest


def place(tmp_path: Path, name: str) -> Path:
    folder = tmp_path / name
    folder.mkdir()
    return folder


def test_nothing_is_lost_in_any_state(tmp_path: Path) -> None:
    """Every state of one run, and of some recoveries; `make crash` goes on to 10,000."""
    run = power.lost(place(tmp_path, "run"), seed=1)
    found = power.check(run, range(1), place(tmp_path, "states"))
    assert found.problems == []
    assert found.states > 300
    assert found.refused < found.states / 10


def test_a_failed_barrier_is_no_acknowledgement(tmp_path: Path) -> None:
    """R24: the writer is poisoned, and what it had said before is all there."""
    run = power.lost(
        place(tmp_path, "run"), seed=2, mutant=lambda made: made.fail_sync(power.JOURNAL, 3)
    )
    assert ("poisoned", None) in [(s.name, s.value) for s in run.disk.steps if s.what == "note"]
    assert power.check(run, range(1), place(tmp_path, "states"), again=10**6).problems == []


@pytest.mark.parametrize("name", power.MUTANTS)
def test_a_broken_writer_is_found(tmp_path: Path, name: str) -> None:
    """The check can fail: each of six mutants of our own code loses something in some state."""
    with power.mutated(name) as mutant:
        run = power.lost(place(tmp_path, "run"), seed=1, mutant=mutant)
    assert power.check(run, range(1), place(tmp_path, "states"), again=10**6, first=True).problems
