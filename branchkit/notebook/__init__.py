"""branchkit in a notebook: magics, their Python twins, and pictures of what a fork found.

    %load_ext branchkit                    from branchkit.notebook import journal, rewind, fork
    %journal FILE                          journal(FILE)
    %rewind 23                             rewind(23)
    %fork 22 --swap truncation=none -n 20  fork(22, swap="truncation=none", n=20)
    %when --check 'test -e notes.md'       when("test -e notes.md")

A twin takes variables where a magic takes words; both return the same objects. Everything is
imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from branchkit.notebook.cadence_chart import cadence_figure as cadence_figure
    from branchkit.notebook.charts import agreement_figure as agreement_figure
    from branchkit.notebook.charts import rates_figure as rates_figure
    from branchkit.notebook.going_on import approve as approve
    from branchkit.notebook.going_on import cadence as cadence
    from branchkit.notebook.going_on import calls as calls
    from branchkit.notebook.going_on import resume as resume
    from branchkit.notebook.going_on import settle as settle
    from branchkit.notebook.report import write_report as write_report
    from branchkit.notebook.session import blame as blame
    from branchkit.notebook.session import branches as branches
    from branchkit.notebook.session import commitment as commitment
    from branchkit.notebook.session import compare as compare
    from branchkit.notebook.session import fork as fork
    from branchkit.notebook.session import journal as journal
    from branchkit.notebook.session import replay as replay
    from branchkit.notebook.session import report as report
    from branchkit.notebook.session import rewind as rewind
    from branchkit.notebook.session import versions as versions
    from branchkit.notebook.session import when as when

__all__ = [
    "agreement_figure",
    "approve",
    "blame",
    "branches",
    "cadence",
    "cadence_figure",
    "calls",
    "commitment",
    "compare",
    "fork",
    "journal",
    "rates_figure",
    "replay",
    "report",
    "resume",
    "rewind",
    "settle",
    "versions",
    "when",
    "write_report",
]

_PLACES = {
    "agreement_figure": "charts",
    "approve": "going_on",
    "blame": "session",
    "branches": "session",
    "cadence": "going_on",
    "cadence_figure": "cadence_chart",
    "calls": "going_on",
    "commitment": "session",
    "compare": "session",
    "fork": "session",
    "journal": "session",
    "rates_figure": "charts",
    "replay": "session",
    "report": "session",
    "resume": "going_on",
    "rewind": "session",
    "settle": "going_on",
    "versions": "session",
    "when": "session",
    "write_report": "report",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'branchkit.notebook' has no attribute {name!r}")
    return getattr(import_module(f"branchkit.notebook.{_PLACES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PLACES])
