"""Layers that were merged into others: what is left of them, and until when."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from branchkit import disk
from branchkit.workspace.branch import Tally
from branchkit.workspace.catalog import Held
from branchkit.workspace.space import taken_bytes

READERS = "readers.lock"  # held shared by who reads snapshots without being the store's process


class Run(NamedTuple):
    """A snapshot that is kept and those right before it that are not, newest first."""

    kept: Held
    others: tuple[Held, ...]

    @property
    def layers(self) -> set[str]:
        """The layers that become one."""
        return {held.layer for held in (self.kept, *self.others)} - {""}


class Merged(NamedTuple):
    """The layer that takes the place of a run (see `compact`)."""

    run: Run
    layer: str
    log_bytes: int
    tally: Tally
    logged: frozenset[str]  # layers of the run whose logs hold parts of big files


class Superseded:
    """What `Store.strays` must leave alone, though the catalogue does not name it."""

    def __init__(self, store: Path) -> None:
        self._layers = store / "layers"
        self._lock = store / READERS
        self._former: dict[str, set[str]] = {}  # layer -> those that were merged into it
        self._logged: set[str] = set()
        self._unfreed: list[str] = []  # layers whose former ones are still there
        self.writing: set[str] = set()  # layers that are not in the catalogue yet

    def names(self) -> set[str]:
        """The layers to leave alone."""
        return self.writing.union(*self._former.values())

    def add(self, merged: Merged) -> None:
        """Take note that ``merged`` has taken its place."""
        self.writing.discard(merged.layer)
        layers = merged.run.layers
        self._former[merged.layer] = layers.union(*(self._former.pop(e, ()) for e in layers))
        self._unfreed = [each for each in self._unfreed if each not in layers]
        self._unfreed.append(merged.layer)
        self._logged |= merged.logged

    def pop(self, layer: str) -> list[Path]:
        """``layer`` goes: what holds its big contents under their former names."""
        former = self._former.pop(layer, set())
        return [self._layers / (f"{one}.log" if log else one) for one in former for log in (0, 1)]

    @property
    def is_free(self) -> bool:
        """Whether nothing is left of what was merged but names of what is still wanted."""
        return not self._unfreed and not self._logged

    def free(self) -> int:
        """Remove what merged layers left, unless another process reads it; returns its bytes.

        Big contents that are still wanted keep their former names too, for branches that were
        loaded before the merge; they are names of the same file, so they take no space. So do the
        logs that hold parts of them.
        """
        freed_bytes = 0
        with self.no_readers() as alone:
            while alone and self._unfreed:
                new = self._unfreed.pop()
                for former in self._former.get(new, ()):
                    for path in (*self._log(former), *self._dead(former, new)):
                        freed_bytes += taken_bytes(path)
                        path.unlink(missing_ok=True)
                        disk.crash_point("workspace.compact.removed")
        return freed_bytes

    def _log(self, former: str) -> list[Path]:
        return [] if former in self._logged else [self._layers / f"{former}.log"]

    def _dead(self, former: str, new: str) -> Iterator[Path]:
        """Contents in layer ``former`` that the layer ``new`` does not have."""
        for path in list((self._layers / former).glob("*")):
            now = self._layers / new / path.name
            if not (now.exists() and now.samefile(path)):
                yield path

    @contextmanager
    def no_readers(self) -> Iterator[bool]:
        """Whether no other process reads snapshots; as long as the block runs none begins to."""
        fd = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            yield False
            return
        try:
            yield True
        finally:
            os.close(fd)

    def read(self) -> int:
        """A descriptor that says, until it is closed, that this process reads snapshots."""
        fd = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(fd, fcntl.LOCK_SH)
        return fd
