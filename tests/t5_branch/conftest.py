"""One store and one tiny recorded run for all tests of this folder: forks cost seconds."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny import Tiny, make

from branchkit.workspace import Workspaces

SAMPLE = Path(__file__).resolve().parents[2] / "sample_journals" / "branch_cleanup"


@pytest.fixture(scope="package")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The store of these tests; its daemon is stopped at the end."""
    path = tmp_path_factory.mktemp("branch") / "store"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BRANCHKIT_STORE", str(path))
        yield path
        Workspaces.open(path).stop()


@pytest.fixture(scope="package")
def tiny(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    return make(tmp_path_factory.mktemp("tiny"), store)


@pytest.fixture
def bare_sample(tmp_path: Path) -> Path:
    """The sample's journal without its pack: texts that were cut are nowhere."""
    alone = tmp_path / "bare.journal.jsonl"
    shutil.copy(SAMPLE / "branch_cleanup.journal.jsonl", alone)
    return alone
