"""Random lives of branches until so many operations are done; the last line says how many.

python -m tests.t3_workspace.campaign [OPERATIONS]
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from functools import partial
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from branchkit.workspace import Workspaces, tree_hash

from .machine import Lives, World, furnish

OPERATIONS = 10_000
OUTSIDE = ("lives",)  # counted, but no operations


def main(arguments: list[str]) -> int:
    """Run the campaign; an inequality is hypothesis' own error, shrunk."""
    wanted = int(arguments[0]) if arguments else OPERATIONS
    with tempfile.TemporaryDirectory(prefix="campaign-") as folder:
        done = run(Path(folder), wanted)
    parts = ", ".join(f"{count} {what}" for what, count in sorted(done.items()))
    print(f"campaign: {operations(done)} random operations, all equal to a directory ({parts})")
    return 0


def operations(done: Counter[str]) -> int:
    """How many of the steps count."""
    return sum(count for what, count in done.items() if what not in OUTSIDE)


def run(folder: Path, wanted: int) -> Counter[str]:
    """What was done until ``wanted`` operations were reached."""
    (folder / "base").mkdir()
    furnish(folder / "base")
    before = tree_hash(folder / "base")
    reopen = partial(Workspaces.open, folder / "store", backend="fuse")
    ws = reopen()
    world = World(folder, ws, reopen, ws.add_base(folder / "base"))
    machine = type("Campaign", (Lives,), {"world": world})
    many = settings(
        max_examples=25,
        stateful_step_count=60,
        deadline=None,
        database=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
    try:
        while operations(world.done) < wanted:
            run_state_machine_as_test(machine, settings=many)
            print(f"campaign: {operations(world.done)} of {wanted}", flush=True)
        assert tree_hash(folder / "base") == before
    finally:
        world.ws.stop()
    return world.done


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
