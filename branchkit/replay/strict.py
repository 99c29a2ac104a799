"""Strict replay: the real harness code over the journal, every event accounted for (R50-R56)."""

from __future__ import annotations

from typing import NamedTuple

from branchkit.boundary.replaying import Replaying
from branchkit.boundary.session import Session
from branchkit.boundary.tape import TapeEnded
from branchkit.errors import Diverged, UsageError
from branchkit.harness import loop
from branchkit.harness.components import build
from branchkit.journal.events import TaskStarted
from branchkit.journal.format import Json
from branchkit.replay.recorded import Recorded


class Replayed(NamedTuple):
    """What came of a replay. ``divergence`` is the report of R56, or None."""

    ok: bool
    events: int
    consumed: int
    model_calls: int
    tool_calls: int
    divergence: dict[str, object] | None
    note: str = ""

    def to_json(self) -> dict[str, Json]:
        """The stable fields of ``branchkit replay --json``."""
        return self._asdict()


def replay(recorded: Recorded) -> Replayed:
    """Run the recorded harness again with model and tools answered from the tape.

    Nothing is sent: replay has no model and no tool to reach. Raises UsageError for a run whose
    harness is not branchkit's own loop (a user's loop replays by ``branchkit.session``).
    """
    started = recorded.events[0].payload
    if not isinstance(started, TaskStarted):
        raise UsageError(
            f"{recorded.path.name} is a branch: its prefix belongs to its parent",
            hint=f"replay the parent: {recorded.parent.path if recorded.parent else 'not found'}",
        )
    if started.harness != "branchkit":
        raise UsageError(
            f"{recorded.path.name} was made by another harness ({started.harness})",
            hint="a loop of your own replays with branchkit.session(FILE, 'replay')",
        )
    mode = Replaying(recorded.events, recorded.contexts)
    session = Session(mode, tools=started.tools, seed=started.seed)
    divergence: dict[str, object] | None = None
    note = ""
    try:
        _run(session, started)
    except Diverged as diverged:
        divergence = diverged.report
    except TapeEnded:
        note = "the run has no end: it was cut off, and everything up to there is equal"
    return Replayed(divergence is None, len(recorded.events), mode.consumed, 0, 0, divergence, note)


def _run(session: Session, started: TaskStarted) -> None:
    harness = build(started.components)
    session.begin(started)
    context = loop.opening(session, harness, started.task)
    loop.run(session, harness, context, max_turns=started.budgets.get("max_turns", 100))
