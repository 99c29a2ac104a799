"""Journals as pytest tests: ``pytest --branchkit DIR`` collects every ``*.journal.jsonl`` below it.

Each journal is one test; it fails at its first difference and shows both readings (R63). Without
``--branchkit`` the plugin does nothing, so that installing branchkit changes nobody's test run.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--branchkit`` and ``--branchkit-harness``."""
    group = parser.getgroup("branchkit")
    group.addoption("--branchkit", action="store_true", help="replay *.journal.jsonl as tests")
    group.addoption(
        "--branchkit-harness", metavar="MODULE:FUNCTION", help="the loop that made them"
    )


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """A collector for a journal, if they were asked for."""
    wanted = parent.config.getoption("--branchkit") and file_path.name.endswith(".journal.jsonl")
    return JournalFile.from_parent(parent, path=file_path) if wanted else None


class JournalFile(pytest.File):
    """One journal."""

    def collect(self) -> Iterator[pytest.Item]:
        """Its single test."""
        yield JournalItem.from_parent(self, name="replay")


class Differs(Exception):
    """A journal that does not replay; its text is what pytest shows."""


class JournalItem(pytest.Item):
    """The strict replay of one journal."""

    def runtest(self) -> None:
        """Replay; raise Differs at a difference."""
        from branchkit.replay.regress import outcome_of

        outcome = outcome_of(str(self.path), self.config.getoption("--branchkit-harness"))
        if not outcome.ok:
            raise Differs(outcome.told())

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The report of a difference without a traceback; bugs keep theirs."""
        if isinstance(excinfo.value, Differs):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int, str]:
        """Where pytest says the test is."""
        return self.path, 0, f"replay of {self.path.name}"
