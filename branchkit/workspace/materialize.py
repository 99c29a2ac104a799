"""Branches as plain copies, where there is no FUSE: the same store, the same API, more disk.

A branch is a directory ``copies/<name>`` (shared extents where the file system has them). A freeze
scans it for what changed since the last scan (``copies/<name>.manifest``) and puts that into the
same layers that the daemon writes, so ids, hashes and the portable form are those of FUSE.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from branchkit import disk
from branchkit.errors import UsageError, WorkspaceError
from branchkit.workspace import compare, hashes, listing, scan
from branchkit.workspace.branch import Live
from branchkit.workspace.catalog import Snapshot
from branchkit.workspace.collect import Freed, collect
from branchkit.workspace.graft import graft
from branchkit.workspace.scan import Entry
from branchkit.workspace.store import Store, hold


class Copies:
    """The door to a store without a daemon; each call takes ``store.lock``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._cap_bytes: int | None = None
        self._shared = os.open(path / "daemon.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._shared, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._shared)
            raise WorkspaceError(
                f"{path} is served by a FUSE daemon",
                hint="open it with backend='auto', or end the daemon: branchkit umount",
            ) from None

    def close(self) -> None:
        """Let a daemon have the store; the copies stay."""
        if self._shared >= 0:
            os.close(self._shared)
            self._shared = -1

    @contextmanager
    def _store(self) -> Iterator[Store]:
        """The store, ours alone for the time of one call."""
        with hold(self.path / "store.lock"):
            store = Store(self.path)
            store.space.limit(self._cap_bytes)
            try:
                yield store
            finally:
                store.close()

    def _directory(self, name: str) -> Path:
        return self.path / "copies" / name

    def _manifest(self, name: str) -> Path:
        return self.path / "copies" / f"{name}.manifest"

    def where(self, name: str) -> Path:
        """The branch's directory; copied now if another backend made the branch."""
        directory = self._directory(name)
        with self._store() as store:
            live = store.live(name)
            if not self._manifest(name).exists():
                shutil.rmtree(directory, ignore_errors=True)  # a copy that was cut short
                self._copy_out(live, name)
        return directory

    def register_base(self, base_id: str) -> None:
        """See `Store.register_base`."""
        with self._store() as store:
            store.register_base(base_id)

    def register_snapshot(self, row: dict[str, object]) -> None:
        """See `Store.register_snapshot`."""
        with self._store() as store:
            store.register_snapshot(row)

    def create(self, name: str, base: str | None, snapshot: str | None) -> None:
        """A new branch and its copy."""
        if name.endswith(".manifest"):
            raise UsageError(f"{name!r} cannot be the name of a branch", hint="choose another name")
        with self._store() as store:
            store.create(name, base=base, snapshot=snapshot)
        self.where(name)

    def names(self) -> list[str]:
        """All branches."""
        with self._store() as store:
            return sorted(store.named)

    def snapshot(self, snapshot_id: str) -> Snapshot:
        """A snapshot by its id."""
        with self._store() as store:
            return store.held(snapshot_id).snapshot

    def freeze(self, name: str) -> Snapshot:
        """Scan, log, freeze: durable when it returns."""
        with self._absorbed(name) as store:
            return store.freeze(name)

    def tree_hash(self, name: str) -> str:
        """The Merkle hash of the branch as it is now; reads only what changed."""
        with self._absorbed(name) as store:
            return hashes.render(store.live(name).digest())

    def diff(self, name: str) -> list[compare.Change]:
        """What the branch changed, against what it was created from."""
        with self._absorbed(name) as store:
            row = store.branch(name)
            return compare.changes(store.view(row.base, row.origin), store.live(name))

    def gc(self, keep: Collection[str] | None) -> Freed:
        """See `Workspaces.gc`."""
        with self._store() as store:
            return collect(store, keep)

    def limit(self, cap_bytes: int) -> None:
        """Cap what snapshots take; the copies themselves are plain directories."""
        self._cap_bytes = cap_bytes

    def drop(self, name: str) -> None:
        """Remove the branch and its copy."""
        with self._store() as store:
            row = store.drop(name)
            store.discard_dropped(row.number)
        self._manifest(name).unlink(missing_ok=True)
        shutil.rmtree(self._directory(name), ignore_errors=True)

    @contextmanager
    def _absorbed(self, name: str) -> Iterator[Store]:
        """The store with what the copy holds now in the branch's top layer."""
        directory = self.where(name)
        with self._store() as store:
            self._remember(name, absorb(store, name, directory, self._manifest(name)))
            yield store

    def _remember(self, name: str, found: Sequence[Entry]) -> None:
        lines = [json.dumps(entry, separators=(",", ":")) for entry in found]
        disk.write_durably(self._manifest(name), "\n".join(lines).encode())

    def _copy_out(self, live: Live, name: str) -> None:
        directory = self._directory(name)
        listing.build(directory, list(listing.entries(live)), lambda e: listing.content(live, e))
        self._remember(name, scan.scan(directory))


def absorb(store: Store, name: str, directory: Path, manifest: Path) -> list[Entry]:
    """Log what changed in a copy since its ``manifest`` was written; returns what it holds now."""
    lines = manifest.read_bytes().splitlines()
    known = {entry.path: entry for entry in (Entry(*json.loads(line)) for line in lines)}
    found = scan.scan(directory, known)
    changed, removed = _differences(known, found)
    if changed or removed:
        graft(store.live(name), removed, changed, lambda entry: directory / entry.path)
    return found


def absorb_all(store: Store) -> None:
    """Take the copies of an earlier session without FUSE into their branches, and remove them."""
    for manifest in (store.path / "copies").glob("*.manifest"):
        directory = manifest.with_suffix("")
        if directory.name in store.named:
            absorb(store, directory.name, directory, manifest)
        manifest.unlink()
        shutil.rmtree(directory)


def _differences(
    known: Mapping[str, Entry], found: Sequence[Entry]
) -> tuple[list[Entry], set[str]]:
    """Entries that are new or not what they were, and paths that are gone."""
    changed = {
        e.path
        for e in found
        if e.path not in known or scan.portable(known[e.path]) != scan.portable(e)
    }
    # A new name of an old file comes with the other names, or it would become a file of its own.
    links = {e.link for e in found if e.link and e.path in changed}
    entries = [e for e in found if e.path in changed or e.link in links]
    return entries, known.keys() - {e.path for e in found}
