"""Strict replay: the real harness code over the journal, every event accounted for (R50-R56)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import NamedTuple

from branchkit.boundary.replaying import Replaying
from branchkit.boundary.session import Session
from branchkit.boundary.settlement import Waiting
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
    isolation: tuple[str, ...] = ()  # the walls around it: see `isolate`

    def to_json(self) -> dict[str, Json]:
        """The stable fields of ``branchkit replay --json``."""
        return self._asdict()


Loop = Callable[[Session], object]


def replay(
    recorded: Recorded,
    own_loop: Loop | None = None,
    *,
    watch: Callable[[Replaying], None] = lambda _mode: None,
) -> Replayed:
    """Run the recorded harness again with model and tools answered from the tape.

    Nothing is sent: replay has no model and no tool to reach. A run that a loop of your own made
    needs that loop: a function that takes a session; without it UsageError is raised. ``watch`` is
    given the mode before it starts.
    """
    started = recorded.events[0].payload
    if not isinstance(started, TaskStarted):
        raise UsageError(
            f"{recorded.path.name} is a branch: its prefix belongs to its parent",
            hint=f"replay the parent: {recorded.parent.path if recorded.parent else 'not found'}",
        )
    if started.harness != "branchkit" and own_loop is None:
        raise UsageError(
            f"{recorded.path.name} was made by another harness ({started.harness})",
            hint="name the loop that made it: --harness MODULE:FUNCTION, which takes a session",
        )
    mode = Replaying(recorded.events, recorded.contexts)
    watch(mode)
    session = Session(mode, tools=started.tools, seed=started.seed)
    divergence: dict[str, object] | None = None
    note = ""
    try:
        _run(session, started, own_loop)
    except Diverged as diverged:
        divergence = diverged.report
    except TapeEnded:
        note = "the run has no end: it was cut off, and everything up to there is equal"
    return Replayed(divergence is None, len(recorded.events), mode.consumed, 0, 0, divergence, note)


def load_loop(harness: str | None) -> Loop | None:
    """The function that ``module:function`` names, looked for here first. Raises UsageError."""
    if harness is None:
        return None
    module, _, name = harness.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found: Loop = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(
            f"{harness!r} names no function: {error}", hint="write MODULE:FUNCTION"
        ) from None
    return found


def _run(session: Session, started: TaskStarted, own_loop: Loop | None) -> None:
    session.begin(started)
    if own_loop is not None:
        try:
            own_loop(session)
        except Waiting as waiting:
            session.finish("waiting", str(waiting))
        else:
            session.finish("completed")
        return
    harness = build(started.components)
    context = loop.opening(session, harness, started.task)
    loop.run(session, harness, context, max_turns=started.budgets.get("max_turns", 100))
