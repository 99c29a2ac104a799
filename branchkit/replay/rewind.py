"""``rewind``: the moment at which the model was about to give reply t (R58, H05, H06).

Everything comes from the journal: no model, no tool and no clock is touched. The workspace is as
the tools of turn t-1 left it, on a copy-on-write branch of its own: looking around changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import NamedTuple

from branchkit.errors import BlobMissing
from branchkit.harness import truncation
from branchkit.journal.events import (
    Delivered,
    Event,
    Message,
    ModelFailed,
    ModelReplied,
    ToolAuthorized,
    ToolResult,
    payload_json,
)
from branchkit.journal.format import Json
from branchkit.record.context import Seen
from branchkit.record.record import Record
from branchkit.record.seeking import Asked
from branchkit.replay.recorded import Recorded
from branchkit.workspace import Branch, Workspaces


class Hidden(NamedTuple):
    """A result of which the model saw only a part."""

    call_id: str
    rule: str
    omitted_lines: int
    omitted_bytes: int
    full_text: str | None  # None: the blob is not here


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

    @cached_property
    def record(self) -> Record:
        """The record at the end of the turn before."""
        return self.fold()

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
    branch, note = _workspace(recorded, turn, workspaces)
    return Rewound(
        journal=recorded.path.name,
        turn=turn,
        turns=recorded.turns,
        context=looked.messages,
        context_hash=looked.context_hash,
        recorded=_what_happened(recorded, turn),
        hidden=_hidden(recorded, turn, looked.context),
        branch=branch,
        workspace_note=note,
        fold=partial(recorded.record_after, turn - 1),
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


def _hidden(recorded: Recorded, turn: int, context: Sequence[Seen]) -> Sequence[Hidden]:
    """What truncation kept from the model in the turns before reply ``turn``."""
    if recorded.parent and turn <= recorded.fork_turn:
        return _hidden(recorded.parent, turn, context)
    cuts = recorded.cuts_before(turn)
    if recorded.parent:
        return [*_hidden_anew(recorded, context), *(_cut(recorded, event) for event in cuts)]
    if not isinstance(cuts, Asked):
        return [_cut(recorded, event) for event in cuts]
    return Asked(
        len(cuts), lambda start, stop: [_cut(recorded, event) for event in cuts[start:stop]]
    )


def _cut(recorded: Recorded, event: Event) -> Hidden:
    cut = event.payload
    assert isinstance(cut, Delivered)
    full = _full_text(recorded, cut.call_id)
    return Hidden(cut.call_id, cut.rule, cut.omitted_lines, cut.omitted_bytes, full)


def _hidden_anew(recorded: Recorded, context: Sequence[Seen]) -> Iterator[Hidden]:
    """What a branch was not shown of results of its prefix, which it may have delivered anew."""
    rule = recorded.record.components["truncation"].spec
    lineage = [recorded]
    while lineage[-1].parent is not None:
        lineage.append(lineage[-1].parent)
    delivered = {
        event.payload.call_id: (run, event.payload)
        for run in reversed(lineage[1:])
        for event in run.events
        if isinstance(event.payload, Delivered) and event.turn <= recorded.fork_turn
    }
    for item in context:
        run, first = delivered.get(item.message.get("tool_call_id", ""), (recorded, None))
        if first is None:
            continue
        full, shown = _full_text(run, first.call_id), item.message.get("content")
        if first.text is not None and shown == first.text:
            yield Hidden(first.call_id, first.rule, first.omitted_lines, first.omitted_bytes, full)
        elif full is not None and (cut := truncation.parse(rule).cut(full)).text == shown != full:
            yield Hidden(first.call_id, rule, cut.omitted_lines, cut.omitted_bytes, full)


def _full_text(recorded: Recorded, call_id: str) -> str | None:
    try:
        return recorded.contexts.full_text(call_id)
    except BlobMissing:
        return None
