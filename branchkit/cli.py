"""The command line: ``branchkit VERB …``. Each verb parses, calls the Python API, and prints.

With ``--json`` one object goes to stdout; progress and errors always go to stderr. Exit codes are
those of ``errors.py``; usage errors are 64, never argparse's 2.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from branchkit.arguments import parser
from branchkit.errors import (
    EXIT_DIVERGED,
    EXIT_OK,
    BranchkitError,
    Diverged,
    JournalDamaged,
    UsageError,
    print_error,
)

EXIT_INTERRUPTED = 130
EXIT_SAME, EXIT_DIFFERENT, EXIT_CANNOT_TELL, EXIT_STOP = 0, 1, 125, 255  # for git bisect run


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; returns its exit code."""
    try:
        helps = {name: (run.__doc__ or "").splitlines()[0] for name, run in _VERBS.items()}
        options = parser(helps).parse_args(arguments)
        return _VERBS[options.verb](options)
    except (BranchkitError, Diverged) as error:
        return print_error(error)
    except KeyboardInterrupt:
        print("branchkit: interrupted; what was acknowledged is on disk", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # `branchkit show … | head`: the reader has seen enough. Leave stdout to nobody.
        sys.stdout = None
        return EXIT_OK


def _print(options: argparse.Namespace, value: dict[str, Any], text: Callable[[], str]) -> None:
    print(json.dumps(value, ensure_ascii=True) if options.json else text())


def _progress_of(things: str) -> Callable[[int, int, str], None]:
    def show(done: int, total: int, what: str) -> None:
        end = "\n" if done == total or not sys.stderr.isatty() else ""
        print(f"\r{done}/{total} {things}  {what:<40}", end=end, file=sys.stderr, flush=True)

    return show


def _demo(options: argparse.Namespace) -> int:
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
        progress=_progress_of("branches"),
    )
    if options.json:
        print(json.dumps(found.to_json()))
    return EXIT_INTERRUPTED if found.partial else EXIT_OK


def _doctor(options: argparse.Namespace) -> int:
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
    _print(options, value, lambda: "\n".join(lines))
    return EXIT_OK


def _import(options: argparse.Namespace) -> int:
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
    _print(options, value, lambda: json.dumps(value, indent=1))
    return EXIT_OK


def _show(options: argparse.Namespace) -> int:
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
    _print(options, value, lambda: "\n".join(lines))
    if damage:
        return print_error(damage_error(options.file, damage[0]))
    return EXIT_OK


def _verify(options: argparse.Namespace) -> int:
    """Check the hash chain of a journal, and its end against an anchor."""
    from branchkit.journal.file import damage_error, verify

    found = verify(options.file, anchor=options.anchor)
    value = {
        "ok": found.ok, "events": found.events, "head": found.head,
        "damage": [
            {"seq": one.seq, "line": one.line, "offset": one.offset, "code": one.code,
             "detail": one.detail}
            for one in found.damage
        ],
    }  # fmt: skip
    _print(options, value, lambda: f"{found.events} events, head {found.head}")
    if found.damage:
        return print_error(damage_error(options.file, found.damage[0]))
    return EXIT_OK


def _rewind(options: argparse.Namespace) -> int:
    """Show the state just before reply T: context, record, what was then decided, the files."""
    from branchkit.branch.api import open_run
    from branchkit.branch.text import rewound_text

    with open_run(options.file, parent=options.parent) as run:
        found = run.rewind(options.turn, workspace=not options.no_workspace)
        if found.branch is not None:
            # The shell that asked will want to look at the files after this process is gone.
            run.workspaces().pin()
        _print(options, found.to_json(), lambda: rewound_text(found, last=options.last))
    return EXIT_OK


def _fork_options(options: argparse.Namespace) -> dict[str, Any]:
    from branchkit.branch.fork import sizes_of

    chosen: dict[str, Any] = {
        "n": options.n, "seed": options.seed, "check": options.check,
        "control": not options.no_control, "max_turns": options.max_turns,
        "max_calls": options.max_calls, "redeliver_from": options.redeliver_from,
        "model": options.model, "isolated": not options.no_sandbox, "store": options.store,
        "workspace": options.workspace, "sizes": sizes_of(options.size),
    }  # fmt: skip
    return chosen if options.jobs is None else chosen | {"jobs": options.jobs}


def _fork(options: argparse.Namespace) -> int:
    """Branch after turn T: an arm for each swap beside a control arm, each branch checked."""
    from branchkit.branch.api import open_run
    from branchkit.branch.fork import Options, estimate
    from branchkit.branch.text import comparison_text

    chosen = _fork_options(options)
    with open_run(options.file) as run:
        calls = estimate(run.recorded, options.turn, options.swap, Options(**chosen))
        print(f"at most {calls} model calls", file=sys.stderr)
        found = run.fork(
            options.turn, swap=options.swap, progress=_progress_of("branches"), **chosen
        )
        _print(options, found.to_json(), lambda: comparison_text(found))
    return EXIT_INTERRUPTED if found.partial else EXIT_OK


def _compare(options: argparse.Namespace) -> int:
    """Show an earlier fork again, from its directory."""
    from branchkit.branch.api import compare
    from branchkit.branch.text import comparison_text

    found = compare(options.directory)
    _print(options, found.to_json(), lambda: comparison_text(found))
    return EXIT_OK


def _when(options: argparse.Namespace) -> int:
    """Name the turn whose files first fail (or pass) a check; no model is asked."""
    from branchkit.branch.api import open_run

    with open_run(options.file) as run:
        found = run.when(
            options.check, bisect=options.bisect, isolated=not options.no_sandbox,
            progress=_progress_of("turns"),
        )  # fmt: skip
    lines = [f"after turn {one.turn:>4}: exit {one.exit}" for one in found.results]
    said = "no turn changes the verdict" if found.turn is None else f"turn {found.turn} did it"
    _print(options, found.to_json(), lambda: "\n".join([*lines, said, *found.calls]))
    return EXIT_OK


def _replay(options: argparse.Namespace) -> int:
    """Run the recorded harness again on the tape: no model, no tool, every event accounted for."""
    from branchkit.branch.api import open_run
    from branchkit.replay.regress import load_loop

    try:
        with open_run(options.file) as run:
            found = run.replay(strict=False, own_loop=load_loop(options.harness))
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
    _print(options, found.to_json(), lambda: (
        f"equal: {found.consumed} of {found.events} events consumed, no model or tool was called"
        + (f" ({found.note})" if found.note else "") if found.ok else f"diverged: {report}"
    ))  # fmt: skip
    if options.bisect:
        return EXIT_SAME if found.ok else EXIT_DIFFERENT
    return EXIT_OK if found.ok else EXIT_DIVERGED


def _regress(options: argparse.Namespace) -> int:
    """Replay every journal in DIR with today's code; each stops at its first difference."""
    from branchkit.replay.regress import regress

    found = regress(
        options.places, harness=options.harness, jobs=options.jobs,
        progress=_progress_of("journals"),
    )  # fmt: skip
    lines = [f"{Path(one.journal).name}: {one.told()}" for one in found.outcomes if not one.ok]
    equal = sum(one.ok for one in found.outcomes)
    lines.append(f"{equal} of {len(found.outcomes)} journals are equal")
    _print(options, found.to_json(), lambda: "\n".join(lines))
    return EXIT_OK if found.ok else EXIT_DIVERGED


def _run(options: argparse.Namespace) -> int:
    """Run an agent on a copy-on-write branch of a directory, and journal it."""
    from branchkit.harness.components import component
    from branchkit.harness.record import record_run
    from branchkit.journal.blobs import Blobs, store_directory
    from branchkit.replay.portable import pack
    from branchkit.replay.recorded import Recorded
    from branchkit.workspace import Workspaces

    parts = {}
    for setting in options.set:
        name, _, spec = setting.partition("=")
        parts[name] = component(name, spec)
    if options.out.exists():
        raise UsageError(f"{options.out} exists", hint="give another name: -o NAME.journal.jsonl")
    store = store_directory()
    with Workspaces.open(store) as workspaces:
        ending = record_run(
            options.out, options.task, base=options.base, workspaces=workspaces,
            blobs=Blobs(store / "blobs"), components=parts, seed=options.seed,
            max_turns=options.max_turns, isolated=not options.no_sandbox,
            after_turn=lambda turn: print(f"turn {turn}", file=sys.stderr),
        )  # fmt: skip
        if not options.no_pack:
            pack(Recorded.open(options.out), workspaces)
    value = {"journal": str(options.out), **ending._asdict()}
    _print(options, value, lambda: f"{options.out}: {ending.status} after {ending.turns} turns")
    return EXIT_OK


def _pack(options: argparse.Namespace) -> int:
    """Write NAME.pack: everything the run needs beside its journal."""
    from branchkit.journal.blobs import store_directory
    from branchkit.replay.portable import pack
    from branchkit.replay.recorded import Recorded
    from branchkit.workspace import Workspaces

    with Workspaces.open(store_directory()) as workspaces:
        path = pack(Recorded.open(options.file), workspaces)
    _print(options, {"pack": str(path), "bytes": path.stat().st_size}, lambda: str(path))
    return EXIT_OK


def _mount(options: argparse.Namespace) -> int:
    """Mount a copy-on-write branch of a directory; it stays until `branchkit umount`."""
    from branchkit.journal.blobs import store_directory
    from branchkit.workspace import Workspaces

    with Workspaces.open(options.store or store_directory()) as workspaces:
        if any(branch.name == options.branch for branch in workspaces.branches()):
            branch = workspaces.branch(options.branch)
        else:
            base = workspaces.add_base(options.base)
            branch = workspaces.create(options.branch, base=base)
        pid = workspaces.pin()
        value = {"workspace": str(branch.path), "pid": pid, "note": workspaces.reason}
    _print(options, value, lambda: f"{branch.path} (served by process {pid})")
    return EXIT_OK


def _umount(options: argparse.Namespace) -> int:
    """Bring everything to the disk and end the process that serves a store."""
    from branchkit.journal.blobs import store_directory
    from branchkit.workspace import Workspaces

    store = options.store or store_directory()
    with Workspaces.open(store) as workspaces:
        workspaces.stop()
    _print(options, {"store": str(store)}, lambda: f"{store} is unmounted")
    return EXIT_OK


_VERBS: dict[str, Callable[[argparse.Namespace], int]] = {
    "demo": _demo, "doctor": _doctor, "import": _import, "show": _show, "verify": _verify,
    "rewind": _rewind, "fork": _fork, "compare": _compare, "when": _when,
    "replay": _replay, "regress": _regress,
    "run": _run, "pack": _pack, "mount": _mount, "umount": _umount,
}  # fmt: skip

if __name__ == "__main__":
    sys.exit(main())
