"""One store, one IPython and one fork of the sample for all tests of this folder."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell
from kernels import ROOT, SAMPLE, Kernel, kernel
from traitlets.config import Config

from branchkit.workspace import Workspaces


@pytest.fixture(scope="package")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The store of these tests; its daemon is stopped at the end."""
    folder = tmp_path_factory.mktemp("notebook")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BRANCHKIT_STORE", str(folder / "store"))
        patch.setenv("IPYTHONDIR", str(folder / "ipython"))
        yield folder / "store"
        Workspaces.open(folder / "store").stop()


@pytest.fixture(scope="package")
def plain_shell(store: Path) -> Iterator[InteractiveShell]:
    """An IPython as in a terminal, with the extension loaded."""
    settings = Config()
    settings.HistoryManager.enabled = False
    shell = InteractiveShell.instance(config=settings)
    own = shell.magics_manager.lsmagic()
    shell.user_ns["OWN_MAGICS"] = {*own["line"], *own["cell"]}
    shell.run_cell("%load_ext branchkit").raise_error()
    yield shell
    shell.run_cell("from branchkit.notebook.session import SESSION; SESSION.run.close()")
    InteractiveShell.clear_instance()


@pytest.fixture
def shell(plain_shell: InteractiveShell) -> InteractiveShell:
    """The same with the sample open."""
    plain_shell.run_cell(f"run = %journal {SAMPLE}").raise_error()
    return plain_shell


@pytest.fixture(scope="package")
def comparison(store: Path) -> Iterator[Any]:
    """A fork of the sample: three branches with the swap, three without."""
    import branchkit

    with branchkit.open(SAMPLE) as run:
        yield run.fork(22, swap="truncation=none", n=3, check="true")


@pytest.fixture(scope="package")
def living(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    """A kernel with the extension loaded and the sample open."""
    with kernel(tmp_path_factory.mktemp("kernel"), CI="1") as found:
        found.printed("%load_ext branchkit")
        found.printed(f"run = %journal {SAMPLE}")
        yield found


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with the notebooks' conftest.py, for notebooks that a test writes."""
    shutil.copy(ROOT / "notebooks" / "conftest.py", tmp_path / "conftest.py")
    return tmp_path
