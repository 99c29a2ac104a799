"""``regress``: an archive of journals through today's harness code, without a model (R63, H12).

Each journal is replayed strictly in a worker process and stops at its first difference, which names
the turn, the payload and both readings. What a replay cannot show is whether the agent would have
succeeded: for that, fork.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from pathlib import Path
from typing import NamedTuple

from branchkit.errors import BranchkitError, UsageError
from branchkit.journal.file import SUFFIX
from branchkit.journal.format import Json
from branchkit.process import Workers
from branchkit.replay.isolate import replay_behind_walls
from branchkit.replay.recorded import Recorded
from branchkit.replay.strict import Replayed, load_loop, replay

Progress = Callable[[int, int, str], None]


class Outcome(NamedTuple):
    """One journal: equal, different (with the report of R56), or not replayable (``error``)."""

    journal: str
    ok: bool
    events: int
    divergence: dict[str, object] | None
    error: str | None

    def told(self) -> str:
        """What happened, for people: the step, what the journal holds, what the harness made."""
        if self.error is not None:
            return f"cannot be replayed: {self.error}"
        if self.divergence is None:
            return "equal"
        expected, actual = (json.dumps(self.divergence[k]) for k in ("expected", "actual"))
        return (
            f"differs at step {self.divergence['step_id']} (event {self.divergence['seq']})\n"
            f"  journal: {expected}\n  harness: {actual}"
        )


class Regression(NamedTuple):
    """All outcomes, in the order of the names."""

    outcomes: list[Outcome]

    @property
    def ok(self) -> bool:
        """Whether every journal was equal."""
        return all(outcome.ok for outcome in self.outcomes)

    def to_json(self) -> dict[str, Json]:
        """The fields of ``branchkit regress --json``."""
        return {
            "ok": self.ok,
            "journals": [outcome._asdict() for outcome in self.outcomes],
        }


def regress(
    places: Sequence[Path],
    *,
    harness: str | None = None,
    jobs: int | None = None,
    progress: Progress = lambda _done, _all, _what: None,
) -> Regression:
    """Replay every journal in ``places`` (files, or directories searched through).

    ``harness`` is ``module:function`` of the loop that made them, where it is not branchkit's own.
    Raises UsageError if there is no journal, or no such function.
    """
    paths = sorted(_journals(places))
    if not paths:
        raise UsageError(
            f"there is no journal in {', '.join(map(str, places))}",
            hint=f"journals are called NAME{SUFFIX}",
        )
    load_loop(harness)  # here first: a name that is wrong is wrong for all of them
    outcomes = []
    with Workers(min(jobs or os.cpu_count() or 1, len(paths))) as workers:
        names = map(str, paths)
        for outcome in workers.map(outcome_of, names, repeat(harness), repeat(True)):
            outcomes.append(outcome)
            progress(len(outcomes), len(paths), Path(outcome.journal).name)
    return Regression(outcomes)


def outcome_of(journal: str, harness: str | None = None, isolated: bool = False) -> Outcome:
    """One journal replayed; ``isolated`` closes this process in for good, so for workers only."""
    try:
        found = replay_behind_walls(journal, harness) if isolated else _here(journal, harness)
    except BranchkitError as error:
        return Outcome(journal, False, 0, None, str(error))
    return Outcome(journal, found.ok, found.events, found.divergence, None)


def _here(journal: str, harness: str | None) -> Replayed:
    recorded = Recorded.open(journal)
    try:
        return replay(recorded, load_loop(harness))
    finally:
        recorded.close()


def _journals(places: Sequence[Path]) -> Iterator[Path]:
    for place in places:
        if place.is_dir():
            yield from place.rglob(f"*{SUFFIX}")
        else:
            yield place
