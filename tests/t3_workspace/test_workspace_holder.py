"""The worker is killed at any moment: whoever uses the mount sees a pause and nothing else."""

from __future__ import annotations

import json
import mmap
import os
import random
import signal
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from branchkit.workspace import Branch, tree_hash

from .kit import Open, worker

# Kills, and rounds of them: 200 in `make test-fs`.
KILLS, ROUNDS = (10, 20) if os.environ.get("BRANCHKIT_TEST_FS") == "full" else (8, 1)
WAIT_S = 120


def wait_for(what: Callable[[], object], why: str) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not what():
        assert time.monotonic() < deadline_s, why
        time.sleep(0.001)


class Load:
    """One `torture` program at work in a branch."""

    def __init__(self, branch: Branch, folder: Path, seed: int) -> None:
        path = folder / f"progress {seed}"
        path.write_bytes(bytes(8))
        program = Path(__file__).with_name("torture.py")
        self.process = subprocess.Popen(
            [sys.executable, str(program), str(branch.path / "work"), str(path), str(seed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        with path.open("r+b") as file:
            self._counter = mmap.mmap(file.fileno(), 8)

    def done(self) -> int:
        assert self.process.poll() is None, "a call did not do what it should"
        return int(struct.unpack("=Q", self._counter[:8])[0])

    def has_done(self, calls: int) -> bool:
        return self.done() >= calls

    def end(self) -> dict[str, int]:
        out, _ = self.process.communicate(timeout=WAIT_S)
        assert self.process.returncode == 0
        return dict(json.loads(out))


def await_calls(loads: list[Load], more: int) -> None:
    """Return when each of ``loads`` has made ``more`` calls."""
    goals = [load.done() + more for load in loads]
    wait_for(lambda: all(map(Load.has_done, loads, goals)), "the load hangs")


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_sigkill_of_the_worker_at_random_moments_under_load(
    opened: Open, base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], round_: int
) -> None:
    """Issue 4, R21, OVERLAY 5: nothing written is lost or done twice, clients only wait."""
    (base / "work" / "static").mkdir(parents=True)
    for number in range(400):
        (base / "work" / "static" / str(number)).touch()
    ws = opened()
    base_id = ws.add_base(base)
    branches = [ws.create(f"load {number}", base=base_id) for number in range(2)]
    seed = int.from_bytes(os.urandom(4), "big")
    rng = random.Random(seed)
    loads = [Load(branch, tmp_path, seed + number) for number, branch in enumerate(branches)]
    holder, pauses_s, frozen = ws.pin(), [], []
    try:
        for number in range(KILLS):
            await_calls(loads, rng.randrange(1, 400))
            if number % 4 == 0:
                frozen.append(branches[number % 2].freeze())
            before = worker(ws)
            killed_s = time.monotonic()
            os.kill(before, signal.SIGKILL)
            await_calls(loads, 1)
            pauses_s.append(round(time.monotonic() - killed_s, 3))
            assert worker(ws) != before
    except BaseException:
        for load in loads:
            load.process.kill()
        raise
    reports = [load.end() for load in loads]
    assert ws.pin() == holder
    for branch in branches:
        assert branch.freeze().tree_hash == tree_hash(branch.path)
    for number, snapshot in enumerate(frozen):
        fork = ws.create(f"fork {number}", snapshot=snapshot.id)
        assert tree_hash(fork.path) == snapshot.tree_hash
    calls = sum(report["calls"] for report in reports)
    with capsys.disabled():
        print(
            f"\nround {round_}: {KILLS} kills among {calls} calls (seed {seed}), pauses: median "
            f"{statistics.median(pauses_s):.2f} s, longest {max(pauses_s):.2f} s"
        )
