"""Run the series of docs/experiments/crash again and replace its results: ``publish.py [FOLDER]``.

The same bytes each time: nothing of a machine, a path, a time or a process id is in them.
"""

from __future__ import annotations

import csv
import json
import os
import platform
import sqlite3
import sys
import tempfile
from pathlib import Path

from branchkit import __version__
from branchkit.process import Workers
from branchkit.testing.crash_matrix import Case, Matrix, Policy, naive, run, settled
from branchkit.testing.effect_service import write_csv

FOLDER = Path(__file__).parents[2] / "docs" / "experiments" / "crash"
SERIES: dict[str, tuple[Policy, bool]] = {
    "naive": (naive, False),
    "settled": (settled, True),
    "nobody-to-ask": (settled, False),
}


def publish(folder: Path) -> None:
    """Write cases-POLICY.csv and effects-POLICY.csv of each series, and versions.json."""
    with tempfile.TemporaryDirectory(prefix="branchkit-crash-") as name:
        for series, (policy, can_ask) in SERIES.items():
            with Workers(2) as workers:
                found = run(policy, Path(name) / series, workers=workers, can_ask=can_ask)
            write_cases(found, folder / f"cases-{series}.csv")
            write_effects(found, folder / f"effects-{series}.csv")
    versions = {
        "branchkit": __version__,
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "system": f"Linux {platform.release().split('-')[0]}",
        "processes_at_once": min(2, os.cpu_count() or 1),
    }
    (folder / "versions.json").write_text(json.dumps(versions, indent=1) + "\n")


def write_cases(found: Matrix, target: Path) -> None:
    """What the driver saw, one row a case."""
    with target.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(Case._fields)
        writer.writerows(found.cases)


def write_effects(found: Matrix, target: Path) -> None:
    """The rows of all services of a series, as they are in their databases.

    Two processes share a service, so which row came first is chance: they are sorted by operation,
    and the receipt, which counts on, is left out with the row's number.
    """
    rows: list[dict[str, str]] = []
    for db in found.databases:
        part = target.with_suffix(f".{db.stem}")
        write_csv(db, part)
        with part.open(newline="", encoding="utf-8") as stream:
            rows += [
                {"service": db.stem, "operation": row["operation"]}
                for row in csv.DictReader(stream)
            ]
        part.unlink()
    with target.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, ["service", "operation"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted(rows, key=lambda row: (row["service"], row["operation"])))


if __name__ == "__main__":
    publish(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
