"""Layer logs made ahead of their use, so that a freeze need not wait for a directory to be synced.

Layers are numbered in order, so the next names are known. A log that was made here is empty and
its name is on stable storage already; any other is brought there by the first sync that needs it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from branchkit import disk
from branchkit.errors import DiskFull

AHEAD = 32  # a branch takes one when it is made and one at each freeze

_log = logging.getLogger("branchkit.workspace")


class Spares:
    """Which layer logs have a durable name."""

    def __init__(self, layers: Path) -> None:
        self._layers = layers
        self._durable: set[str] = set()
        self._asked = 0

    def ensure(self, layer: str) -> None:
        """Return once the name of the log of ``layer``, which exists, is on stable storage."""
        if layer not in self._durable:
            disk.fsync_dir(self._layers)
            self._durable.add(layer)

    def forget(self, layer: str) -> None:
        """The log of ``layer`` was removed."""
        self._durable.discard(layer)

    def refill(self, newest: int) -> tuple[Callable[[], None], Callable[[], None]] | None:
        """What makes logs beyond layer ``newest``: a part for any thread, then one for this one.

        None while there are enough.
        """
        if newest + AHEAD // 2 < self._asked:
            return None
        first, self._asked = max(newest, self._asked) + 1, newest + AHEAD
        layers = [str(number) for number in range(first, self._asked + 1)]
        made: list[str] = []
        return lambda: made.extend(self._make(layers)), lambda: self._durable.update(made)

    def _make(self, layers: Sequence[str]) -> Sequence[str]:
        try:
            for layer in layers:
                os.close(disk.open_append(self._layers / f"{layer}.log"))
            disk.fsync_dir(self._layers)
        except (OSError, DiskFull) as error:
            _log.warning("no logs could be made ahead: %s", error)
            return ()
        return layers
