"""The tool-calling loop: reply, calls, results, and again, until a reply without calls.

The loop knows nothing of modes: it gets a session and does the same in record and in replay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from branchkit.boundary.session import Session, Waiting
from branchkit.errors import BudgetSpent, ModelError
from branchkit.harness.components import Harness
from branchkit.journal.events import EndStatus, Message


class Ending(NamedTuple):
    """How a run ended."""

    status: EndStatus
    reason: str
    turns: int


def opening(session: Session, harness: Harness, task: str) -> list[Message]:
    """The context that a run begins with: the prompt, then the task as a person's message."""
    return [harness.prompt(task), session.input({"role": "user", "content": task})]


def run(
    session: Session,
    harness: Harness,
    context: Sequence[Message],
    *,
    max_turns: int,
    after_turn: Callable[[int], None] = lambda turn: None,
) -> Ending:
    """Run until the model proposes no call, or turn ``max_turns`` is over; writes TaskFinished."""
    messages = list(context)
    status, reason = _turns(session, harness, messages, max_turns, after_turn)
    session.finish(status, reason)
    return Ending(status, reason, session.turn)


def _turns(
    session: Session,
    harness: Harness,
    messages: list[Message],
    max_turns: int,
    after_turn: Callable[[int], None],
) -> tuple[EndStatus, str]:
    while session.turn < max_turns:
        try:
            reply = session.model(
                messages, sampling=harness.sampling, read_calls=harness.read_calls
            )
        except ModelError as error:
            return "failed", error.message
        except BudgetSpent as error:
            return "max_calls", error.message
        messages.append(reply.message)
        if not reply.calls:
            return "completed", ""
        try:
            for call in reply.calls:
                messages.append(session.tool(call, decide=harness.decide, deliver=harness.deliver))
        except Waiting as held:
            return "waiting", str(held)
        after_turn(reply.turn)
    return "max_turns", f"turn {max_turns} is the last one allowed"
