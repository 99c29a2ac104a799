"""What making and freezing a branch costs: by files in the base, layers and branches."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from overlay_loads import GIT, PERSON, make_tree, timed
from overlay_places import Native, Ours, ours

BASES = {"1k files": 1_000, "100k files": 100_000}
LAYERS = (1, 1_000)
SAMPLES = 30
MANY, MANY_FILES = 1_000, 50_000
CHANGED = 10
CPU = "branchkit, its CPU time"
SYNC = "one write + fdatasync"

Figures = dict[str, dict[str, list[float]]]  # row -> column -> seconds


def measure_branches(folder: Path, repeat: int, figures: Figures) -> None:
    """Fill in the rows; a copy and a git worktree of the small base for comparison."""
    for title, files in BASES.items():
        print(title, file=sys.stderr)
        small = files == min(BASES.values())
        base = make_tree(folder / f"base-{files}", files, git=small)
        with ours(folder / f"for-{files}", plain=False) as place:
            seconds = timed(partial(place.base, base))
            put(figures, f"add a base of {title} (reads and hashes it once)", place.name, seconds)
            _first(place, base, title, figures)
            for layers in LAYERS:
                _deep(place, base, title, layers, figures)
        row = figures[f"create, {title}, 1 layer"]
        _copies(folder, base, repeat if small else 1, row)
        if small:
            _worktrees(folder, base, repeat, row)
    base = make_tree(folder / "base-many", MANY_FILES, git=False)
    with ours(folder / "for-many", plain=False) as place:
        _many(place, base, figures)


def put(figures: Figures, row: str, column: str, seconds: float) -> None:
    """One more figure."""
    figures.setdefault(row, {}).setdefault(column, []).append(seconds)


def _copies(folder: Path, base: Path, repeat: int, row: dict[str, list[float]]) -> None:
    native = Native(folder / f"cp-{base.name}")
    for _ in range(repeat):
        row.setdefault("cp -a", []).append(timed(lambda: native.branch(base, "x")))
        native.drop("x")


def _worktrees(folder: Path, base: Path, repeat: int, row: dict[str, list[float]]) -> None:
    tree = folder / "worktree"
    command = [*GIT, "worktree", "add", "-q", "--detach", os.fspath(tree)]
    environment = {**os.environ, **PERSON}
    for _ in range(repeat):
        add = partial(subprocess.run, command, cwd=base, check=True, env=environment)
        row.setdefault("git worktree", []).append(timed(add))
        subprocess.run([*GIT, "worktree", "remove", "--force", tree], cwd=base, check=True)


def _first(place: Ours, base: Path, title: str, figures: Figures) -> None:
    """The first freeze on a base, of a line that later ones make deeper."""
    branch = place.ws.create("line", base=place.base(base))
    _change(branch.path, 0)
    put(figures, f"first freeze on a base of {title}", place.name, timed(branch.freeze))


def _deep(place: Ours, base: Path, title: str, layers: int, figures: Figures) -> None:
    """Make the line ``layers`` deep; fork it and freeze the fork, again and again."""
    branch = place.ws.branch("line")
    for number in range(1, layers):
        _change(branch.path, number)
        branch.freeze()
    where = f"{title}, {layers:,} layer{'s' if layers > 1 else ''}"
    snapshot = branch.freeze().id
    log = place.ws.store / "bare"
    os.sync()  # what was written so far must not be waited for by what is measured
    for number in range(SAMPLES):
        name = f"fork-{layers}-{number}"
        create = partial(place.ws.create, name, snapshot=snapshot)
        _both(place, figures, f"create, {where}", create)
        fork = place.ws.branch(name)
        _change(fork.path, number)
        row = f"freeze after {CHANGED} changed files, {where}"
        _both(place, figures, row, fork.freeze)
        put(figures, row, SYNC, timed(partial(_sync_once, log)))
        os.sync()


def _both(place: Ours, figures: Figures, row: str, call: Callable[[], object]) -> None:
    """Wall clock here, and the time that the daemon was on a processor."""
    before_s = place.cpu_s()
    put(figures, row, place.name, timed(call))
    put(figures, row, CPU, place.cpu_s() - before_s)


def _sync_once(path: Path) -> None:
    """What a freeze cannot do without on this disk: its bytes, written and synced."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(fd, bytes(CHANGED * 2000))
    os.fdatasync(fd)
    os.close(fd)


def _change(root: Path, number: int) -> None:
    for at in range(CHANGED):
        (root / "d0" / f"f{at}.txt").write_bytes(b"%d %d\n" % (number, at) * 200)


def _many(place: Ours, base: Path, figures: Figures) -> None:
    base_id = place.base(base)
    before = place.resident_mb()

    def make() -> None:
        for number in range(MANY):
            place.ws.create(f"many{number}", base=base_id)

    put(figures, f"create {MANY:,} branches of {MANY_FILES:,} files", place.name, timed(make))
    grown = f"… which take {place.resident_mb() - before:.1f} MB of memory; the first 100 entered"
    look = [place.ws.store / "mnt" / f"many{number}" / "d0" for number in range(100)]
    put(figures, grown, place.name, timed(lambda: [os.listdir(path) for path in look]))
