"""One JupyterLab, one browser, and the quick start in a short form for all tests of this folder."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from lab import NOTEBOOK, Place, chromium, lab

from branchkit.workspace import Workspaces

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="package")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """The short quick start, unrun, in a server of its own."""
    folder, state = tmp_path_factory.mktemp("lab"), tmp_path_factory.mktemp("lab-state")
    shutil.copytree(ROOT / "sample_journals", folder / "sample_journals")
    notebook = folder / NOTEBOOK
    notebook.parent.mkdir(parents=True)
    nbformat.write(shortened(), notebook)  # type: ignore[no-untyped-call]
    try:
        with lab(folder, state) as server, chromium(state / "profile") as browser:
            server.theme("light")
            yield Place(server, browser, notebook)
    finally:
        if (state / "store").exists():
            Workspaces.open(state / "store").stop()


def shortened() -> nbformat.NotebookNode:
    """The quick start up to its first fork, with few branches and no stored output."""
    found: nbformat.NotebookNode = nbformat.read(ROOT / NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]
    forks = [at for at, cell in enumerate(found.cells) if "= %fork" in cell.source]
    found.cells = found.cells[: forks[0] + 1]
    assert "-n 20" in found.cells[-1].source
    found.cells[-1].source = found.cells[-1].source.replace("-n 20", "-n 3")
    for cell in found.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    return found
