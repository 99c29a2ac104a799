"""``regress``: an archive of journals through today's harness code, without a model (R63, H12).

Each journal is replayed strictly in a worker process and stops at its first difference, which names
the turn, the payload and both readings. What a replay cannot show is whether the agent would have
succeeded: for that, fork.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from branchkit.errors import BranchkitError, UsageError
from branchkit.journal.file import SUFFIX
from branchkit.journal.format import Json
from branchkit.process import Workers
from branchkit.replay.recorded import Recorded
from branchkit.replay.strict import Loop, replay

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
    load_loop(harness)
    outcomes = []
    with Workers(min(jobs or os.cpu_count() or 1, len(paths))) as workers:
        for outcome in workers.map(outcome_of, map(str, paths), [harness] * len(paths)):
            outcomes.append(outcome)
            progress(len(outcomes), len(paths), Path(outcome.journal).name)
    return Regression(outcomes)


def outcome_of(journal: str, harness: str | None = None) -> Outcome:
    """One journal replayed."""
    try:
        recorded = Recorded.open(journal)
        found = replay(recorded, load_loop(harness))
        recorded.close()
    except BranchkitError as error:
        return Outcome(journal, False, 0, None, str(error))
    return Outcome(journal, found.ok, found.events, found.divergence, None)


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


def _journals(places: Sequence[Path]) -> Iterator[Path]:
    for place in places:
        if place.is_dir():
            yield from place.rglob(f"*{SUFFIX}")
        else:
            yield place
