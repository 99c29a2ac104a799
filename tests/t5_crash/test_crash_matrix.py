"""The crash matrix: forty processes killed, counted by the service and by nobody else (R25)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import publish
import pytest

from branchkit.errors import UsageError
from branchkit.process import Workers
from branchkit.testing.crash_matrix import CONTRACTS, POINTS, Matrix, naive, run, settled
from branchkit.testing.effect_service import audit


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    """Two processes with one thread each, which fork those that die."""
    with Workers(2) as two:
        yield two


def as_published(found: Matrix, series: str, folder: Path) -> None:
    """N15: the same bytes as in docs/experiments/crash."""
    publish.write_cases(found, folder / f"cases-{series}.csv")
    publish.write_effects(found, folder / f"effects-{series}.csv")
    for name in (f"cases-{series}.csv", f"effects-{series}.csv"):
        assert (folder / name).read_bytes() == (publish.FOLDER / name).read_bytes(), name


def test_the_naive_policy_repeats_five_of_forty(tmp_path: Path, workers: Workers) -> None:
    """R25, N01-N08: 45 rows = 40 + 5; the same marker with nothing or all of it done."""
    found = run(naive, tmp_path / "series", workers=workers)
    assert len(found.cases) == 40
    assert {case.exit_code for case in found.cases} == {-9}
    assert all(case.reads_equal for case in found.cases)
    # The audit reads the rows alone; the driver's own counts have to agree with it.
    assert (found.audit.rows, found.audit.operations, found.audit.duplicates) == (45, 40, 5)
    assert sum(audit(db).rows for db in found.databases) == 45
    assert sum(case.after for case in found.cases) == 45
    twice = {(case.contract, case.point) for case in found.cases if case.after == 2}
    assert twice == {("plain", "after the external effect")}
    assert set(found.audit.repeated.values()) == {2}
    as_published(found, "naive", tmp_path)
    for contract in CONTRACTS:
        words = {
            case.point: (case.word, case.before)
            for case in found.cases
            if case.contract == contract
        }
        assert list(words) == list(POINTS)
        assert list(words.values()) == [
            ("not sent", 0),
            ("in doubt", 0),
            ("in doubt", 1),
            ("completed", 1),
        ]


def test_settled_none_of_forty_is_repeated_or_lost(tmp_path: Path, workers: Workers) -> None:
    """R25, N09: 40 rows; what was in doubt was sent under its key, or the service was asked."""
    found = run(settled, tmp_path / "series", workers=workers, can_ask=True)
    assert len(found.cases) == 40
    assert all(case.exit_code == -9 and case.reads_equal for case in found.cases)
    assert (found.audit.rows, found.audit.operations, found.audit.duplicates) == (40, 40, 0)
    assert all(case.after == 1 for case in found.cases)
    as_published(found, "settled", tmp_path)
    did = {(case.contract, case.word, case.before, case.did) for case in found.cases}
    assert did == {
        ("keyed", "not sent", 0, "sent"),
        ("keyed", "in doubt", 0, "sent again under its key"),
        ("keyed", "in doubt", 1, "sent again under its key"),
        ("keyed", "completed", 1, "nothing to settle"),
        ("plain", "not sent", 0, "sent"),
        ("plain", "in doubt", 0, "the service was asked, then sent"),
        ("plain", "in doubt", 1, "the service was asked"),
        ("plain", "completed", 1, "nothing to settle"),
    }


def test_with_nobody_to_ask_a_person_is_asked(tmp_path: Path, workers: Workers) -> None:
    """R25, D10: plain contract, no probe: what is in doubt is put to a person and not sent."""
    found = run(settled, tmp_path / "series", workers=workers, repeats=1)
    doubtful = [
        case for case in found.cases if case.contract == "plain" and case.word == "in doubt"
    ]
    assert {case.did for case in doubtful} == {"put to a person, nothing sent"}
    # The same words in the same journal, and the world differs: that is why nothing is sent.
    assert [(case.before, case.after) for case in doubtful] == [(0, 0), (1, 1)]
    assert (found.audit.rows, found.audit.duplicates) == (7, 0)
    others = [case for case in found.cases if case not in doubtful]
    assert all(case.after == 1 for case in others)


def test_a_series_never_goes_on_in_an_old_folder(tmp_path: Path, workers: Workers) -> None:
    """N05."""
    with pytest.raises(UsageError, match="another series"):
        run(naive, tmp_path, workers=workers)


def test_the_published_rows_are_counted_again() -> None:
    """N08, N15: without this package; the page prints what comes out."""
    recount = publish.FOLDER / "recount.py"
    done = subprocess.run(
        [sys.executable, "-I", str(recount)], capture_output=True, text=True, check=True
    )
    printed = done.stdout.splitlines()
    assert [line.split(":")[0] for line in printed] == ["naive", "nobody-to-ask", "settled"]
    page = (publish.FOLDER / "README.md").read_text(encoding="utf-8")
    assert all(f"    {line}\n" in page for line in printed)
