"""A real file system loses its power under a writer: two cuts each here, fifty in `make crash`."""

from __future__ import annotations

import os
from pathlib import Path

import cuts
import pytest


@pytest.fixture(autouse=True)
def root_only() -> None:
    if os.geteuid() != 0:
        pytest.fail("mounting an image needs root: run this test as root")


@pytest.mark.parametrize("kind", cuts.KINDS)
def test_what_was_acknowledged_is_there(kind: str, tmp_path: Path) -> None:
    """R21, R24: the kernel drops what no barrier has covered, and nothing else."""
    for seed in range(2):
        found = cuts.cut(kind, tmp_path, seed)
        assert found.problem == ""
        assert found.found >= found.acknowledged > 0


def test_a_writer_without_barriers_is_found(tmp_path: Path) -> None:
    """The check can fail: without fdatasync a cut loses what was acknowledged."""
    assert any(cuts.cut("ext4", tmp_path, seed, sync=False).problem for seed in range(3))
