"""``rewind``: the moment at which the model was about to give reply t (R58, H05, H06).

Everything comes from the journal: no model, no tool and no clock is touched. The workspace is as
the tools of turn t-1 left it, on a copy-on-write branch of its own: looking around changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING

from branchkit.journal.events import (
    Message,
    ModelFailed,
    ModelReplied,
    ToolAuthorized,
    ToolResult,
    payload_json,
)
from branchkit.journal.format import Json
from branchkit.record.record import Record
from branchkit.replay.hidden import Hidden, hidden_before
from branchkit.replay.origins import Origins
from branchkit.replay.recorded import Recorded
from branchkit.workspace import Branch, Workspaces

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Rewound:
    """The state before reply ``turn``; ``recorded`` is what the run then really did.

    Of a long run ``context``, ``hidden`` and ``record`` are read when they are looked at, only as
    much of them, and while the run is open.
    """

    journal: str
    turn: int
    turns: int
    context: Sequence[Message]
    context_hash: str
    recorded: dict[str, Json]
    hidden: Sequence[Hidden]
    branch: Branch | None
    workspace_note: str
    fold: Callable[[], Record] = field(repr=False)
    origins: Origins = field(repr=False, compare=False)

    @cached_property
    def record(self) -> Record:
        """The record at the end of the turn before."""
        return self.fold()

    def context_table(self) -> pd.DataFrame:
        """Why each message is in the context: one row a message, in its order.

        Columns as in ``Origin``; ``hidden_lines`` and ``hidden_bytes`` are what truncation kept
        from the model.
        """
        return self.origins.table()

    def to_json(self) -> dict[str, Json]:
        """The stable fields of ``branchkit rewind --json``."""
        return {
            "turn": self.turn,
            "context": list(self.context),
            "context_hash": self.context_hash,
            "record": self.record.summary(),
            "recorded": self.recorded,
            "hidden": [
                hidden._replace(full_text=None)._asdict() | {"known": hidden.full_text is not None}
                for hidden in self.hidden
            ],
            "workspace": str(self.branch.path) if self.branch else None,
            "workspace_note": self.workspace_note,
        }


def rewind(recorded: Recorded, turn: int, *, workspaces: Workspaces | None = None) -> Rewound:
    """The run just before reply ``turn``, 1..T+1.

    Raises TurnOutside; BlobMissing if a message of the context is neither in journal nor blobs.
    """
    recorded.check_turn(turn, 1, recorded.turns + 1)
    looked = recorded.seen_before(turn)
    hidden = hidden_before(recorded, turn, looked.context)
    branch, note = _workspace(recorded, turn, workspaces)
    return Rewound(
        journal=recorded.path.name,
        turn=turn,
        turns=recorded.turns,
        context=looked.messages,
        context_hash=looked.context_hash,
        recorded=_what_happened(recorded, turn),
        hidden=hidden,
        branch=branch,
        workspace_note=note,
        fold=partial(recorded.record_after, turn - 1),
        origins=Origins(recorded, turn, looked.context, hidden),
    )


def _workspace(
    recorded: Recorded, turn: int, workspaces: Workspaces | None
) -> tuple[Branch | None, str]:
    snapshot = recorded.snapshot_before(turn)
    if snapshot is None:
        return None, "the run has no recorded workspace"
    if workspaces is None:
        return None, "not restored: no store was given"
    recorded.adopt_workspace(workspaces)
    name = f"{recorded.events[0].run_id[:8]}-t{turn:04d}"
    if any(branch.name == name for branch in workspaces.branches()):
        workspaces.branch(name).drop()
    branch = workspaces.create(name, snapshot=snapshot.id)
    note = f"as the tools of turn {turn - 1} left it (snapshot of turn {snapshot.turn})"
    return branch, note if not workspaces.reason else f"{note}; copied: {workspaces.reason}"


def _what_happened(recorded: Recorded, turn: int) -> dict[str, Json]:
    happened: dict[str, Json] = {"reply": None, "authorizations": [], "results": []}
    for event in recorded.events_of(turn):
        match event.payload:
            case ModelReplied() | ModelFailed():
                happened["reply"] = payload_json(event.payload)
            case ToolAuthorized():
                happened["authorizations"].append(payload_json(event.payload))
            case ToolResult():
                happened["results"].append(payload_json(event.payload))
            case _:
                continue
    return happened
