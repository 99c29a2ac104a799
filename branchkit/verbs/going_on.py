"""Verbs for a run that did not get to its end: what became of its calls, and going on."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from branchkit.errors import EXIT_OK
from branchkit.verbs.output import answer

if TYPE_CHECKING:
    from branchkit.durable.states import CallRow


def calls(options: argparse.Namespace) -> int:
    """Say of every call whether it was not sent, is in doubt or completed."""
    from branchkit.durable.states import calls as calls_of

    rows = calls_of(options.file)
    value = {"calls": [row._asdict() for row in rows]}
    answer(options, value, lambda: "\n".join(map(_line, rows)) or "no call was proposed")
    return EXIT_OK


def _line(row: CallRow) -> str:
    waits = f"  waits: {row.waits_for}" if row.waits_for else ""
    return f"{row.call_id:<10} {row.state:<10} {row.name}{waits}"


def resume(options: argparse.Namespace) -> int:
    """Go on with a run that was cut off; what is in doubt is settled before anything is sent."""
    from branchkit.durable.resume import resume as go_on
    from branchkit.journal.blobs import store_directory
    from branchkit.workspace import Workspaces

    with Workspaces.open(store_directory()) as workspaces:
        found = go_on(
            options.file, workspaces=workspaces, isolated=not options.no_sandbox,
            after_turn=lambda turn: print(f"turn {turn}", file=sys.stderr),
        )  # fmt: skip
    lines = [f"{found.journal}: {found.status} after {found.turns} turns"]
    lines += [found.reason] if found.reason else []
    lines += [f"settled {one.call_id}: {one.outcome}, by {one.by}" for one in found.settled]
    lines += [f"done again {call_id}" for call_id in found.redone]
    lines += [_line(row) for row in found.waits_for]
    answer(options, found.to_json(), lambda: "\n".join(lines))
    return EXIT_OK


def settle(options: argparse.Namespace) -> int:
    """Say what became of a call in doubt; `branchkit resume` then goes on."""
    from branchkit.durable.answers import settle as answer_for

    call = answer_for(
        options.file, options.call, options.outcome.replace("-", " "), result=options.result,
        by=options.by, detail=options.detail,
    )  # fmt: skip
    value = {"call_id": call.call_id, "state": call.word}
    answer(options, value, lambda: f"{call.call_id} is {call.word}")
    return EXIT_OK


def approve(options: argparse.Namespace) -> int:
    """Allow or deny a call that the policy held; `branchkit resume` then goes on."""
    from branchkit.durable.answers import approve as answer_for

    call = answer_for(
        options.file, options.call, "deny" if options.deny else "allow", by=options.by,
        reason=options.reason, expires_at=options.expires_at,
    )  # fmt: skip
    value = {"call_id": call.call_id, "decision": "deny" if options.deny else "allow"}
    answer(options, value, lambda: f"{call.call_id}: {value['decision']}")
    return EXIT_OK


def cancel(options: argparse.Namespace) -> int:
    """End a run for good; what is in doubt stays in doubt."""
    from branchkit.durable.answers import cancel as end

    record = end(options.file, by=options.by, reason=options.reason)
    answer(options, {"status": record.status}, lambda: f"{options.file}: {record.status}")
    return EXIT_OK


def cadence(options: argparse.Namespace) -> int:
    """Advise how often to take a checkpoint, from what runs measured."""
    from branchkit.durable.measured import advise

    found = advise(options.files, mtbf_s=options.mtbf, delta_s=options.pause)
    value = {
        "turns": found.turns, "load": found.load._asdict(), "young_s": found.young_s,
        "daly_seed_s": found.daly_seed_s, "daly2006_s": found.daly2006_s,
        "choices": [choice._asdict() for choice in found.choices],
    }  # fmt: skip
    answer(options, value, lambda: str(found))
    return EXIT_OK
