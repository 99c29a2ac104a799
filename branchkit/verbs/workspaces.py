"""Verbs on a store of workspaces: its branches, what they changed, and where that goes."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from branchkit.errors import EXIT_OK, UsageError
from branchkit.verbs.output import answer

if TYPE_CHECKING:
    from branchkit.workspace import Exported, Workspaces

_SIGN = {"added": "+", "removed": "-", "changed": "~"}


def _opened(options: argparse.Namespace) -> Workspaces:
    from branchkit.journal.blobs import store_directory
    from branchkit.workspace import Workspaces

    return Workspaces.open(options.store or store_directory())


def mount(options: argparse.Namespace) -> int:
    """Mount a copy-on-write branch of a directory; it stays until `branchkit umount`."""
    with _opened(options) as workspaces:
        if any(branch.name == options.branch for branch in workspaces.branches()):
            branch = workspaces.branch(options.branch)
        else:
            base = workspaces.add_base(options.base)
            branch = workspaces.create(options.branch, base=base)
        pid = workspaces.pin()
        value = {"workspace": str(branch.path), "pid": pid, "note": workspaces.reason}
    answer(options, value, lambda: f"{branch.path} (served by process {pid})")
    return EXIT_OK


def umount(options: argparse.Namespace) -> int:
    """Bring everything to the disk and end the process that serves a store."""
    with _opened(options) as workspaces:
        workspaces.stop()
        store = workspaces.store
    answer(options, {"store": str(store)}, lambda: f"{store} is unmounted")
    return EXIT_OK


def diff(options: argparse.Namespace) -> int:
    """Say what a branch changed since it was created; with --patch its content, for `git apply`."""
    from branchkit.workspace.applied import patch_of

    with _opened(options) as workspaces:
        if options.patch:
            text = patch_of(workspaces, options.branch)
            # Names and contents need not be UTF-8.
            sys.stdout.buffer.write(text.encode("utf-8", "surrogateescape"))
            return EXIT_OK
        changes = workspaces.branch(options.branch).diff()
    value = {"branch": options.branch, "changes": [change._asdict() for change in changes]}
    answer(options, value, lambda: "\n".join(f"{_SIGN[c.what]} {c.path}" for c in changes))
    return EXIT_OK


def drop(options: argparse.Namespace) -> int:
    """Remove a branch; the snapshots that it made stay until `branchkit gc`."""
    with _opened(options) as workspaces:
        workspaces.branch(options.branch).drop()
    answer(options, {"dropped": options.branch}, lambda: f"{options.branch} is gone")
    return EXIT_OK


def gc(options: argparse.Namespace) -> int:
    """Give space back: layers nobody needs, and with --keep the snapshots no journal names."""
    from branchkit.replay.kept import journals_in, snapshots_named

    with _opened(options) as workspaces:
        keep = None
        if options.keep:
            keep = workspaces.known(snapshots_named(journals_in(options.keep)))
        freed = workspaces.gc(keep)
    kept = None if keep is None else len(keep)
    value = {"bytes": freed.bytes, "layers": freed.layers, "kept_snapshots": kept}
    answer(options, value, lambda: f"{freed.bytes:,} bytes in {freed.layers} layers given back")
    return EXIT_OK


def apply(options: argparse.Namespace) -> int:
    """Write what a branch changed into its base, or DIR; nothing if anything else changed there."""
    from branchkit.workspace.applied import apply as bring_back

    with _opened(options) as workspaces:
        done = bring_back(workspaces, options.branch, options.to, force=options.force)
    value = {"directory": done.directory, "changes": [change._asdict() for change in done.changes]}
    lines = [f"{_SIGN[change.what]} {change.path}" for change in done.changes]
    lines.append(f"{len(lines)} paths written in {done.directory}")
    answer(options, value, lambda: "\n".join(lines))
    return EXIT_OK


def export(options: argparse.Namespace) -> int:
    """Commit the files before reply TURN, or of a branch, to a repository of your choice."""
    if (options.branch is None) == (options.file is None or options.turn is None):
        raise UsageError(
            "export takes FILE and TURN, or --branch",
            hint="branchkit export run.journal.jsonl 23 --to repo.git",
        )
    made = _export_branch(options) if options.branch else _export_turn(options)
    value = {"repository": str(options.to), **made._asdict()}
    lines = [f"{made.commit} on {made.ref}: {made.files} files"]
    lines += [f"  git cannot hold {what}" for what in made.lost]
    answer(options, value, lambda: "\n".join(lines))
    return EXIT_OK


def _export_turn(options: argparse.Namespace) -> Exported:
    from branchkit.replay.exported import export_turn
    from branchkit.replay.recorded import Recorded

    with _opened(options) as workspaces:
        recorded = Recorded.open(options.file)
        return export_turn(
            recorded, options.turn, options.to, workspaces=workspaces, ref=options.ref
        )


def _export_branch(options: argparse.Namespace) -> Exported:
    from branchkit.workspace.applied import export_branch

    with _opened(options) as workspaces:
        return export_branch(workspaces, options.branch, options.to, ref=options.ref)
