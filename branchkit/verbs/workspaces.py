"""Verbs on a store of workspaces: branches of directories, without any run."""

from __future__ import annotations

import argparse

from branchkit.errors import EXIT_OK
from branchkit.verbs.output import answer


def mount(options: argparse.Namespace) -> int:
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
    answer(options, value, lambda: f"{branch.path} (served by process {pid})")
    return EXIT_OK


def umount(options: argparse.Namespace) -> int:
    """Bring everything to the disk and end the process that serves a store."""
    from branchkit.journal.blobs import store_directory
    from branchkit.workspace import Workspaces

    store = options.store or store_directory()
    with Workspaces.open(store) as workspaces:
        workspaces.stop()
    answer(options, {"store": str(store)}, lambda: f"{store} is unmounted")
    return EXIT_OK
