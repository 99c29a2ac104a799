"""Verbs that read a journal, or make one of another tool's file."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from branchkit.errors import (
    EXIT_DIVERGED,
    EXIT_OK,
    BranchkitError,
    JournalDamaged,
    print_error,
)
from branchkit.verbs.output import answer, progress_of

EXIT_SAME, EXIT_DIFFERENT, EXIT_CANNOT_TELL, EXIT_STOP = 0, 1, 125, 255  # for git bisect run


def import_(options: argparse.Namespace) -> int:
    """Turn another tool's file into a journal; the file stays as it is."""
    from branchkit.errors import InputRefused
    from branchkit.imports import import_file

    try:
        found = import_file(options.file, options.out)
    except InputRefused as error:
        if options.json:
            print(json.dumps({"ok": False, "refused": error.message}))
        raise
    value = found.to_json()
    answer(options, value, lambda: json.dumps(value, indent=1))
    return EXIT_OK


def show(options: argparse.Namespace) -> int:
    """List the events of a journal's good prefix."""
    from branchkit.journal.events import logical_hash
    from branchkit.journal.file import damage_error, read

    events, damage = read(options.file)
    rows = [
        {"seq": event.seq, "turn": event.turn, "step_id": event.step_id, "kind": event.kind,
         "recorded_at": event.recorded_at, "logical_hash": logical_hash(event)}
        for event in events
    ]  # fmt: skip
    lines = [f"{row['seq']:>6}  {row['step_id']:<10} {row['kind']}" for row in rows]
    value = {"events": rows, "damage": [one._asdict() for one in damage]}
    answer(options, value, lambda: "\n".join(lines))
    if damage:
        return print_error(damage_error(options.file, damage[0]))
    return EXIT_OK


def verify(options: argparse.Namespace) -> int:
    """Check the hash chain of a journal, and its end against an anchor or its NAME.head."""
    from branchkit.journal.anchor import kept_head, verify_kept
    from branchkit.journal.file import damage_error, verify

    if options.anchor is None:
        found, anchor = verify_kept(options.file), kept_head(options.file)
    else:
        found, anchor = verify(options.file, anchor=options.anchor), options.anchor
    value = {
        "ok": found.ok, "events": found.events, "head": found.head, "anchor": anchor,
        "damage": [
            {"seq": one.seq, "line": one.line, "offset": one.offset, "code": one.code,
             "detail": one.detail}
            for one in found.damage
        ],
    }  # fmt: skip
    answer(options, value, lambda: f"{found.events} events, head {found.head}")
    if found.damage:
        return print_error(damage_error(options.file, found.damage[0]))
    return EXIT_OK


def rewind(options: argparse.Namespace) -> int:
    """Show the state just before reply T: context, record, what was then decided, the files."""
    from branchkit.branch.api import open_run
    from branchkit.branch.text import rewound_text

    with open_run(options.file, parent=options.parent) as run:
        found = run.rewind(options.turn, workspace=not options.no_workspace)
        if found.branch is not None:
            # The shell that asked will want to look at the files after this process is gone.
            run.workspaces().pin()
        answer(options, found.to_json(), lambda: rewound_text(found, last=options.last))
    return EXIT_OK


def when(options: argparse.Namespace) -> int:
    """Name the turn whose files first fail (or pass) a check; no model is asked."""
    from branchkit.branch.api import open_run

    with open_run(options.file) as run:
        found = run.when(
            options.check, bisect=options.bisect, isolated=not options.no_sandbox,
            progress=progress_of("turns"),
        )  # fmt: skip
    lines = [f"after turn {one.turn:>4}: exit {one.exit}" for one in found.results]
    said = "no turn changes the verdict" if found.turn is None else f"turn {found.turn} did it"
    answer(options, found.to_json(), lambda: "\n".join([*lines, said, *found.calls]))
    return EXIT_OK


def replay(options: argparse.Namespace) -> int:
    """Run the recorded harness again on the tape: no model, no tool, every event accounted for."""
    from branchkit.branch.api import open_run

    try:
        with open_run(options.file) as run:
            found = run.replay(strict=False, own_loop=options.harness, isolated=not options.here)
    except JournalDamaged:
        if options.bisect:
            return EXIT_STOP
        raise
    except BranchkitError as error:
        if options.bisect:
            print_error(error)
            return EXIT_CANNOT_TELL
        raise
    report = json.dumps(found.divergence, indent=1)
    answer(options, found.to_json(), lambda: (
        f"equal: {found.consumed} of {found.events} events consumed, no model or tool was called"
        + (f" ({found.note})" if found.note else "") if found.ok else f"diverged: {report}"
    ))  # fmt: skip
    if options.bisect:
        return EXIT_SAME if found.ok else EXIT_DIFFERENT
    return EXIT_OK if found.ok else EXIT_DIVERGED


def regress(options: argparse.Namespace) -> int:
    """Replay every journal in DIR with today's code; each stops at its first difference."""
    from branchkit.replay.regress import regress

    found = regress(
        options.places, harness=options.harness, jobs=options.jobs,
        progress=progress_of("journals"),
    )  # fmt: skip
    lines = [f"{Path(one.journal).name}: {one.told()}" for one in found.outcomes if not one.ok]
    equal = sum(one.ok for one in found.outcomes)
    lines.append(f"{equal} of {len(found.outcomes)} journals are equal")
    answer(options, found.to_json(), lambda: "\n".join(lines))
    return EXIT_OK if found.ok else EXIT_DIVERGED
