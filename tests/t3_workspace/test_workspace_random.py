"""Random lives of branches and of plain directories beside them: see `machine`.

A sample; ``make test-fs`` runs `campaign`, which goes on until 10,000 operations are done.
"""

from __future__ import annotations

from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from branchkit.workspace import tree_hash

from .kit import Open
from .machine import Lives, World, furnish


def test_a_branch_behaves_like_a_directory(opened: Open, tmp_path: Path) -> None:
    """R30, R60: operations by name and by descriptor, freezes, forks, drops, stops and kills."""
    (tmp_path / "base").mkdir()
    furnish(tmp_path / "base")
    before = tree_hash(tmp_path / "base")
    ws = opened()
    world = World(tmp_path, ws, opened, ws.add_base(tmp_path / "base"))
    machine = type("Sample", (Lives,), {"world": world})
    few = settings(max_examples=8, stateful_step_count=30, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(machine, settings=few)
    assert tree_hash(tmp_path / "base") == before
    assert world.done["lives"] >= 1
