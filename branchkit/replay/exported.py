"""Any turn of a run as a commit of its workspace, with the run's hashes in the message."""

from __future__ import annotations

import uuid
from datetime import datetime
from pathlib import Path

from branchkit.errors import UsageError
from branchkit.record.record import Snapshot
from branchkit.replay.recorded import Recorded
from branchkit.replay.rewind import rewind
from branchkit.workspace import Workspaces
from branchkit.workspace.export import Exported, export_commit, tip


def export_turn(
    recorded: Recorded,
    turn: int,
    repository: Path,
    *,
    workspaces: Workspaces,
    ref: str | None = None,
) -> Exported:
    """The workspace before reply ``turn`` (1..T+1) as a commit that ``ref`` then names.

    By default all turns of a run stand on ``branchkit/RUN``, each the child of what was exported
    before it, whatever their order. A second export of the turn that was the last one is that
    commit again. Dates are the journal's. Raises TurnOutside, and UsageError if the run has no
    recorded workspace.
    """
    before = rewind(recorded, turn)
    snapshot = before.record.snapshot_at(turn - 1)
    if snapshot is None:
        raise UsageError(
            f"{recorded.path.name} has no recorded workspace",
            hint="only runs that branchkit recorded know their files turn by turn",
        )
    run_id = recorded.record.run_id
    where = ref or f"branchkit/{run_id[:8]}"
    # Not the branch that rewind(turn) gives: somebody may be working in that one.
    name = f"{run_id[:8]}-export-{uuid.uuid4().hex[:8]}"
    recorded.adopt_workspace(workspaces)
    branch = workspaces.create(name, snapshot=snapshot.id)
    try:
        return export_commit(
            branch.path,
            repository,
            ref=where,
            message=_message(recorded, turn, before.context_hash, snapshot),
            parent=tip(repository, where),
            date=_date(recorded, turn),
        )
    finally:
        branch.drop()


def _message(recorded: Recorded, turn: int, context_hash: str, snapshot: Snapshot) -> str:
    facts = {
        "Run": recorded.record.run_id,
        "Turn": turn,
        "Context": context_hash,
        "Event": recorded.record_after(turn - 1).head_hash,
        "Tree": snapshot.tree_hash,
    }
    trailers = "\n".join(f"Branchkit-{name}: {value}" for name, value in facts.items())
    return f"Before turn {turn} of {recorded.path.name}\n\n{trailers}\n"


def _date(recorded: Recorded, turn: int) -> datetime:
    """When the last event before reply ``turn`` was recorded."""
    run = recorded
    while run.parent is not None and turn <= run.fork_turn:
        run = run.parent
    return datetime.fromisoformat(run.events_until(turn - 1)[-1].recorded_at)
