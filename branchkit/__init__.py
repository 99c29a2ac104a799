"""Counterfactual branching of agent runs: rewind a journal, fork it, and compare what happens.

    run = branchkit.open("sample_journals/branch_cleanup/branch_cleanup.journal.jsonl")
    run.rewind(23)                                  # what the model saw before reply 23
    run.fork(22, swap="truncation=none", n=20)      # one change, many branches, a control arm

Everything is imported when it is first used: importing this package costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from branchkit.boundary.contract import Key as Key
    from branchkit.boundary.contract import KeyMismatch as KeyMismatch
    from branchkit.boundary.contract import NoAnswer as NoAnswer
    from branchkit.boundary.contract import ProbeAnswer as ProbeAnswer
    from branchkit.branch.api import Run as Run
    from branchkit.branch.api import calibrate as calibrate
    from branchkit.branch.api import compare as compare
    from branchkit.branch.api import open_run as open  # noqa: A004  branchkit.open(path)
    from branchkit.durable.answers import approve as approve
    from branchkit.durable.answers import cancel as cancel
    from branchkit.durable.answers import settle as settle
    from branchkit.durable.own_loop import session as session
    from branchkit.durable.resume import resume as resume
    from branchkit.durable.states import calls as calls
    from branchkit.durable.wire import wire as wire
    from branchkit.harness.tools import tool as tool

__version__ = "0.1.0"  # the only place where it stands

__all__ = [
    "Key", "KeyMismatch", "NoAnswer", "ProbeAnswer", "Run", "approve", "calibrate", "calls",
    "cancel", "compare", "open", "resume", "session", "settle", "tool", "wire",
]  # fmt: skip

_PUBLIC = {
    "Key": ("branchkit.boundary.contract", "Key"),
    "KeyMismatch": ("branchkit.boundary.contract", "KeyMismatch"),
    "NoAnswer": ("branchkit.boundary.contract", "NoAnswer"),
    "ProbeAnswer": ("branchkit.boundary.contract", "ProbeAnswer"),
    "approve": ("branchkit.durable.answers", "approve"),
    "calls": ("branchkit.durable.states", "calls"),
    "cancel": ("branchkit.durable.answers", "cancel"),
    "resume": ("branchkit.durable.resume", "resume"),
    "settle": ("branchkit.durable.answers", "settle"),
    "Run": ("branchkit.branch.api", "Run"),
    "calibrate": ("branchkit.branch.api", "calibrate"),
    "compare": ("branchkit.branch.api", "compare"),
    "open": ("branchkit.branch.api", "open_run"),
    "session": ("branchkit.durable.own_loop", "session"),
    "tool": ("branchkit.harness.tools", "tool"),
    "wire": ("branchkit.durable.wire", "wire"),
}


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'branchkit' has no attribute {name!r}")
    from importlib import import_module

    module, attribute = _PUBLIC[name]
    return getattr(import_module(module), attribute)


def load_ipython_extension(ipython: Any) -> None:
    """``%load_ext branchkit``: register the magics; what they need is imported on first use."""
    from branchkit.notebook.magics import register

    register(ipython)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
