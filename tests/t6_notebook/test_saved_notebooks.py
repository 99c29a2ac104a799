"""What is saved with a notebook, and what makes a notebook red under nbval (FIELD, notebooks)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from kernels import ROOT
from nbformat.v4 import new_code_cell, new_notebook

SAVED = sorted((ROOT / "notebooks").glob("*/*.ipynb"))
QUICKSTART = ROOT / "notebooks" / "tutorial" / "quickstart.ipynb"
MACHINE = re.compile("/(?:tmp|root|home|work)/")


@pytest.mark.parametrize("path", SAVED, ids=lambda path: str(path.stem))
def test_a_saved_notebook_is_small_and_of_no_machine(path: Path) -> None:
    """FIELD, notebooks 2, 4: nothing of a machine, no widget state, and under 1 MB."""
    assert path.stat().st_size < 1_000_000
    raw = path.read_text(encoding="utf-8")
    assert not MACHINE.search(raw)
    assert "UsageError" not in raw
    saved = nbformat.reads(raw, as_version=4)  # type: ignore[no-untyped-call]
    nbformat.validate(saved)
    assert "widgets" not in saved.metadata
    for cell in saved.cells:
        assert "execution" not in cell.metadata
        assert not [one for one in cell.get("outputs", []) if one.output_type == "error"]


def test_the_saved_quick_start_shows_its_pictures() -> None:
    """FIELD, notebooks 3: opened without a kernel, every fork has its page and its picture."""
    saved = nbformat.read(QUICKSTART, as_version=4)  # type: ignore[no-untyped-call]
    forks = [one for one in saved.cells if one.cell_type == "code" and "%fork 22" in one.source]
    assert len(forks) == 3
    for cell in forks:
        *_, last = cell.outputs
        assert {"text/html", "image/png", "text/plain"} <= set(last.data)


def write(folder: Path, name: str, *cells: str) -> None:
    made = new_notebook(cells=[new_code_cell(cell) for cell in cells])  # type: ignore[no-untyped-call]
    nbformat.write(made, folder / f"{name}.ipynb")  # type: ignore[no-untyped-call]


def test_what_makes_a_notebook_red(checkout: Path) -> None:
    """FIELD, notebooks 1, 6: a usage error that is only a line on stderr; a kernel that died.

    Without the conftest.py of the notebooks the first would pass, and the second would be waited
    for until the cell's time is over, 2000 s.
    """
    write(checkout, "usage", "print(1)", "%no_such_magic", "print(2)")
    write(checkout, "dead", "import os, signal", "os.kill(os.getpid(), signal.SIGKILL)")
    options = [
        "-p",
        "no:cacheprovider",
        "-c",
        os.devnull,
        "--rootdir",
        str(checkout),
        "--nbval-lax",
    ]
    command = [sys.executable, "-m", "pytest", *options, "usage.ipynb", "dead.ipynb"]
    # The store of these tests is none of theirs.
    env = {key: value for key, value in os.environ.items() if key != "BRANCHKIT_STORE"}
    done = subprocess.run(
        command, cwd=checkout, env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1, done.stderr
    assert "the cell printed: UsageError" in done.stdout
    assert "the kernel died" in done.stdout
    assert re.search(r"2 failed, 3 passed", done.stdout), done.stdout
