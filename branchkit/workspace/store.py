"""A workspace store on disk: its catalogue, bases, snapshots and branches.

    version          "branchkit-workspace 2"
    catalog.log      see `catalog`
    bases/           <id>.json, <id>.manifest, <id>/ (an imported base), sums/ (see `sums`)
    reserve          space for removals on a full disk
    layers/          <layer>.log, <layer>/<fid> (contents over 64 KiB)
    mnt/ · copies/   where branches are seen: FUSE mount, or plain copies

One process writes a store (the daemon, or the holder of ``store.lock`` when there is no FUSE). Any
process may read snapshots: they never change.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from branchkit import disk
from branchkit.errors import UsageError, WorkspaceError
from branchkit.workspace import hashes, log
from branchkit.workspace.base import Base
from branchkit.workspace.branch import Care, Live, replay
from branchkit.workspace.catalog import Catalog, Held, Named, Snapshot, snapshot_row
from branchkit.workspace.content import Contents
from branchkit.workspace.kept import Kept
from branchkit.workspace.layers import FID_BITS, Frozen, Tree
from branchkit.workspace.merkle import Merkle
from branchkit.workspace.space import Space, taken_bytes
from branchkit.workspace.spares import Spares

VERSION = "branchkit-workspace 2\n"
NAME_BYTES = 200
_DIRECTORIES = ("bases", "layers", "mnt", "copies")


def prepare(path: Path) -> Path:
    """Make ``path`` a store, or check that it is one of this version; returns it resolved."""
    path.mkdir(parents=True, exist_ok=True)
    path = path.resolve()
    version = path / "version"
    if not version.exists():
        _refuse_foreign(path)
        _make_store(path, version)
    found = version.read_text()
    if found != VERSION:
        raise WorkspaceError(
            f"{path} is a store of version {found.strip()!r}, this is {VERSION.strip()!r}",
            hint="open it with the branchkit that made it, or start a new store",
        )
    return path


def _refuse_foreign(path: Path) -> None:
    """Raise UsageError when ``path`` has folders of our names that are somebody else's.

    Other parts of branchkit keep blobs and the like in the same directory: those may be there.
    """
    for name in _DIRECTORIES:
        if (path / name).exists() and not ((path / name).is_dir() and _is_empty(path / name)):
            raise UsageError(
                f"{path} is no workspace store, and its {name!r} would be in the way of one",
                hint="name an empty or a new directory as store",
            )


def _is_empty(directory: Path) -> bool:
    return next(directory.iterdir(), None) is None


def _make_store(path: Path, version: Path) -> None:
    """Under ``open.lock``: several processes may find that there is no store yet."""
    with hold(path / "open.lock"):
        if not version.exists():
            for name in _DIRECTORIES:
                (path / name).mkdir(exist_ok=True)
            disk.write_durably(version, VERSION.encode())  # last: it says that the rest is there


@contextmanager
def hold(path: Path) -> Iterator[None]:
    """Have the exclusive lock ``path``; waits for it, gives it back when the block ends."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


class Store:
    """The catalogue in memory, and what was loaded of the layers."""

    def __init__(self, path: Path, *, writable: bool = True, kept: Kept | None = None) -> None:
        """``kept``: what the kernel holds from before a restart of the daemon."""
        self.path = path
        self.layers = path / "layers"
        self.spares = Spares(self.layers)
        self.space = Space(self.layers)
        self._bases: dict[str, Base] = {}
        self._frozen: dict[str, Frozen] = {}
        self._live: dict[str, Live] = {}
        self._kept = kept
        self._reserve = log.Reserve(path / "reserve")
        if writable:
            self._reserve.fill()
        self.catalog = Catalog(path, self._reserve, writable=writable)
        still_open = kept.open_branches() if kept else set()
        dropped = self.catalog.dropped
        self._dropped = {number: dropped[number] for number in still_open & dropped.keys()}
        if writable:
            self._sweep()

    @property
    def snapshots(self) -> Mapping[str, Held]:
        """All snapshots by id."""
        return self.catalog.snapshots

    @property
    def named(self) -> Mapping[str, Named]:
        """All branches by name."""
        return self.catalog.named

    def _sweep(self) -> None:
        """Remove layers that were dropped while in use, and those that were made ahead."""
        for layer in self.strays(ahead=True):
            self.discard(layer)

    def strays(self, *, ahead: bool = False) -> set[str]:
        """Layers that no snapshot and no branch has; with those made ``ahead`` or without."""
        found = {e.stem for e in self.layers.iterdir() if e.stem.isdecimal()}
        unused = found - self.catalog.layers() - {row.layer for row in self._dropped.values()}
        return unused if ahead else {each for each in unused if int(each) <= self.catalog.layer}

    def still_open(self) -> list[Named]:
        """Dropped branches in which somebody has files open."""
        return list(self._dropped.values())

    def forget(self, snapshots: Iterable[str]) -> None:
        """Give back what was loaded of snapshots that are no more."""
        for each in snapshots:
            self._frozen.pop(each, None)

    def close(self) -> None:
        """Close every descriptor."""
        for live in self._live.values():
            live.close()
        self._live.clear()
        self.catalog.close()

    def register_base(self, base_id: str) -> None:
        """Take note of a base whose files are in ``bases/``."""
        if base_id not in self.catalog.bases:
            self.catalog.record({"kind": "base", "id": base_id}, durable=True)

    def register_snapshot(self, row: Mapping[str, Any]) -> None:
        """Take note of an imported snapshot whose layer is in ``layers/``."""
        if row["snapshot"][0] not in self.snapshots:
            self.catalog.record({**row, "kind": "snapshot"}, durable=True)

    def has_base(self, base_id: str) -> bool:
        """Whether the store knows this base."""
        return base_id in self.catalog.bases

    def base(self, base_id: str) -> Base:
        """A base by its id."""
        if base_id not in self.catalog.bases:
            raise UsageError(f"no base {base_id} in {self.path}", hint=self._known_bases())
        if base_id not in self._bases:
            self._bases[base_id] = Base(base_id, self.path)
        return self._bases[base_id]

    def view(self, base_id: str, snapshot_id: str | None) -> Live:
        """A snapshot (or a base itself) as a branch that nobody writes."""
        frozen = self.frozen(snapshot_id) if snapshot_id else None
        return Live(self.layers, self.base(base_id), "", frozen)

    def held(self, snapshot_id: str) -> Held:
        """A snapshot by its id."""
        held = self.snapshots.get(snapshot_id)
        if held is None:
            raise UsageError(
                f"no snapshot {snapshot_id} in {self.path}",
                hint="unpack the run's .pack into this store, or name another store",
            )
        return held

    def create(
        self, name: str, *, base: str | None, snapshot: str | None, request: str = ""
    ) -> Named:
        """A new branch on a base or a snapshot. O(1) once its snapshot is loaded.

        ``request`` stands in the row: a client that lost its daemon asks for the same again.
        """
        _check_name(name)
        if name in self.named:
            raise UsageError(
                f"there is a branch {name!r} already", hint="drop it, or choose a name"
            )
        if (base is None) == (snapshot is None):
            raise UsageError("a branch starts from a base or a snapshot", hint="give one of them")
        if snapshot is not None:
            base = self.held(snapshot).snapshot.base
            self.frozen(snapshot)
        self.base(base or "")
        number, layer = self.catalog.number + 1, str(self.catalog.layer + 1)
        row = Named(name, number, base or "", snapshot, snapshot, layer)
        self.catalog.record({"kind": "branch", "branch": row, "request": request})
        return row

    def branch(self, name: str) -> Named:
        """A branch by its name."""
        found = self.named.get(name)
        if found is None:
            raise UsageError(
                f"no branch {name!r} in {self.path}",
                hint="branches: " + (", ".join(sorted(self.named)) or "none"),
            )
        return found

    def live(self, name: str) -> Live:
        """The loaded branch ``name``."""
        live = self._live.get(name)
        if live is None:
            live = self._live[name] = self.load(self.branch(name))
        return live

    def load(self, row: Named) -> Live:
        """A branch from its layers."""
        frozen = self.frozen(row.current) if row.current else None
        care = Care(self._reserve, self.spares, self.space)

        def is_held(fid: int) -> bool:
            return self._kept is not None and self._kept.holds(row.number << FID_BITS | fid)

        return Live(self.layers, self.base(row.base), row.layer, frozen, care, is_held)

    def drop(self, name: str, request: str = "") -> Named:
        """Forget a branch; its snapshots stay. Its top layer goes with `discard`."""
        row = self.branch(name)
        drop = {"kind": "drop", "name": name, "request": request}
        self.catalog.record(drop, durable=True, frees=True)
        self._live.pop(name, None)
        self._dropped[row.number] = row
        return row

    def close_live(self, name: str) -> None:
        """Bring a loaded branch to the disk and close it."""
        live = self._live.pop(name, None)
        if live is not None:
            live.sync()
            live.close()

    def discard_dropped(self, number: int) -> None:
        """Remove the top layer of a dropped branch, once nobody has files of it open."""
        self.discard(self._dropped.pop(number).layer)

    def discard(self, layer: str) -> None:
        """Remove a layer that nobody needs."""
        log_path, folder = self.layers / f"{layer}.log", self.layers / layer
        if self.space.cap_bytes is not None:
            self.space.add(-taken_bytes(log_path) - taken_bytes(folder))
        self.spares.forget(layer)
        log_path.unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)

    def freeze(self, name: str, request: str = "") -> Snapshot:
        """A durable snapshot of the branch; the current one when nothing changed (R35)."""
        row, live = self.branch(name), self.live(name)
        if not live.tree.top:
            if row.current is not None:
                return self.held(row.current).snapshot
            return self._root_snapshot(row, live)
        tree_hash = hashes.render(live.digest())
        snapshot = Snapshot(_new_id(), row.current, row.base, tree_hash, *live.tally())
        held = Held(snapshot, row.layer, live.log_bytes())
        after = row._replace(current=snapshot.id, layer=str(self.catalog.layer + 1))
        made = {**snapshot_row(held, after), "request": request}
        live.seal(made)
        disk.crash_point("workspace.freeze.sealed")
        self.catalog.record(made)
        live.push(after.layer)
        self._frozen[snapshot.id] = live.tree.frozen()
        self._reserve.fill()
        return snapshot

    def _root_snapshot(self, row: Named, live: Live) -> Snapshot:
        """The snapshot of a base itself, one per base."""
        for held in self.snapshots.values():
            if held.snapshot.base == row.base and not held.layer and not held.snapshot.parent:
                after = row._replace(current=held.snapshot.id)
                self.catalog.record(snapshot_row(held, after), durable=True)
                return held.snapshot
        tree_hash = hashes.render(live.digest())
        snapshot = Snapshot(_new_id(), None, row.base, tree_hash, 0, 0)
        after = row._replace(current=snapshot.id)
        self.catalog.record(snapshot_row(Held(snapshot, "", 0), after), durable=True)
        return snapshot

    def frozen(self, snapshot_id: str) -> Frozen:
        """The layers of a snapshot, loaded from their logs at first use."""
        missing: list[Held] = []
        at: str | None = snapshot_id
        while at is not None and at not in self._frozen:
            missing.append(self.held(at))
            at = missing[-1].snapshot.parent
        for held in reversed(missing):
            parent = held.snapshot.parent
            self._frozen[held.snapshot.id] = self.thaw(
                held, self._frozen[parent] if parent else None
            )
        return self._frozen[snapshot_id]

    def thaw(self, held: Held, parent: Frozen | None) -> Frozen:
        """The layers of ``held`` on top of its parent's."""
        tree_base = self.base(held.snapshot.base)
        tree = Tree(tree_base, held.layer, parent)
        if held.layer:
            path = self.layers / f"{held.layer}.log"
            good_bytes = replay(tree, path)
            if good_bytes < held.log_bytes:
                raise WorkspaceError(
                    f"{path.name} of snapshot {held.snapshot.id} ends after {good_bytes} bytes, "
                    f"{held.log_bytes} were written",
                    hint="restore the store from its pack (`branchkit pack` made it)",
                )
            if tree.moved:  # written by a branchkit whose logs kept no digests
                Merkle(tree, tree_base, Contents(self.layers, tree_base)).digest()
            tree.push("")
        return tree.frozen()

    def _known_bases(self) -> str:
        return "bases: " + (", ".join(sorted(self.catalog.bases)) or "none yet, use add_base")


def _new_id() -> str:
    return "s" + secrets.token_hex(12)


def _check_name(name: str) -> None:
    raw = os.fsencode(name)
    if not raw or raw in (b".", b"..") or b"/" in raw or b"\0" in raw or len(raw) > NAME_BYTES:
        raise UsageError(
            f"{name!r} cannot be the name of a branch",
            hint=f"use 1 to {NAME_BYTES} bytes without a slash",
        )
