"""Progress of a long call in one display that is updated in place; its last update is the summary.

Silent where ``CI`` is set and where there is no kernel: a log needs no hundred lines, and a stored
output must be the same each run (no time is shown for the same reason).
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from IPython.display import DisplayHandle

    from branchkit.branch.api import Run
    from branchkit.branch.comparison import Comparison

MIN_PAUSE_S = 0.1  # between two updates: a fork of a thousand branches must not flood the page


class Progress:
    """``update`` goes to the call; leaving the ``with`` by an error says that it stopped."""

    def __init__(self, title: str, *, things: str, note: str = "") -> None:
        self._title, self._things = title, things
        self._note = f", {note}" if note else ""
        self._handle: DisplayHandle | None = None
        self._shown_at_s = 0.0
        self._done = False

    def __enter__(self) -> Progress:
        if _wanted():
            from IPython.display import display

            first = _bundle(f"{self._title}: starting{self._note}")
            self._handle = display(first, raw=True, display_id=True)
        return self

    def update(self, done: int, total: int, what: str) -> None:
        """Show how far it is; called on the cell's thread only."""
        now_s = time.monotonic()
        if now_s - self._shown_at_s >= MIN_PAUSE_S:
            self._shown_at_s = now_s
            width = 24 * done // max(total, 1)
            bar = "█" * width + "·" * (24 - width)
            self._show(f"{self._title}: {bar} {done} of {total} {self._things}{self._note}; {what}")

    def finish(self, summary: str) -> None:
        """The summary, which stays."""
        self._done = True
        self._show(f"{self._title}: {summary}")

    def __exit__(self, *_error: object) -> None:
        if not self._done:
            self._show(f"{self._title}: stopped before it had a result")

    def _show(self, text: str) -> None:
        if self._handle is not None:
            self._handle.update(_bundle(text), raw=True)


def fork_progress(
    run: Run, turn: int, swaps: Sequence[str], *, n: int, options: dict[str, Any]
) -> Progress:
    """The progress of a fork, which says from the start what it may cost."""
    note = _calls(run, turn, swaps, n=n, options=options)
    return Progress(f"fork {turn}", things="branches", note=note)


def fork_summary(found: Comparison) -> str:
    """How many branches ended, and what is missing."""
    total = sum(plan.n for plan in found.plans)
    lost = sum(result.error is not None for result in found.results)
    return (
        f"{len(found.results)} of {total} branches ended"
        + (", interrupted: what follows is partial" if found.partial else "")
        + (f", {lost} could not be run" if lost else "")
    )


def _bundle(text: str) -> dict[str, str]:
    return {"text/plain": text}


def _wanted() -> bool:
    if os.environ.get("CI") or "IPython" not in sys.modules:
        return False
    from IPython.core.getipython import get_ipython

    return getattr(get_ipython(), "kernel", None) is not None


def _calls(run: Run, turn: int, swaps: Sequence[str], *, n: int, options: dict[str, Any]) -> str:
    from branchkit.branch.fork import Options, estimate

    known = {name: value for name, value in options.items() if name in Options._fields}
    most = estimate(run.recorded, turn, swaps, Options(**{**known, "n": n}))
    return f"at most {max(most, 0)} model calls"
