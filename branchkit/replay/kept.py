"""What journals need of a store: the snapshots that they name, theirs and their branches'."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from branchkit.errors import UsageError
from branchkit.journal.events import Checkpoint, Forked
from branchkit.journal.file import SUFFIX, damage_error, read


def journals_in(places: Iterable[Path]) -> list[Path]:
    """The journals among ``places``, and those anywhere below the directories among them.

    Raises UsageError when a place holds none: whoever keeps nothing by a slip loses everything.
    """
    found: list[Path] = []
    for place in places:
        here = sorted(place.rglob(f"*{SUFFIX}")) if place.is_dir() else [place]
        if not here or not all(path.is_file() for path in here):
            raise UsageError(f"{place} holds no journal", hint=f"journals end in {SUFFIX}")
        found += here
    return found


def snapshots_named(journals: Iterable[Path]) -> set[str]:
    """The ids of all workspace snapshots that ``journals`` name. Raises JournalDamaged."""
    named: set[str] = set()
    for path in journals:
        events, damage = read(path)
        if damage:
            raise damage_error(path, damage[0])
        for event in events:
            if isinstance(event.payload, Checkpoint | Forked) and event.payload.snapshot:
                named.add(event.payload.snapshot)
    return named
