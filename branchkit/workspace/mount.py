"""The client's side: `Workspaces` of one store directory, and their branches.

With FUSE a daemon serves them (started here when there is none, shared by every process that opens
the same store); without, `materialize.Copies` does the same work in this process.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Literal

from branchkit.errors import DaemonGone, FuseMissing, UsageError
from branchkit.workspace import base as bases
from branchkit.workspace.catalog import Snapshot
from branchkit.workspace.collect import Freed
from branchkit.workspace.compare import Change
from branchkit.workspace.materialize import Copies
from branchkit.workspace.probe import probe
from branchkit.workspace.remote import Remote, daemon, wait_for_end
from branchkit.workspace.space import cap_from_environment
from branchkit.workspace.store import Store, prepare


class Branch:
    """One workspace: ``path`` is a directory that any process may read and write."""

    def __init__(self, door: Remote | Copies, name: str, path: Path) -> None:
        self._door = door
        self.name = name
        self.path = path

    def __repr__(self) -> str:
        return f"Branch({self.name!r})"

    def freeze(self) -> Snapshot:
        """A snapshot of the branch as it is, durable when this returns.

        What programs have written or mapped is pulled out of the kernel first. A branch without
        changes gives its current snapshot (R35).
        """
        return self._door.freeze(self.name)

    def tree_hash(self) -> str:
        """The Merkle hash of the branch as it is, from what changed only."""
        return self._door.tree_hash(self.name)

    def diff(self) -> list[Change]:
        """What differs from the base or snapshot that the branch was created from, sorted."""
        return self._door.diff(self.name)

    def drop(self) -> None:
        """Remove the branch; its snapshots stay."""
        self._door.drop(self.name)


class Workspaces:
    """All bases, snapshots and branches of one store directory."""

    def __init__(self, store: Path, door: Remote | Copies, reason: str) -> None:
        self.store = store
        self.reason = reason
        self._door = door

    @classmethod
    def open(
        cls,
        store: Path,
        *,
        backend: Literal["auto", "fuse", "copy"] = "auto",
        linger_s: float = 30.0,
        cap_bytes: int | None = None,
    ) -> Workspaces:
        """The workspaces of ``store``, which is made if it is new.

        ``auto`` takes FUSE if it works and says in ``reason`` why it did not. A daemon that is
        started here leaves ``linger_s`` seconds after its last client. ``cap_bytes`` (or the
        environment's BRANCHKIT_STORE_CAP) is what branches and snapshots may take of the disk:
        beyond it writers get ENOSPC, callers DiskFull.
        """
        cap = cap_from_environment() if cap_bytes is None else cap_bytes
        made = cls._opened(store, backend, linger_s)
        if cap is not None:
            made._door.limit(cap)
        return made

    @classmethod
    def _opened(
        cls, store: Path, backend: Literal["auto", "fuse", "copy"], linger_s: float
    ) -> Workspaces:
        if backend not in ("auto", "fuse", "copy"):
            raise UsageError(f"unknown backend {backend!r}", hint="one of auto, fuse, copy")
        path = prepare(Path(store))
        if backend == "copy":
            return cls(path, Copies(path), "backend='copy' was asked for")
        found = probe()
        if not found.ok:
            if backend == "fuse":
                raise FuseMissing(found.detail, hint=found.remedy)
            return cls(path, Copies(path), found.detail)
        try:
            return cls(path, daemon(path, linger_s), "")
        except FuseMissing as error:
            if backend == "fuse":
                raise
            return cls(path, Copies(path), error.message)

    @property
    def backend(self) -> Literal["fuse", "copy"]:
        """What serves these workspaces."""
        return "fuse" if isinstance(self._door, Remote) else "copy"

    def __enter__(self) -> Workspaces:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def add_base(self, directory: Path) -> str:
        """The id of ``directory`` as a base; the same tree has the same id everywhere.

        Reads and hashes what it has not seen before. The directory is never written, and must not
        be changed by others as long as branches stand on it.
        """
        resolved = Path(directory).resolve()
        bases.refuse(resolved, self.store)
        base_id = bases.add(resolved, self.store)
        self._door.register_base(base_id)
        return base_id

    def register_base(self, base_id: str) -> None:
        """Take note of a base whose files were put into the store (`portable.adopt`)."""
        self._door.register_base(base_id)

    def register_snapshot(self, row: dict[str, object]) -> None:
        """Take note of a snapshot whose layer was put into the store (`portable.adopt`)."""
        self._door.register_snapshot(row)

    def create(self, name: str, *, base: str | None = None, snapshot: str | None = None) -> Branch:
        """A new branch that looks like ``base`` or ``snapshot``."""
        self._door.create(name, base, snapshot)
        return self._branch(name)

    def branch(self, name: str) -> Branch:
        """The branch ``name``."""
        return Branch(self._door, name, self._door.where(name))

    def _branch(self, name: str) -> Branch:
        if isinstance(self._door, Remote):  # it was just made: no need to ask
            return Branch(self._door, name, self.store / "mnt" / name)
        return self.branch(name)

    def branches(self) -> list[Branch]:
        """All branches, by name."""
        return [self._branch(name) for name in self._door.names()]

    def gc(self, keep: Collection[str] | None = None) -> Freed:
        """Remove what no branch and no snapshot in ``keep`` needs; None keeps all snapshots.

        A snapshot needs those that it was made from. Bases are left alone.
        """
        return self._door.gc(keep)

    def snapshot(self, snapshot_id: str) -> Snapshot:
        """What is known of a snapshot."""
        return self._door.snapshot(snapshot_id)

    def known(self, snapshots: Collection[str]) -> set[str]:
        """Those of ``snapshots`` that this store has."""
        store = Store(self.store, writable=False)
        try:
            return set(snapshots) & store.snapshots.keys()
        finally:
            store.close()

    def close(self) -> None:
        """Let go of the store; branches and snapshots stay in it."""
        self._door.close()

    def pin(self) -> int:
        """Keep the daemon when its clients go (`branchkit mount`); returns its pid."""
        if isinstance(self._door, Copies):
            return os.getpid()  # nothing serves, so nothing has to be kept
        return int(self._door.call("pin")["pid"])

    def stop(self) -> None:
        """Bring everything to the disk, unmount and end the daemon (`branchkit umount`)."""
        if isinstance(self._door, Remote):
            with suppress(ProcessLookupError):  # it left first: the end is the same
                process = os.pidfd_open(self._door.pid)
                try:
                    with suppress(DaemonGone):
                        self._door.call("stop", again=False)
                    wait_for_end(process, self.store)
                finally:
                    os.close(process)
        self._door.close()
