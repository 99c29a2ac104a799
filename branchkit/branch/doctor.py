"""``branchkit doctor``: what this machine has, tried for real, and the remedy for what it lacks."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from importlib import util
from typing import NamedTuple

from branchkit import __version__, workspace
from branchkit.errors import DependencyMissing
from branchkit.harness import bubblewrap

_EXTRAS = {
    "notebook": ("jupyterlab", "ipywidgets", "anywidget", "plotly", "matplotlib"),
}


class Check(NamedTuple):
    """One finding. ``remedy`` is a command or an advice, empty where nothing is wrong."""

    name: str
    ok: bool
    detail: str
    remedy: str


def checks() -> list[Check]:
    """Every check, in the order in which a first user meets what it is about."""
    return [
        _python(),
        _git(),
        Check("fuse", *workspace.probe()),
        Check("bubblewrap", *bubblewrap.probe()),
        *(_extra(name, modules) for name, modules in _EXTRAS.items()),
        _local_model(),
        _key(),
        _disk(),
    ]


def _python() -> Check:
    ok = sys.version_info >= (3, 11)
    remedy = "" if ok else "install Python 3.11 or newer"
    return Check("python", ok, f"{platform.python_version()}, branchkit {__version__}", remedy)


def _git() -> Check:
    path = shutil.which("git")
    remedy = "" if path else "apt-get install git"
    return Check("git", path is not None, path or "not found", remedy)


def _extra(name: str, modules: tuple[str, ...]) -> Check:
    missing = [module for module in modules if util.find_spec(module) is None]
    if not missing:
        return Check(name, True, "installed", "")
    remedy = f"pip install 'branchkit-jupyter[{name}]'"
    return Check(name, False, f"{', '.join(missing)} not installed", remedy)


def _local_model() -> Check:
    from branchkit.harness.local_model import INSTALL

    problem = local_model_problem()
    if problem is not None:
        return Check("local model", False, problem, INSTALL)
    return Check("local model", True, "local:smollm2, weights and server are installed", "")


def local_model_problem() -> str | None:
    """Why ``local:smollm2`` cannot be asked here; None if it can."""
    from branchkit.harness.local_model import weights

    try:
        weights()
    except DependencyMissing as error:
        return error.message
    return None if util.find_spec("xllamacpp") else "xllamacpp is not installed"


def _key() -> Check:
    known = bool(os.environ.get("OPENAI_API_KEY"))
    detail = "OPENAI_API_KEY is set" if known else "no OPENAI_API_KEY: only local models answer"
    return Check("hosted models", True, detail, "")


def _disk() -> Check:
    free = shutil.disk_usage(".").free
    ok = free > 1 << 30
    remedy = "" if ok else "free some space, or point BRANCHKIT_STORE elsewhere"
    return Check("disk", ok, f"{free >> 30} GiB free here", remedy)
