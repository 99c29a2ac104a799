"""What a person can say to a run that waits: approve a call, settle one in doubt, end the run.

Each is written into the run's own journal, under its writer lock, and durable when it returns. None
of them sends anything: ``resume`` does.
"""

from __future__ import annotations

import getpass
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Literal, NamedTuple

from branchkit.boundary.recording import observed
from branchkit.boundary.settlement import Observation
from branchkit.disk import crash_point
from branchkit.errors import UsageError
from branchkit.harness.live import wall_clock
from branchkit.journal.blobs import Blobs, store_directory
from branchkit.journal.events import (
    ApprovalResolved,
    Cancelled,
    Event,
    Outcome,
    Payload,
    Settled,
    TaskFinished,
    reply_step,
)
from branchkit.journal.file import Writer, read
from branchkit.record.fold import fold
from branchkit.record.record import CallState, Record

ENDED = ("completed", "failed", "max_turns", "max_calls", "cancelled", "unknown")
NOT_KNOWN = "It is not known whether this call was carried out. Do not assume either."


class Reopened(NamedTuple):
    """A journal whose writer lock this process holds, as it is under that lock."""

    writer: Writer
    events: list[Event]
    record: Record

    def append(self, payload: Payload, step_id: str) -> Event:
        """Append at the run's turn; not durable before ``writer.commit``."""
        return self.writer.append(payload, turn=self.record.turn, step_id=step_id)


@contextmanager
def reopened(journal: Path) -> Iterator[Reopened]:
    """The journal, locked, its torn tail repaired. Raises JournalLocked, JournalDamaged."""
    before, _damage = read(journal)
    if not before:
        raise UsageError(
            f"{journal.name} holds no whole event", hint="nothing was sent: record it anew"
        )
    writer = Writer(journal, run_id=before[0].run_id, now=wall_clock)
    try:
        events, _none = read(journal)  # under the lock: another process may have gone on since
        yield Reopened(writer, events, fold(None, events))
    finally:
        writer.close()


def approve(
    journal: Path | str,
    call_id: str,
    decision: Literal["allow", "deny"] = "allow",
    *,
    by: str | None = None,
    reason: str = "",
    expires_at: str | None = None,
) -> CallState:
    """Answer a call that the policy held; ``resume`` then goes on.

    ``expires_at`` (ISO 8601 with a zone) is until when the answer counts. Raises UsageError.
    """
    if expires_at is not None and datetime.fromisoformat(expires_at).tzinfo is None:
        raise UsageError(f"{expires_at!r} has no time zone", hint="write 2026-01-31T12:00:00+00:00")
    with reopened(Path(journal)) as run:
        if call_id not in run.record.pending_approvals:
            waiting = ", ".join(run.record.pending_approvals) or "none"
            raise UsageError(
                f"{call_id} does not wait for approval in {Path(journal).name}",
                hint=f"calls that do: {waiting}",
            )
        answer = ApprovalResolved(
            call_id=call_id, decision=decision, by=_who(by), reason=reason, expires_at=expires_at
        )
        run.append(answer, call_id)
        run.writer.commit()
        crash_point("approve.durable")
        return run.record.calls[call_id]


def settle(
    journal: Path | str,
    call_id: str,
    outcome: Outcome,
    *,
    result: str = "",
    by: str | None = None,
    detail: str = "",
    blobs: Blobs | None = None,
) -> CallState:
    """Say what became of a call in doubt; ``resume`` then goes on. Returns the call as it is now.

    ``completed``: it was done and ``result`` is what the model is told. ``not sent``: it was not
    done and will not be, so it is authorized and sent again. ``unknown``: nobody will ever know;
    the model is told so. Raises UsageError.
    """
    with reopened(Path(journal)) as run:
        call = run.record.calls.get(call_id)
        if call is None or not call.open:
            doubtful = [each.call_id for each in run.record.calls.values() if each.open]
            raise UsageError(
                f"{call_id} is not in doubt in {Path(journal).name}",
                hint=f"calls that are: {', '.join(doubtful) or 'none'}",
            )
        settled = Settled(
            call_id=call_id, outcome=outcome, by="person", who=_who(by), detail=detail
        )
        events = [run.append(settled, call_id)]
        if outcome != "not sent" and call.result is None:
            seen = Observation("completed", result)
            if outcome == "unknown":
                seen = Observation("unanswered", result or NOT_KNOWN)
            store = blobs or Blobs(store_directory() / "blobs")
            events.append(run.append(observed(call_id, seen, store), call_id))
        run.writer.commit()
        crash_point("answer.durable")
        return fold(run.record, events).calls[call_id]


def cancel(journal: Path | str, *, by: str | None = None, reason: str = "") -> Record:
    """End a run that has not ended; it is not resumed. What is in doubt stays in doubt."""
    with reopened(Path(journal)) as run:
        refuse_ended(Path(journal), run.record)
        step = reply_step(run.record.turn)
        events = [
            run.append(Cancelled(by=_who(by), reason=reason), step),
            run.append(TaskFinished(status="cancelled", reason=reason), step),
        ]
        run.writer.commit()
        return fold(run.record, events)


def refuse_ended(journal: Path, record: Record) -> None:
    """Raise UsageError if the run has ended."""
    if record.status in ENDED:
        raise UsageError(
            f"{journal.name} has ended ({record.status}) after turn {record.turn}",
            hint="there is nothing to resume; fork it to go on from one of its turns",
        )


def _who(by: str | None) -> str:
    return by or getpass.getuser()
