"""``make crash``: every layer of crashes at full size; the last line has the counts.

    python tests/t5_crash/crash.py [--repeats N] [LAYER...]

A layer is a function from a folder and two workers to its counts; one more layer is one more line
in LAYERS. Exits with 1 if a layer found a problem, or did less than it is there for.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import repeat
from pathlib import Path
from typing import NamedTuple

import campaign
import cuts as real
import power

from branchkit.process import Workers
from branchkit.testing import crash_matrix

KILLS = 1_000  # R26: at least so many; there are more

STATES = 10_000  # of a simulated disk

# One class of tool at one place is killed at least so often; external has three contracts.
KILLS_A_PLACE = 60


class Layer(NamedTuple):
    """What one layer did: its counts in words, and what it found."""

    counts: str
    problems: list[str]
    kills: int = 0


def matrix(folder: Path, workers: Workers, _repeats: int) -> Layer:
    """R25: the published experiment and two recoveries of ours."""
    policies = (
        ("naive", crash_matrix.naive, True, 45),
        ("settled", crash_matrix.settled, True, 40),
        ("nobody to ask", crash_matrix.settled, False, 35),
    )
    problems, counts = [], []
    for name, policy, can_ask, wanted in policies:
        found = crash_matrix.run(policy, folder / name, workers=workers, can_ask=can_ask)
        counts.append(f"{name} {found.audit.rows}")
        if found.audit.rows != wanted:
            problems.append(f"{name}: {found.audit.rows} effects instead of {wanted}")
    return Layer(f"matrix: effects of 40 cases: {', '.join(counts)}", problems, 120)


def kills(folder: Path, workers: Workers, repeats: int) -> Layer:
    """R26: every class of tool at every place, and recovery itself."""
    found = [
        campaign.run(folder, workers, repeats=repeats, kinds=("pure", "workspace")),
        campaign.run(folder, workers, repeats=-(-repeats // 3), kinds=campaign.EXTERNAL),
    ]
    total = sum(one.kills for one in found)
    problems = [problem for one in found for problem in one.problems]
    if repeats >= KILLS_A_PLACE and total < KILLS:
        problems.append(f"only {total} kills")
    counts = (
        f"kills at named places: {total} in {sum(one.cases for one in found)} runs,"
        f" {sum(one.effects for one in found)} effects,"
        f" {sum(one.escalated for one in found)} runs put to a person"
    )
    return Layer(counts, problems, total)


def moments(folder: Path, workers: Workers, repeats: int) -> Layer:
    """N19: killed at any moment whatever, also inside a write."""
    found = campaign.run_at_moments(folder, workers, repeats=repeats)
    counts = f"kills at random moments: {found.kills} in {found.cases} runs"
    return Layer(counts, found.problems, found.kills)


def situations(_folder: Path, _workers: Workers, _repeats: int) -> Layer:
    """R26: what a client and a service can misunderstand, one test each."""
    tests = Path(__file__).with_name("test_situations.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    last = done.stdout.strip().rpartition("\n")[2].partition(" in ")[0]
    problems = [] if done.returncode == 0 else [done.stdout + done.stderr]
    return Layer(f"situations: {last}", problems)


def simulated(folder: Path, workers: Workers, repeats: int) -> Layer:
    """Every state in which a power cut can leave a run's files, and its recovery's."""
    seeds = range(max(2, repeats // 2))
    places = [folder / str(seed) for seed in seeds]
    found = list(workers.map(power.campaign, seeds, places))
    problems = [problem for one in found for problem in one.problems]
    total, refused = (sum(getattr(one, name) for one in found) for name in ("states", "refused"))
    missed = [name for name in workers.map(power.survives, power.MUTANTS, repeat(folder)) if name]
    problems += [f"nothing finds the mutant: {name}" for name in missed]
    if repeats >= KILLS_A_PLACE and total < STATES:
        problems.append(f"only {total} states")
    counts = (
        f"simulated power cuts: {total} states, {refused} of them refused with nothing lost,"
        f" {len(power.MUTANTS) - len(missed)} of {len(power.MUTANTS)} mutants found"
    )
    return Layer(counts, problems)


def cuts(folder: Path, _workers: Workers, repeats: int) -> Layer:
    """File systems shut down under a writer: ext4 and XFS, and a writer without barriers."""
    if os.geteuid() != 0:
        return Layer("real power cuts: none, they need root", [])
    each = max(1, repeats * 50 // KILLS_A_PLACE)
    problems, words = [], []
    for kind in real.KINDS:
        found = [real.cut(kind, folder, seed) for seed in range(each)]
        problems += [f"{kind} cut {n}: {one.problem}" for n, one in enumerate(found) if one.problem]
        acknowledged = sum(one.acknowledged for one in found)
        words.append(f"{kind} {each} ({acknowledged} events acknowledged)")
        if not any(real.cut(kind, folder, seed, sync=False).problem for seed in range(3)):
            problems.append(f"{kind}: a writer without barriers loses nothing")
    return Layer(f"real power cuts: {', '.join(words)}", problems)


LAYERS: dict[str, Callable[[Path, Workers, int], Layer]] = {
    "matrix": matrix,
    "kills": kills,
    "moments": moments,
    "situations": situations,
    "simulated": simulated,
    "cuts": cuts,
}


def main() -> int:
    """Run the layers that were named, or all; returns the exit code."""
    parser = argparse.ArgumentParser(description="crashes of every kind, counted")
    parser.add_argument("layers", nargs="*", choices=[[], *LAYERS], default=[])
    parser.add_argument("--repeats", type=int, default=KILLS_A_PLACE)
    wanted = parser.parse_args()
    done: list[Layer] = []
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="branchkit-crash-") as name:
        for layer in wanted.layers or list(LAYERS):
            folder = Path(name) / layer
            folder.mkdir()
            with Workers(min(2, os.cpu_count() or 1)) as workers:
                done.append(LAYERS[layer](folder, workers, wanted.repeats))
            print(f"{done[-1].counts}; problems: {len(done[-1].problems)}", flush=True)
    problems = [problem for layer in done for problem in layer.problems]
    for problem in problems:
        print(problem)
    total = sum(layer.kills for layer in done)
    print(
        f"crash: {total} kills, {len(problems)} problems (duplicates, silent losses, phantoms) in"
        f" {time.monotonic() - started:.0f} s on Linux {platform.release().split('-')[0]}: "
        + "; ".join(layer.counts for layer in done)
    )
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
