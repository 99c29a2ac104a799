"""The tape: recorded answers by kind, step and request hash, each consumed exactly once (R51, M11).

An answer is never chosen by order alone and never because it is similar. What the replayed code
emits is compared with the recorded event of the same kind and step; the first difference raises
``Diverged`` with the report of R56.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Any, NoReturn, TypeVar

from branchkit.errors import Diverged
from branchkit.journal.events import Event, Payload, logical_hash, payload_json
from branchkit.record import fold as folding
from branchkit.record.effective import effective
from branchkit.record.record import Record

P = TypeVar("P", bound=Payload)


class TapeEnded(BaseException):
    """Everything recorded was consumed, and the run has no end: it was cut off, not different."""


class Tape:
    """The events of a run that are still to be consumed, by (kind, step)."""

    def __init__(self, events: Sequence[Event]) -> None:
        """``events`` is one whole run, or its good prefix; not empty.

        What the harness did not make, or what a resumed run set aside, is passed by in its place:
        it counts as consumed and is folded.
        """
        self.events = events
        self.record = Record()
        self.consumed = 0
        made = effective(events)
        self._cut_off = not made or made[-1].kind != "TaskFinished"
        self._passed = {event.seq for event in events} - {event.seq for event in made}
        self._waiting: dict[tuple[str, str], deque[Event]] = defaultdict(deque)
        for event in made:
            self._waiting[event.kind, event.step_id].append(event)

    @property
    def exhausted(self) -> bool:
        """Whether every event was consumed."""
        return self.consumed == len(self.events)

    def answer(self, kind: type[P], step_id: str, request_hash: str) -> P:
        """The recorded answer to a request; it is consumed when the session emits it.

        Raises Diverged if no such request was recorded at this step.
        """
        waiting = self._waiting[kind.__name__, step_id]
        for event in waiting:
            if getattr(event.payload, "request_hash", request_hash) == request_hash:
                assert isinstance(event.payload, kind)
                return event.payload
        expected = waiting[0] if waiting else None
        return self._diverge(
            expected, step_id, {"kind": kind.__name__, "request_hash": request_hash}
        )

    def next_of(self, kind: type[P], step_id: str) -> P | None:
        """The next recorded event of this kind at this step, if there is one."""
        waiting = self._waiting[kind.__name__, step_id]
        if not waiting:
            return None
        assert isinstance(waiting[0].payload, kind)
        return waiting[0].payload

    def consume(self, payload: Payload, turn: int, step_id: str) -> Event:
        """The recorded event that ``payload`` equals. Raises Diverged if there is none."""
        kind = type(payload).__name__
        waiting = self._waiting[kind, step_id]
        if not waiting:
            self._diverge(None, step_id, {"kind": kind, "payload": payload_json(payload)})
        expected = waiting[0]
        actual = expected._replace(payload=payload, turn=turn)
        if logical_hash(actual) != logical_hash(expected):
            self._diverge(expected, step_id, {"kind": kind, "payload": payload_json(payload)})
        waiting.popleft()
        self._fold(expected)
        while not self.exhausted and (after := self.events[self.consumed]).seq in self._passed:
            self._fold(after)
        return expected

    def _fold(self, event: Event) -> None:
        self.consumed += 1
        folding.apply(self.record, event)

    def finish(self) -> None:
        """Raise Diverged if an event of the journal was never consumed."""
        event = self._next()
        if event is not None:
            self._diverge(event, event.step_id, {"kind": "nothing: it has ended"})

    def _next(self) -> Event | None:
        """The first recorded event that is still to be consumed."""
        left = [waiting[0] for waiting in self._waiting.values() if waiting]
        return min(left, key=lambda event: event.seq, default=None)

    def _diverge(self, expected: Event | None, step_id: str, actual: dict[str, Any]) -> NoReturn:
        if self._cut_off and self.exhausted:
            raise TapeEnded
        # Where nothing of this kind is recorded at this step, what is due next tells more.
        due = expected or self._next()
        seq = due.seq if due is not None else self.record.last_seq + 1
        report: dict[str, object] = {
            "seq": seq,
            "step_id": step_id,
            "expected": None if due is None else _shown(due),
            "actual": actual,
            "record_hash": self.record.logical,
        }
        holds = "nothing more" if due is None else f"{due.kind} of step {due.step_id}"
        other = "" if expected is None or expected.kind != actual["kind"] else " with other content"
        raise Diverged(
            f"event {seq}: the journal holds {holds}, the harness at step {step_id} made "
            f"{actual['kind']}{other}",
            report=report,
        )


def _shown(event: Event) -> dict[str, Any]:
    return {"kind": event.kind, "step_id": event.step_id, "payload": payload_json(event.payload)}
