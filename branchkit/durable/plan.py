"""What has to happen before a run can go on: read from its events alone, nothing is touched.

A run is cut off anywhere. What its tools did to files after the last checkpoint is lost with the
workspace, so those calls are done again, from the checkpoint on; a call that left the host and was
not answered is settled; a call that a person holds waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from branchkit.journal.events import (
    ApprovalRequested,
    Checkpoint,
    Event,
    StateTransition,
    TaskFinished,
    ToolIntent,
    ToolProposed,
)
from branchkit.record.effective import effective
from branchkit.record.fold import fold
from branchkit.record.record import CallState, Record


class Plan(NamedTuple):
    """How a run goes on. ``made`` are the events that it builds on, up to where it continues."""

    record: Record
    made: list[Event]
    redo: list[CallState]  # undone with the files and proposed anew, in order
    doubt: CallState | None  # to be settled first
    held: CallState | None  # waits for an answer that is not there
    snapshot: str | None  # of the workspace; None: its base

    @property
    def continues_after(self) -> int:
        """The seq of the event that the run goes on after."""
        return self.made[-1].seq

    @property
    def record_hash(self) -> str:
        """The record's hash there."""
        return fold(None, self.made).logical


def plan(events: Sequence[Event], *, restorable: bool) -> Plan:
    """How the run of ``events`` (one or more, intact) goes on.

    ``restorable`` says whether its files can be restored. Where they cannot, a call that changes
    files is settled like one that reaches elsewhere.
    """
    record = fold(None, events)
    made = effective(events)
    if isinstance(made[-1].payload, TaskFinished):
        made.pop()  # it waited: what it waited for is what it goes on with
    first = _first_to_redo(made, record, restorable=restorable)
    redo: list[CallState] = []
    if first is not None:
        after = [call for call in record.calls.values() if call.proposed >= first]
        redo = [call for call in after if call.intent is not None]
        made = [event for event in made if event.seq < first]
    doubt = _doubt(record, redo)
    if doubt is None:
        made = _without_unsent(made, record)
    held = [record.calls[name] for name in record.pending_approvals if name in record.calls]
    return Plan(record, made, redo, doubt, held[0] if held else None, _snapshot(made))


def _first_to_redo(made: Sequence[Event], record: Record, *, restorable: bool) -> int | None:
    """The seq of the first proposal whose effect the restored files do not have.

    Before a call that reaches elsewhere a checkpoint is taken if there is anything to keep, so none
    of the calls before it needs to be done again, nor could be: what came after is out there.
    """
    first: int | None = None
    for event in made:
        match event.payload:
            case Checkpoint() | StateTransition() | ApprovalRequested():
                first = None
            case ToolIntent(effect="external"):
                first = None
            # A journal that proposes one call twice may have had the second set aside.
            case ToolIntent(call_id=call_id, effect=effect) if first is None and (
                call_id in record.calls
            ):
                again = restorable if effect == "workspace" else record.calls[call_id].open
                first = record.calls[call_id].proposed if again else None
            case _:
                continue
    return first


def _doubt(record: Record, redo: Sequence[CallState]) -> CallState | None:
    undone = {call.call_id for call in redo}
    for call in record.calls.values():
        # One that has a result was shown to the model as it is: it is in doubt, and behind us.
        sent = call.intent is not None and call.result is None
        if sent and call.open and call.call_id not in undone:
            return call
    return None


def _without_unsent(made: list[Event], record: Record) -> list[Event]:
    """``made`` up to the proposal of a call that is known not to have been sent, if there is one.

    It is authorized anew, and gets a new intent before it leaves: a second crash must find it in
    doubt again.
    """
    for event in made:
        payload = event.payload
        if isinstance(payload, ToolProposed):
            call = record.calls.get(payload.call_id)
            if call is not None and call.settled == "not sent" and call.intent is not None:
                return [each for each in made if each.seq <= event.seq]
    return made


def _snapshot(made: Sequence[Event]) -> str | None:
    taken = [event.payload.snapshot for event in made if isinstance(event.payload, Checkpoint)]
    return taken[-1] if taken else None
