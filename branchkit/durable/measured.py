"""What cadence advice needs, read off a run's own journal: pauses, failures, turns, tokens (R32).

    advise(["night-1.journal.jsonl", "night-2.journal.jsonl"])     # an Advice, from both runs

A failure is a ``Resumed`` that no orderly end came before. Time counts while a process was at work;
the time between a crash, or a wait for a person, and what came after it does not. One run seldom
holds enough failures to say how far apart they are: give several, or ``mtbf_s``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from branchkit.durable.cadence import Advice, Load, Prices, explain
from branchkit.errors import UsageError
from branchkit.journal.events import (
    Checkpoint,
    Event,
    ModelReplied,
    Resumed,
    TaskFinished,
)
from branchkit.journal.file import read
from branchkit.record.fold import ANNOTATIONS

# With no failure in a time t, M is longer than t / 3 at a confidence of 95 % (e^-3 = 0.05).
NO_FAILURE_BOUND = 3.0


class Measured(NamedTuple):
    """The figures of some runs; None where the journals hold nothing to measure."""

    checkpoints: int  # those that say how long they took
    delta_s: float | None
    failures: int
    running_s: float
    mtbf_s: float | None
    mtbf_at_least_s: float  # what is known of it where there was no failure
    turns: int
    turn_s: float | None
    context_tokens: int  # of the last turn: what a resume reads anew
    reply_tokens: int  # on average

    def load(self, *, delta_s: float | None = None, mtbf_s: float | None = None) -> Load:
        """The figures as explain() takes them; what is given stands above what was measured.

        Raises UsageError for what is neither measured nor given.
        """
        return Load(
            delta_s=_known(
                delta_s or self.delta_s, "how long a checkpoint takes", "delta_s= (--pause)"
            ),
            mtbf_s=_known(mtbf_s or self.mtbf_s, "how far apart failures are", "mtbf_s= (--mtbf)"),
            turn_s=_known(self.turn_s, "how long a turn takes", "a journal with turns"),
            context_tokens=self.context_tokens,
            reply_tokens=self.reply_tokens,
        )


def advise(
    journals: Sequence[Path | str],
    *,
    delta_s: float | None = None,
    mtbf_s: float | None = None,
    prices: Prices | None = None,
) -> Advice:
    """Advice from what these runs measured. Raises UsageError where a figure is missing."""
    found = measured(read(Path(journal))[0] for journal in journals)
    return explain(found.load(delta_s=delta_s, mtbf_s=mtbf_s), prices)


def measured(runs: Iterable[Sequence[Event]]) -> Measured:
    """The figures of the runs with these events."""
    pauses: list[float] = []
    replies: list[int] = []
    context = failures = turns = 0
    running_s = 0.0
    for events in runs:
        pauses += [
            event.payload.duration_ms / 1000
            for event in events
            if isinstance(event.payload, Checkpoint) and event.payload.duration_ms is not None
        ]
        for event in events:
            if isinstance(event.payload, ModelReplied):
                turns += 1
                context = event.payload.usage.get("prompt_tokens", context)
                replies.append(event.payload.usage.get("completion_tokens", 0))
        failures += _failures(events)
        running_s += _running_s(events)
    return Measured(
        checkpoints=len(pauses),
        delta_s=_mean(pauses),
        failures=failures,
        running_s=running_s,
        mtbf_s=running_s / failures if failures else None,
        mtbf_at_least_s=running_s / (failures or NO_FAILURE_BOUND),
        turns=turns,
        turn_s=running_s / turns if turns else None,
        context_tokens=context,
        reply_tokens=round(_mean(replies) or 0),
    )


def _failures(events: Sequence[Event]) -> int:
    failures, in_order = 0, False
    for event in events:
        if isinstance(event.payload, TaskFinished):
            in_order = True
        elif isinstance(event.payload, Resumed):
            failures += not in_order
            in_order = False
    return failures


def _running_s(events: Sequence[Event]) -> float:
    """The time between events, without that before what a recovery or a person adds."""
    running_s = 0.0
    for before, event in pairwise(events):
        if not isinstance(event.payload, ANNOTATIONS):
            running_s += (_at(event) - _at(before)).total_seconds()
    return running_s


def _at(event: Event) -> datetime:
    return datetime.fromisoformat(event.recorded_at)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _known(value: float | None, what: str, remedy: str) -> float:
    if value is None:
        raise UsageError(f"these journals do not say {what}", hint=f"give {remedy}")
    return value
