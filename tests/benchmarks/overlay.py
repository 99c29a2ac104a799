"""Writes docs/performance.md: branches and files of the overlay against what else there is.

    python tests/benchmarks/overlay.py [--part branches] [--repeat 5] [--write docs/performance.md]

As root (mounts, cold caches). Every row is measured in all places in one run, in turn, so that
what else the machine does meets all of them; a figure is the median.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from overlay_branches import CHANGED, SAMPLES, Figures, measure_branches
from overlay_loads import big, make_big, make_history, make_tar, make_tree, small
from overlay_places import Place, places

NOTE = """# Performance of the workspace

Written by `make bench`; do not edit. {cores} cores, Linux {kernel}, Python {python}, median of
{repeat} runs, each place in turn within one run. Ratios say more than milliseconds: the machine may
be doing other things, and then the disk above all: "one write + fdatasync" is what it took at that
moment, in the same turn. Cold: after the kernel's caches were emptied.
"""
HEADS = ("## Branches", "## Files in a branch")
BRANCHES = """\
{samples} of each, in turn with their own write + fdatasync. A freeze makes {changed} changed files
durable. CPU time is that of the process that serves, from before the call to after it; the rest of
a create is two processes handing over, the rest of a freeze is waiting for the disk.
"""


def measure_loads(folder: Path, repeat: int, figures: Figures) -> list[str]:
    """Fill in the rows of `overlay_loads`; returns what could not take part."""
    tree = make_tree(folder / "tree", 10_000, git=True)
    bases = ((small, tree), (big, make_big(folder / "big")))
    make_history(tree)
    tar = make_tar(folder / "tree.tar", tree)
    with places(folder) as (found, missing):
        for number in range(repeat):
            for load, base in bases:
                for place in found:
                    name = f"{load.__name__}{number}"
                    _one(place, name, load(place.branch(base, name), base, tar), figures)
    return missing


def _one(place: Place, name: str, rows: Iterator[tuple[str, float]], figures: Figures) -> None:
    print(f"{place.name}: {name}", file=sys.stderr)
    for row, seconds in rows:
        figures.setdefault(row, {}).setdefault(place.name, []).append(seconds)
    place.drop(name)


def render(branches: Figures, files: Figures, repeat: int, missing: list[str], old: str) -> str:
    """The whole page; a part that was not measured is that of the ``old`` page."""
    note = NOTE.format(
        cores=os.cpu_count(), kernel=platform.release().split("-")[0],
        python=platform.python_version(), repeat=repeat,
    )  # fmt: skip
    _, _, old_branches = old.partition(HEADS[0])
    old_branches, _, old_files = old_branches.partition(HEADS[1])
    about = BRANCHES.format(samples=SAMPLES, changed=CHANGED)
    parts = [f"\n\n{about}\n{_table(branches, None)}\n" if branches else old_branches]
    parts.append(f"\n\n{_table(files, 'plain directory')}" if files else old_files)
    if missing:
        parts[1] += "\nNot measured here: " + "; ".join(missing) + "\n"
    return f"{note}\n{HEADS[0]}{parts[0]}{HEADS[1]}{parts[1]}"


def _table(figures: Figures, against: str | None) -> str:
    columns = list(dict.fromkeys(column for got in figures.values() for column in got))
    lines = ["| | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for row, got in figures.items():
        unit = statistics.median(got[against]) if against else None
        cells = [_cell(got.get(column), unit, own=column == against) for column in columns]
        lines.append(f"| {row} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(seconds: list[float] | None, unit: float | None, *, own: bool) -> str:
    if not seconds:
        return "–"
    middle = statistics.median(seconds)
    shown = f"{middle * 1000:.2f} ms" if middle < 0.1 else f"{middle * 1000:,.0f} ms"
    return shown if unit is None or own else f"{shown} ({middle / unit:.2f}×)"


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--write", type=Path)
    parser.add_argument("--part", choices=("branches", "files", "all"), default="all")
    options = parser.parse_args()
    branches: Figures = {}
    files: Figures = {}
    missing: list[str] = []
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        if options.part != "files":
            measure_branches(Path(folder), options.repeat, branches)
        if options.part != "branches":
            missing = measure_loads(Path(folder), options.repeat, files)
    old = options.write.read_text(encoding="utf-8") if options.write else ""
    page = render(branches, files, options.repeat, missing, old)
    print(page)
    if options.write:
        options.write.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
