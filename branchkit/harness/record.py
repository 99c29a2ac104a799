"""Record a run from the start: a task, a directory, components; a journal comes out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from branchkit.harness import loop
from branchkit.harness.components import DEFAULTS, build
from branchkit.harness.live import Setting, go_live, new_run_id, versions
from branchkit.journal.blobs import Blobs
from branchkit.journal.events import Component, TaskStarted
from branchkit.workspace import VOLATILE, Workspaces


def record_run(
    journal: Path,
    task: str,
    *,
    base: Path,
    workspaces: Workspaces,
    blobs: Blobs,
    components: Mapping[str, Component],
    seed: int = 0,
    started_at: str | None = None,
    max_turns: int = 100,
    isolated: bool = True,
    after_turn: Callable[[int], None] = lambda _turn: None,
) -> loop.Ending:
    """Run a harness on a copy-on-write branch of ``base`` and journal it; ``base`` stays as it is.

    ``started_at`` is where the run's own clock begins (ISO 8601); git dates follow it, so two
    recordings with the same clock and seed have equal logical hashes.
    """
    parts = DEFAULTS | dict(components)
    harness = build(parts)
    run_id = new_run_id()
    start = started_at or datetime.now(UTC).isoformat(timespec="seconds")
    base_id = workspaces.add_base(base)
    branch = workspaces.create(f"run-{run_id[:8]}", base=base_id)
    setting = Setting(journal, run_id, branch, blobs, parts, seed, start, isolated)
    try:
        with go_live(setting) as live:
            started = TaskStarted(
                task=task,
                harness="branchkit",
                components=parts,
                tools=live.tools,
                budgets={"max_turns": max_turns},
                seed=seed,
                started_at=start,
                versions=versions(live.model),
                base=base_id,
                base_hash=branch.tree_hash(),
                volatile=list(VOLATILE),
            )
            live.session.begin(started)
            context = loop.opening(live.session, harness, task)
            return loop.run(
                live.session, harness, context, max_turns=max_turns, after_turn=after_turn
            )
    finally:
        branch.drop()
