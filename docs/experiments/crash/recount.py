"""Count the published rows again: ``python recount.py``, with nothing but the standard library.

Reads ``effects-POLICY.csv`` (the services' rows) and ``cases-POLICY.csv`` (what the driver wrote)
and exits with 1 where they disagree.
"""

from __future__ import annotations

import csv
import sys
from collections import Counter
from pathlib import Path

HERE = Path(__file__).parent


def rows(name: str) -> list[dict[str, str]]:
    """The rows of one file."""
    with (HERE / name).open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def recount(policy: str) -> list[str]:
    """What is wrong with one series; prints its counts."""
    cases, effects = rows(f"cases-{policy}.csv"), rows(f"effects-{policy}.csv")
    happened = Counter(effect["operation"] for effect in effects)
    twice = sum(times - 1 for times in happened.values())
    never = sum(case["operation"] not in happened for case in cases)
    sys.stdout.write(
        f"{policy}: {len(cases)} processes killed, {len(effects)} effects,"
        f" {twice} twice, {never} never\n"
    )
    problems = [
        f"{case['operation']}: ended with {case['exit_code']}, not by SIGKILL"
        for case in cases
        if case["exit_code"] != "-9"
    ]
    problems += [
        f"{case['operation']}: two reads of its journal differ"
        for case in cases
        if case["reads_equal"] != "True"
    ]
    problems += [
        f"{case['operation']}: the driver says {case['after']}, the rows {happened[name]}"
        for case in cases
        if happened[name := case["operation"]] != int(case["after"])
    ]
    problems += [f"{name}: of no case" for name in happened if name not in operations(cases)]
    return problems


def operations(cases: list[dict[str, str]]) -> set[str]:
    """The operation ids of the cases."""
    return {case["operation"] for case in cases}


if __name__ == "__main__":
    found = [
        f"{path.stem.removeprefix('cases-')}: {problem}"
        for path in sorted(HERE.glob("cases-*.csv"))
        for problem in recount(path.stem.removeprefix("cases-"))
    ]
    sys.stdout.writelines(f"{line}\n" for line in found)
    sys.exit(bool(found))
