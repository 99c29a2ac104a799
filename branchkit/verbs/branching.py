"""Verbs that fork: the sample's whole story, one fork, an earlier one; and the doctor before."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from branchkit.errors import EXIT_OK
from branchkit.verbs.output import EXIT_INTERRUPTED, answer, progress_of


def doctor(options: argparse.Namespace) -> int:
    """Check what this machine has, and say what to do about what it lacks."""
    from branchkit.branch.doctor import checks

    found = checks()
    width = max(len(check.name) for check in found)
    lines = [
        f"{'ok ' if check.ok else 'NO '} {check.name:<{width}}  {check.detail}"
        + ("" if check.ok else f"\n    {check.remedy}")
        for check in found
    ]
    value = {"checks": [check._asdict() for check in found]}
    answer(options, value, lambda: "\n".join(lines))
    return EXIT_OK


def demo(options: argparse.Namespace) -> int:
    """Rewind, replay and fork the sample, or FILE, from beginning to end."""
    from branchkit.notebook.demo import run_demo

    def say(text: str) -> None:
        # With --json stdout belongs to the object alone.
        print(text, file=sys.stderr if options.json else sys.stdout, flush=True)

    chosen = _fork_options(options)
    found = run_demo(
        options.file,
        options.swap,
        chosen,
        out=options.out,
        say=say,
        progress=progress_of("branches"),
    )
    if options.json:
        print(json.dumps(found.to_json()))
    return EXIT_INTERRUPTED if found.partial else EXIT_OK


def fork(options: argparse.Namespace) -> int:
    """Branch after turn T: an arm for each swap beside a control arm, each branch checked."""
    from branchkit.branch.api import open_run
    from branchkit.branch.fork import Options, estimate
    from branchkit.branch.text import comparison_text
    from branchkit.divergence.power import plan_sentence

    chosen = _fork_options(options)
    with open_run(options.file) as run:
        calls = estimate(run.recorded, options.turn, options.swap, Options(**chosen))
        print(f"at most {calls} model calls", file=sys.stderr)
        if chosen["check"] is not None and chosen["control"] and options.swap:
            print(plan_sentence(options.n, arms=len(options.swap)), file=sys.stderr)
        found = run.fork(
            options.turn, swap=options.swap, progress=progress_of("branches"), **chosen
        )
        answer(options, found.to_json(), lambda: comparison_text(found))
    return EXIT_INTERRUPTED if found.partial else EXIT_OK


def compare(options: argparse.Namespace) -> int:
    """Show an earlier fork again, from its directory."""
    from branchkit.branch.api import compare
    from branchkit.branch.text import comparison_text

    found = compare(options.directory, volatile=options.volatile)
    answer(options, found.to_json(), lambda: comparison_text(found))
    return EXIT_OK


def calibrate(options: argparse.Namespace) -> int:
    """Learn from two recordings that do the same what of their results varies all the same."""
    from branchkit.branch.api import calibrate

    found = calibrate(options.one, options.other, out=options.out)
    answer(options, found.to_json(), lambda: repr(found))
    return EXIT_OK


def commitment(options: argparse.Namespace) -> int:
    """Find the last turn from which the run still succeeds more often than not, by forks."""
    from branchkit.branch.api import open_run

    names = ("n", "seed", "check", "max_turns", "max_calls", "model", "store", "workspace")
    chosen = {name: getattr(options, name) for name in names}
    chosen |= {"isolated": not options.no_sandbox, "redeliver_from": options.redeliver_from}
    if options.jobs is not None:
        chosen["jobs"] = options.jobs
    with open_run(options.file) as run:
        if options.dry_run:
            planned = run.commitment_plan(**chosen)
            answer(options, {"plan": planned._asdict()}, planned.sentence)
            return EXIT_OK
        found = run.commitment(
            announce=lambda planned: print(planned.sentence(), file=sys.stderr, flush=True),
            progress=progress_of("branches"),
            **chosen,
        )
        answer(options, found.to_json(), lambda: repr(found))
    return EXIT_INTERRUPTED if found.finding.kind == "unfinished" else EXIT_OK


def _fork_options(options: argparse.Namespace) -> dict[str, Any]:
    from branchkit.branch.fork import sizes_of

    chosen: dict[str, Any] = {
        "n": options.n, "seed": options.seed, "check": options.check,
        "control": not options.no_control, "max_turns": options.max_turns,
        "max_calls": options.max_calls, "redeliver_from": options.redeliver_from,
        "model": options.model, "isolated": not options.no_sandbox, "store": options.store,
        "workspace": options.workspace, "sizes": sizes_of(options.size),
        "paired": options.paired,
    }  # fmt: skip
    return chosen if options.jobs is None else chosen | {"jobs": options.jobs}
