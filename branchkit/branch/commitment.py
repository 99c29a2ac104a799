"""``commitment``: the last turn from which the run could still be won more often than not (R61).

Each probe is a fork of the control arm alone: nothing is swapped, so what its branches show is the
chance that the run itself still had. Which turns are probed is ``divergence.committed``'s business.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from branchkit.branch.comparison import Comparison
from branchkit.branch.fork import Options, estimate, fork, record_passes
from branchkit.divergence.committed import Finding, conclude, costs, next_probe
from branchkit.divergence.statistics import Rate
from branchkit.errors import UsageError
from branchkit.journal.format import Json
from branchkit.replay.recorded import Recorded

if TYPE_CHECKING:
    import pandas as pd

Progress = Callable[[int, int, str], None]
WIDTH = 100


class Plan(NamedTuple):
    """What a search may cost at most: forks, their branches, and model calls."""

    probes: int
    branches: int
    model_calls: int
    n: int

    def sentence(self) -> str:
        """The plan in words."""
        few = "; fewer than 6 branches leave every answer open" if self.n < 6 else ""
        size = f"at most {self.probes} probes of {self.n} branches"
        return f"{size}, {self.model_calls} model calls{few}"

    def __repr__(self) -> str:
        return self.sentence()


class Probe(NamedTuple):
    """The control arm forked after ``turn``; ``directory`` has its journals."""

    turn: int
    success: Rate
    directory: str
    partial: bool

    @property
    def says(self) -> str:
        """ "above" or "below" where the interval leaves 1/2 out, else "unclear"."""
        if self.success.low > 0.5:
            return "above"
        return "below" if self.success.high < 0.5 else "unclear"


class Commitment(NamedTuple):
    """What was found, and the probes in the order in which they were run."""

    check: str
    turns: int
    record_ok: bool | None
    plan: Plan
    probes: list[Probe]
    finding: Finding

    @property
    def turn(self) -> int | None:
        """The point of commitment, or the best estimate of it; None where there is none."""
        return self.finding.turn

    def table(self) -> pd.DataFrame:
        """One row a probe, by turn: turn, k, n, none, rate, low, high, says, partial, directory."""
        import pandas as pd

        columns = [
            "turn", "k", "n", "none", "rate", "low", "high", "says", "partial", "directory",
        ]  # fmt: skip
        nan = float("nan")
        rows = [
            (one.turn, *one.success[:3], nan if one.success.share is None else one.success.share,
             *one.success[3:], one.says, one.partial, one.directory)
            for one in sorted(self.probes)
        ]  # fmt: skip
        return pd.DataFrame(rows, columns=columns).astype({"rate": "float64"})

    def to_json(self) -> dict[str, Json]:
        """The fields of ``branchkit commitment --json``."""
        found = self.finding
        probes: list[Json] = [
            {"turn": one.turn, "success": dict(one.success._asdict()), "says": one.says,
             "partial": one.partial, "directory": one.directory}
            for one in self.probes
        ]  # fmt: skip
        return {
            "turn": found.turn,
            "kind": found.kind,
            "between": [found.low, found.high],
            "sentence": found.sentence,
            "check": self.check,
            "record": {"ok": self.record_ok},
            "plan": dict(self.plan._asdict()),
            "probes": probes,
        }

    def __repr__(self) -> str:
        ok = {True: "passes", False: "fails", None: "says nothing"}[self.record_ok]
        lines = [f"check: {self.check}", f"record's own end: the check {ok}", ""]
        lines.append("from turn  success      95 % interval")
        for one in sorted(self.probes):
            rate = one.success
            cut = "  (interrupted)" if one.partial else ""
            apart = f"  ({rate.none} without verdict)" if rate.none else ""
            share = f"{rate.k}/{rate.n}"
            lines.append(
                f"{one.turn:>9}  {share:<11}  {rate.low:>4.0%} … {rate.high:<4.0%}  {one.says}"
                f"{apart}{cut}"
            )
        return "\n".join([*lines, "", *textwrap.wrap(self.finding.sentence, WIDTH)])


def plan(recorded: Recorded, options: Options, record_ok: bool | None) -> Plan:
    """The most that ``commitment`` can cost where the record's own end says ``record_ok``."""
    if record_ok:
        return Plan(0, 0, 0, options.n)

    def cost(turn: int) -> int:
        return estimate(recorded, turn, (), options)

    probes, calls = costs(recorded.turns, record_ok, cost)
    return Plan(probes, probes * options.n, calls, options.n)


def record_end(recorded: Recorded, options: Options) -> bool | None:
    """Whether the record's own end passes the check; no model is asked. Raises UsageError."""
    if options.check is None:
        raise UsageError("commitment needs a check", hint="--check CMD: exit 0 is success")
    if options.sizes or not options.control:
        raise UsageError("commitment forks the control arm alone", hint="give -n only")
    return record_passes(recorded, options)


def commitment(
    recorded: Recorded,
    options: Options,
    *,
    announce: Callable[[Plan], None] = lambda _plan: None,
    progress: Progress = lambda _done, _all, _what: None,
) -> Commitment:
    """The point of commitment by forks of the control arm, and how sure it is.

    ``options.check`` decides what success is. ``announce`` gets the plan before the first model
    call. An interrupt ends the running probe, keeps what its branches have shown, and returns an
    unfinished finding. Raises what ``fork`` does.
    """
    record_ok = record_end(recorded, options)
    planned = plan(recorded, options, record_ok)
    announce(planned)
    probes: list[Probe] = []
    known: dict[int, Rate] = {}
    turn = next_probe(known, recorded.turns, record_ok)
    partial = False
    while turn is not None and not partial:
        at = f"fork {len(probes) + 1} of at most {planned.probes}, from turn {turn}"
        try:
            found = fork(recorded, turn, (), options=options, progress=_named(progress, at))
        except KeyboardInterrupt:  # before or after its branches ran: the probes so far are kept
            break
        partial = found.partial
        probes.append(_probe(found))
        if not partial:
            known[turn] = probes[-1].success
            turn = next_probe(known, recorded.turns, record_ok)
    finding = conclude(known, recorded.turns, record_ok)
    return Commitment(options.check or "", recorded.turns, record_ok, planned, probes, finding)


def _probe(found: Comparison) -> Probe:
    success = found.summaries[0].success if found.summaries else Rate(0, 0, 0, 0.0, 1.0)
    where = Path(found.directory).name if found.directory else ""
    return Probe(found.facts.turn, success, where, found.partial)


def _named(progress: Progress, at: str) -> Progress:
    return lambda done, total, _what: progress(done, total, at)
