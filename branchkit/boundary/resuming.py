"""Resume mode: the tape answers to its end, then the world does (R40, R42).

The harness runs its own code from the start, over the recorded events. Every context that it
assembles on the way is compared with the recorded one, so where it arrives is where the run was:
that is what makes a resume a recovery and not a rerun. No recorded reply is asked for again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from branchkit.boundary.calls import Call
from branchkit.boundary.model import ModelRequest
from branchkit.boundary.recording import Recording
from branchkit.boundary.replaying import Replaying
from branchkit.disk import crash_point
from branchkit.errors import Diverged
from branchkit.journal.events import (
    Checkpoint,
    EnvironmentRead,
    Event,
    Message,
    ModelFailed,
    ModelReplied,
    Payload,
    ToolIntent,
    ToolResult,
)
from branchkit.journal.redact import holds_marker
from branchkit.record.record import Approval, Record

_SECRET = "Not sent: its arguments held a secret, which is not kept. Propose the call again."


class Resuming:
    """A mode that begins as ``tape`` and goes on as ``live``, which continues the same journal."""

    def __init__(
        self, tape: Replaying, live: Recording, arrived: Callable[[], None] = lambda: None
    ) -> None:
        """``live`` has the record after all recorded events; ``arrived`` is told of the change."""
        self._tape, self._live = tape, live
        live.redact = tape.redact  # one run, one set of rules
        self._arrived = arrived
        self._is_live = False
        self._replied_turn = 0  # the last turn whose reply came from the tape
        # The question that the harness assembles must be the recorded one, whoever answers now.
        self.requested_model = tape.requested_model
        self.redact = tape.redact

    @property
    def is_live(self) -> bool:
        """Whether the tape is behind us. The first look at an exhausted tape makes the change."""
        if not self._is_live and self._tape.exhausted:
            self._check_record()
            self._is_live = True
            crash_point("resume.live")
            self._arrived()
        return self._is_live

    def _check_record(self) -> None:
        replayed, recorded = self._tape.record.logical, self._live.record.logical
        if replayed != recorded:
            raise Diverged(
                f"the replayed record is {replayed}, the recorded one {recorded}",
                report={"expected": recorded, "actual": replayed},
            )

    @property
    def _mode(self) -> Replaying | Recording:
        return self._live if self.is_live else self._tape

    @property
    def record(self) -> Record:
        return self._mode.record

    @record.setter
    def record(self, record: Record) -> None:
        self._mode.record = record

    def emit(self, payload: Payload, turn: int, step_id: str) -> Event:
        """Compare with the recorded event, or append a new one. Raises Diverged."""
        return self._mode.emit(payload, turn, step_id)

    def commit(self) -> None:
        """Return once everything that is new is durable."""
        self._mode.commit()

    def ask(
        self, request: ModelRequest, request_hash: str, step_id: str
    ) -> ModelReplied | ModelFailed:
        """The recorded reply, or a new one where none was recorded."""
        if not self.is_live:
            self._replied_turn = request.turn
        return self._mode.ask(request, request_hash, step_id)

    def act(self, call: Call, intent: ToolIntent, step_id: str) -> ToolResult:
        """The recorded result; the tool is called where the run never got to it."""
        return self._mode.act(call, intent, step_id)

    def refuse(self, call: Call, text: str, step_id: str) -> ToolResult:
        """The recorded refusal, or a new one."""
        return self._mode.refuse(call, text, step_id)

    def text_of(self, result: ToolResult) -> str:
        """The whole text of a result."""
        try:
            return self._live.text_of(result)
        except KeyError:
            return self._tape.text_of(result)

    def read(
        self, source: str, arguments: list[Any], request_hash: str, step_id: str
    ) -> EnvironmentRead:
        """What was read then, or is read now. Entropy is drawn along, so no value comes twice."""
        if not self.is_live:
            self._live.draw_along(source, arguments)
        return self._mode.read(source, arguments, request_hash, step_id)

    def checkpoint(self, turn: int, step_id: str) -> Checkpoint | None:
        """The recorded checkpoint at this place, or a new one."""
        return self._mode.checkpoint(turn, step_id)

    def obstacle(self, call: Call, step_id: str) -> str:
        """Why a call of a recorded reply cannot be sent: its arguments are not known to the letter.

        The journal keeps no secrets, and a request with a hole in it is another request.
        """
        if not self.is_live:
            return self._tape.obstacle(call, step_id)
        recorded = self._live.record.turn == self._replied_turn
        return _SECRET if recorded and holds_marker(call.arguments) else ""

    def approval(self, call_id: str, step_id: str) -> Approval | None:
        """What a person answered."""
        return self._mode.approval(call_id, step_id)

    def summary(self, make: Callable[[], list[Message]], step_id: str) -> list[Message]:
        """The recorded summary; made only where none was recorded."""
        return self._mode.summary(make, step_id)

    def finish(self) -> None:
        """End; an event left over on the tape is a divergence."""
        self._mode.finish()
