"""What makes a notebook red under nbval: also a usage error on stderr, and a kernel that died.

IPython prints its own UsageError (an unknown magic) to stderr and carries on, so nbval would call
such a cell passed. A dead kernel would be waited for until the cell's time is over (nbval#151).
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from queue import Empty
from typing import Any

import nbval.kernel
import pytest
from nbval.plugin import IPyNbCell

from branchkit.workspace import Workspaces

CELL_TIMEOUT_S = 900.0  # the local model on two cores that others use as well
ALIVE_S = 1.0  # how often a kernel that does not answer is looked at

_await_reply = nbval.kernel.RunningKernel.await_reply
_folder = pytest.StashKey[Path]()


def pytest_configure(config: pytest.Config) -> None:
    """A store that is gone afterwards, and no progress in outputs that are compared."""
    config.stash[_folder] = folder = Path(tempfile.mkdtemp(prefix="branchkit-notebooks-"))
    os.environ["BRANCHKIT_STORE"] = str(folder / "store")
    os.environ["CI"] = "1"
    nbval.kernel.RunningKernel.await_reply = await_reply_of_living


def pytest_unconfigure(config: pytest.Config) -> None:
    """End what serves the store."""
    folder = config.stash[_folder]
    if (folder / "store").exists():
        with Workspaces.open(folder / "store") as workspaces:
            workspaces.stop()
    shutil.rmtree(folder)


def await_reply_of_living(kernel: Any, msg_id: str, timeout: float | None = None) -> Any:
    """The reply as ever; RuntimeError within seconds when the kernel has died."""
    waited_s = 0.0
    while True:
        try:
            return _await_reply(kernel, msg_id, timeout=ALIVE_S)
        except Empty:
            waited_s += ALIVE_S
            if not kernel.is_alive():
                raise RuntimeError("the kernel died while it ran this cell") from None
            if timeout is not None and waited_s >= timeout:
                raise


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Cells may take longer than a test: one asks a local model for dozens of replies."""
    for item in items:
        if isinstance(item, IPyNbCell):
            item.add_marker(pytest.mark.timeout(CELL_TIMEOUT_S))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fail a cell that says UsageError, which to nbval is only a line on stderr."""
    yield
    outputs = (getattr(item, "test_outputs", None) or []) if isinstance(item, IPyNbCell) else []
    for output in outputs:
        if output.get("name") == "stderr" and "UsageError" in output.get("text", ""):
            pytest.fail(f"the cell printed: {output['text'].strip()}", pytrace=False)
