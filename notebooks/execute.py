"""Run notebooks and store their outputs: ``python notebooks/execute.py FILE.ipynb...``.

Outputs come out the same on every machine: no progress, no timing, no widget state, a store that is
gone afterwards. A cell that fails leaves the file as it was.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from branchkit.workspace import Workspaces

CELL_TIMEOUT_S = 600


def execute(path: Path) -> None:
    """Store what the cells of one notebook give."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=CELL_TIMEOUT_S,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
        store_widget_state=False,
        record_timing=False,
        coalesce_streams=True,  # else how a print was cut into messages stands in the file
    )
    client.execute()
    notebook.metadata.pop("widgets", None)
    # The rest of it is the version of whoever ran it last.
    notebook.metadata["language_info"] = {"name": "python"}
    nbformat.write(notebook, path)


def main() -> None:
    """Execute every file that was named."""
    os.environ["CI"] = "1"
    with tempfile.TemporaryDirectory(prefix="branchkit-notebooks-") as folder:
        store = Path(folder) / "store"
        os.environ["BRANCHKIT_STORE"] = str(store)
        try:
            for name in sys.argv[1:]:
                execute(Path(name))
        finally:
            if store.exists():
                Workspaces.open(store).stop()


if __name__ == "__main__":
    main()
