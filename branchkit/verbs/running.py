"""Verbs that make a journal and what belongs to it."""

from __future__ import annotations

import argparse
import sys

from branchkit.errors import EXIT_OK, UsageError
from branchkit.verbs.output import answer


def run(options: argparse.Namespace) -> int:
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
    answer(options, value, lambda: f"{options.out}: {ending.status} after {ending.turns} turns")
    return EXIT_OK


def pack(options: argparse.Namespace) -> int:
    """Write NAME.pack: everything the run needs beside its journal."""
    from branchkit.journal.blobs import store_directory
    from branchkit.replay.portable import pack
    from branchkit.replay.recorded import Recorded
    from branchkit.workspace import Workspaces

    with Workspaces.open(store_directory()) as workspaces:
        path = pack(Recorded.open(options.file), workspaces)
    answer(options, {"pack": str(path), "bytes": path.stat().st_size}, lambda: str(path))
    return EXIT_OK
