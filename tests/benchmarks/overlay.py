"""Writes docs/performance.md: branches and files of the overlay against what else there is.

    python tests/benchmarks/overlay.py [--repeat 5] [--write docs/performance.md]

As root (mounts, cold caches). Every row is measured in all places in one run, in turn, so that
what else the machine does meets all of them; a figure is the median.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from overlay_loads import GIT, PERSON, big, make_big, make_tar, make_tree, small, timed
from overlay_places import Native, Ours, Place, ours, places

BASES = {"1k files": 1_000, "50k files": 50_000}
LAYERS = 200
MANY = 1_000
CHANGED = 10

Figures = dict[str, dict[str, list[float]]]  # row -> column -> seconds
NOTE = """# Performance of the workspace

Written by `make bench`; do not edit. {cores} cores, Linux {kernel}, Python {python}, median of
{repeat} runs, each place in turn within one run. Ratios say more than milliseconds: the machine may
be doing other things. Cold: after the kernel's caches were emptied.
"""


def measure_loads(folder: Path, repeat: int, figures: Figures) -> list[str]:
    """Fill in the rows of `overlay_loads`; returns what could not take part."""
    tree = make_tree(folder / "tree", 10_000, git=True)
    bases = ((small, tree), (big, make_big(folder / "big")))
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


def measure_branches(folder: Path, repeat: int, figures: Figures) -> None:
    """Fill in what making and freezing a branch costs, by size of the base and by layers."""
    for title, files in BASES.items():
        base = make_tree(folder / title.replace(" ", "-"), files, git=True)
        with ours(folder / f"for-{files}", plain=False) as place:
            name = f"create, {title}, 1 layer"
            _rivals(folder, base, repeat, figures.setdefault(name, {}))
            place.base(base)  # hashed once, before any branch
            _layers(place, base, title, repeat, figures)
            if files == max(BASES.values()):
                _many(place, base, figures)


def _rivals(folder: Path, base: Path, repeat: int, row: dict[str, list[float]]) -> None:
    tree = folder / "worktree"
    native = Native(folder / f"cp-{base.name}")
    for _ in range(repeat):
        row.setdefault("cp -a", []).append(timed(lambda: native.branch(base, "x")))
        native.drop("x")
        command = [*GIT, "worktree", "add", "-q", "--detach", os.fspath(tree)]
        environment = {**os.environ, **PERSON}
        row.setdefault("git worktree", []).append(
            timed(partial(subprocess.run, command, cwd=base, check=True, env=environment))
        )
        subprocess.run([*GIT, "worktree", "remove", "--force", tree], cwd=base, check=True)


def _layers(place: Ours, base: Path, title: str, repeat: int, figures: Figures) -> None:
    """Freeze one branch again and again; measure at its start and at its end."""
    branch = place.ws.create("line", base=place.base(base))
    _change(branch.path, 0)
    figures.setdefault(f"first freeze (the base's hashes are loaded), {title}", {})[place.name] = [
        timed(branch.freeze)
    ]
    taken = 1
    for layers in (1, LAYERS):
        while taken < layers:
            _change(branch.path, taken)
            branch.freeze()
            taken += 1
        where = f"{title}, {layers} layer{'s' if layers > 1 else ''}"
        snapshot = branch.freeze().id
        log = place.ws.store / "bare"
        for number in range(max(20, repeat)):
            name = f"fork-{layers}-{number}"
            seconds = timed(partial(place.ws.create, name, snapshot=snapshot))
            _put(figures, f"create, {where}", place.name, seconds)
            fork = place.ws.branch(name)
            _change(fork.path, number)
            row = f"freeze after {CHANGED} changed files, {where}"
            _put(figures, row, place.name, timed(fork.freeze))
            _put(figures, row, "one write + fdatasync", timed(partial(_sync_once, log)))


def _sync_once(path: Path) -> None:
    """What a freeze cannot do without on this disk: its bytes, written and synced."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(fd, bytes(CHANGED * 2000))
    os.fdatasync(fd)
    os.close(fd)


def _put(figures: Figures, row: str, column: str, seconds: float) -> None:
    figures.setdefault(row, {}).setdefault(column, []).append(seconds)


def _change(root: Path, number: int) -> None:
    for at in range(CHANGED):
        (root / "d0" / f"f{at}.txt").write_bytes(b"%d %d\n" % (number, at) * 200)


def _many(place: Ours, base: Path, figures: Figures) -> None:
    base_id = place.base(base)
    before = _resident_mb(place)

    def make() -> None:
        for number in range(MANY):
            place.ws.create(f"many{number}", base=base_id)

    _put(figures, f"create {MANY:,} branches of 50k files", place.name, timed(make))
    grown = f"… which take {_resident_mb(place) - before:.1f} MB of memory; the first 100 entered"
    look = [place.ws.store / "mnt" / f"many{number}" / "d0" for number in range(100)]
    _put(figures, grown, place.name, timed(lambda: [os.listdir(path) for path in look]))


def _resident_mb(place: Ours) -> float:
    holder = place.ws.pin()
    (worker,) = Path(f"/proc/{holder}/task/{holder}/children").read_text().split()
    fields = Path(f"/proc/{worker}/status").read_text().split("VmRSS:")[1].split()
    return int(fields[0]) / 1024


def render(figures: Figures, repeat: int, missing: list[str]) -> str:
    """The whole page."""
    note = NOTE.format(
        cores=os.cpu_count(), kernel=platform.release().split("-")[0],
        python=platform.python_version(), repeat=repeat,
    )  # fmt: skip
    branches = {row: got for row, got in figures.items() if "plain directory" not in got}
    loads = {row: got for row, got in figures.items() if "plain directory" in got}
    parts = [note, "## Branches\n", _table(branches, None)]
    parts += ["## Files in a branch\n", _table(loads, "plain directory")]
    if missing:
        parts.append("Not measured here: " + "; ".join(missing) + "\n")
    return "\n".join(parts)


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
    options = parser.parse_args()
    figures: Figures = {}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        measure_branches(Path(folder), options.repeat, figures)
        missing = measure_loads(Path(folder), options.repeat, figures)
    page = render(figures, options.repeat, missing)
    print(page)
    if options.write:
        options.write.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
