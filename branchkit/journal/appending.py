"""What every writer of a run does before anything is durable: the next event's place (R1, R70)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from branchkit.journal.chain import seal
from branchkit.journal.events import Event, Payload


class RunWriter(Protocol):
    """The one writer of a run, wherever its lines are kept."""

    run_id: str
    seq: int  # of the next event
    head: str  # the hash of the last one

    def append(self, payload: Payload, *, turn: int, step_id: str) -> Event:
        """Give the event its place in the chain. It is not durable before ``commit`` returns."""

    def commit(self) -> None:
        """Return once every appended event is on stable storage."""

    def close(self) -> None:
        """Commit what is pending and let the run go."""


class Appending:
    """The end of a run's chain, and the lines that wait to be made durable."""

    def __init__(self, run_id: str, now: Callable[[], str], seq: int, head: str) -> None:
        self.run_id = run_id
        self.seq, self.head = seq, head
        self._now = now
        self._pending: list[bytes] = []

    def append(self, payload: Payload, *, turn: int, step_id: str) -> Event:
        """Give the event its place in the chain. It is not durable before ``commit`` returns.

        Raises ValueError or TypeError for a payload that could not be read back; the writer is as
        before.
        """
        event, line = seal(
            payload,
            seq=self.seq,
            turn=turn,
            step_id=step_id,
            recorded_at=self._now(),
            run_id=self.run_id,
            prev_event_hash=self.head,
        )
        self.seq, self.head = self.seq + 1, event.event_hash
        self._pending.append(line)
        return event
