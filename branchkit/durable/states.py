"""What became of every call, as a table: the three questions after a crash (A04, R3, R27).

import pandas; pandas.DataFrame(calls("run.journal.jsonl"))
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from branchkit.journal.events import Event
from branchkit.journal.file import read
from branchkit.record.fold import fold
from branchkit.record.record import CallState, CallWord, Record


class CallRow(NamedTuple):
    """One call. ``proposed``, ``authorized``, ``intent`` and ``result`` are seqs or None.

    ``could_have_left``: whether the request may have left the host. ``acted``: whether it did what
    it was to do, None where nobody knows.
    """

    call_id: str
    name: str
    turn: int
    state: CallWord
    proposed: int | None
    authorized: int | None
    intent: int | None
    result: int | None
    decision: str | None
    status: str | None
    effect: str | None
    contract: str
    key: str
    could_have_left: bool
    acted: bool | None
    settled_by: str
    waits_for: str  # what a person is asked about it


def calls(journal: Path | str | Iterable[Event]) -> list[CallRow]:
    """Every call of a run in the order of its proposals; of a damaged file, of its good prefix."""
    if isinstance(journal, str | Path):
        events, _damage = read(Path(journal))
        return rows(fold(None, events))
    return rows(fold(None, journal))


def rows(record: Record) -> list[CallRow]:
    """Every call of a record."""
    return [_row(call, record) for call in record.calls.values()]


def _row(call: CallState, record: Record) -> CallRow:
    held = call.call_id in record.pending_approvals
    question = record.questions.get(call.call_id, "")
    return CallRow(
        call.call_id,
        call.name,
        call.turn,
        call.word,
        call.proposed if call.proposed >= 0 else None,
        call.authorized,
        call.intent,
        call.result,
        call.decision,
        call.status,
        call.effect,
        call.contract,
        call.key,
        could_have_left=call.intent is not None,
        acted={"not sent": False, "in doubt": None, "completed": True}[call.word],
        settled_by=call.settled_by,
        waits_for="is it allowed?" if held else question,
    )
