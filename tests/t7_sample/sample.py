"""The committed sample, and the check that its incident is about."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).resolve().parents[2] / "sample_journals" / "branch_cleanup"
JOURNAL = FOLDER / "branch_cleanup.journal.jsonl"
ANCHOR = (FOLDER / "branch_cleanup.head").read_text().strip()


def make_script() -> ModuleType:
    """``make.py`` as a module: the folder is no package."""
    spec = importlib.util.spec_from_file_location("make_branch_cleanup", FOLDER / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
