"""The events that a run builds on: what a resumed run set aside is history, not part of it."""

from __future__ import annotations

from collections.abc import Sequence

from branchkit.journal.events import Event, Resumed, TaskFinished
from branchkit.record.fold import ANNOTATIONS


def effective(events: Sequence[Event]) -> list[Event]:
    """The events that the harness made and that the run builds on, in order.

    Left out are what persons and recoveries added (annotations), what a ``Resumed`` set aside, and
    an end after which the run went on all the same.
    """
    kept: list[Event] = []
    for event in events:
        payload = event.payload
        if isinstance(payload, Resumed):
            while kept and kept[-1].seq > payload.continues_after:
                kept.pop()
        if isinstance(payload, ANNOTATIONS):
            continue
        if kept and isinstance(kept[-1].payload, TaskFinished):
            kept.pop()
        kept.append(event)
    return kept
