"""Layers that only led from one kept snapshot to the next, written as one.

A run of snapshots that nobody keeps and nothing forks from is merged into the first kept one after
it: what it holds of each inode, without what led there. Crash-safe at every point: the new layer is
complete and on stable storage before one row of the catalogue puts it in the place of the old ones;
what lies there unused (before: the new one, after: the old ones) goes when the store is opened.
Big contents move by name (a hard link, then the old names go), so they cost no copy and no space.
"""

from __future__ import annotations

import logging
import os
import stat
import sys
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path
from threading import Thread

from branchkit import disk
from branchkit.errors import BranchkitError
from branchkit.workspace import log, merkle
from branchkit.workspace.branch import Live, Tally
from branchkit.workspace.catalog import Catalog, Held
from branchkit.workspace.changes import (
    BELOW,
    HOST,
    INLINE,
    PIECES,
    Change,
    Leaves,
    State,
    Up,
    encode,
)
from branchkit.workspace.collect import Freed
from branchkit.workspace.content import pwrite_all
from branchkit.workspace.inode import Rec
from branchkit.workspace.layers import NEW_FIDS
from branchkit.workspace.places import Hosted, Logged, Piece, Pieces
from branchkit.workspace.scan import CHUNK_BYTES
from branchkit.workspace.store import Store
from branchkit.workspace.superseded import Merged, Run

NOTHING = Freed(0, 0)
WRITING_SWITCH_S = 0.0002  # the thread that writes gives way to requests of the kernel this often

_log = logging.getLogger("branchkit.workspace")


def roots(store: Store, keep: Collection[str]) -> set[str]:
    """The snapshots that somebody refers to: by ``keep``, or as start or state of a branch."""
    branches = [*store.named.values(), *store.still_open()]
    return {*keep, *(at for named in branches for at in (named.origin, named.current) if at)}


def runs(catalog: Catalog, kept: Collection[str]) -> list[Run]:
    """The runs that can be merged when only ``kept`` must stay as they are."""
    children = Counter(held.snapshot.parent for held in catalog.snapshots.values())
    found = []
    for held in catalog.snapshots.values():
        if held.snapshot.id not in kept and children[held.snapshot.id] == 1:
            continue  # it goes into a later one
        others: list[Held] = []
        at = held.snapshot.parent
        while at is not None and at not in kept and children[at] == 1:
            others.append(catalog.snapshots[at])
            at = others[-1].snapshot.parent
        if others:
            found.append(Run(held, tuple(others)))
    return found


def write(path: Path, run: Run, layer: str, in_use: frozenset[int] = frozenset()) -> Merged:
    """Write ``run`` as ``layer``; returns once all of it is on stable storage.

    Of inodes without a name those ``in_use`` are kept.

    Reads the store's files only, nothing in memory: any thread or process may do it. Whatever goes
    wrong (ENOSPC), the old layers are as they were.
    """
    store = Store(path, writable=False)
    try:
        live = store.view(run.kept.snapshot.base, run.kept.snapshot.id)
        target = log.Log(path / "layers" / f"{layer}.log")
        try:
            writer = _Writer(store, live, run, layer, target, in_use)
            tally = writer.write()
            target.sync()
            disk.fsync_dir(path / "layers")
            return Merged(run, layer, target.size_bytes, tally, frozenset(writer.logged))
        finally:
            target.close()
            live.close()
    finally:
        store.close()


class _Writer:
    """What one merge is about."""

    def __init__(
        self,
        store: Store,
        live: Live,
        run: Run,
        layer: str,
        target: log.Log,
        in_use: frozenset[int],
    ) -> None:
        self._in_use = in_use
        self._folder = store.layers / layer
        self._live = live
        self._run = run
        self._target = target
        parent = run.others[-1].snapshot.parent
        self._below = store.view(run.kept.snapshot.base, parent).tree
        self._is_alive: dict[int, bool] = {}
        self._children_of: dict[int, set[int]] = {}
        self._links: dict[int, Hosted] = {}
        self._copies: dict[int, list[Piece]] = {}
        self.logged: set[str] = set()  # layers whose logs hold parts of big files

    def write(self) -> Tally:
        """Every inode that the run changed and that can still be reached."""
        tree = self._live.tree
        records = {fid: rec for fid, rec in self._changed().items() if self._alive(fid)}
        for fid, rec in records.items():
            self._inode(fid, rec)
            disk.crash_point("workspace.compact.written")
        self._files()
        before = self._below.digests
        folders = {f: digest for f, digest in tree.digests.items() if before.get(f) != digest}
        kept = merkle.frame(folders, records, tree.next_fid)
        self._target.append(kept.value, kept.blob)
        files = [rec for rec in records.values() if not rec.is_dir and rec.parents]
        return Tally(len(files), sum(rec.size for rec in files if stat.S_ISREG(rec.mode)))

    def _changed(self) -> dict[int, Rec]:
        """The newest record of each inode in the layers of the run."""
        found: dict[int, Rec] = {}
        line = self._live.tree.line
        for held in (self._run.kept, *self._run.others):
            if held.layer and line is not None:
                found = {**line.layer, **found}
                line = line.before
        return found

    def _alive(self, fid: int) -> bool:
        """Whether a name still leads to ``fid``: a layer of the run may have removed the last.

        One that is open without a name is kept: whoever has it open may go on writing it.
        """
        known = self._is_alive.get(fid)
        if known is None:
            tree = self._live.tree
            try:
                parents = set(tree.get(fid).parents)
                known = fid == tree.root or (not parents and fid in self._in_use)
                known = known or any(
                    fid in self._children(parent) and self._alive(parent) for parent in parents
                )
            except KeyError:  # a directory that came and went within one layer
                known = False
            self._is_alive[fid] = known
        return known

    def _children(self, parent: int) -> set[int]:
        if parent not in self._children_of:
            self._children_of[parent] = set(self._live.tree.entries(parent).values())
        return self._children_of[parent]

    def _inode(self, fid: int, rec: Rec) -> None:
        """One frame; what only the base had comes with the path that it has there."""
        tree = self._live.tree
        names, blob = None, b""
        if rec.is_dir:
            names = {os.fsdecode(name): child for name, child in tree.entries(fid).items()}
        if isinstance(rec.data, bytearray):
            blob = bytes(rec.data)
        data, pieces = self._placed(fid, rec)
        changes: list[Change] = [Up(fid, tree.lower.path(fid))] if fid < NEW_FIDS else []
        changes.append(
            State(
                fid, rec.mode, rec.uid, rec.gid, rec.nlink, rec.rdev, rec.size,
                [rec.atime_ns, rec.mtime_ns, rec.ctime_ns], list(rec.parents),
                os.fsdecode(rec.name), os.fsdecode(rec.target), names,
                {os.fsdecode(n): value.hex() for n, value in tree.xattrs(fid).items()},
                data, pieces,
            )
        )  # fmt: skip
        self._target.append(encode(changes), blob)
        if rec.sums is not None:
            known = rec.sums.known(rec.size)
            self._target.append(encode([Leaves(fid, list(known))]), b"".join(known.values()))

    def _placed(self, fid: int, rec: Rec) -> tuple[str | None, list[tuple[int, int, str]]]:
        """Where the merged layer has the content of ``rec``; notes what files that takes."""
        data = rec.data
        if data is None or isinstance(data, bytearray):
            return (None if data is None else INLINE), []
        if isinstance(data, Pieces):
            pieces = [piece for piece in data.within(0, rec.size) if piece.place is not None]
        else:
            pieces = [Piece(0, rec.size, data)]
        marks = [BELOW if self._is_below(fid, piece) else HOST for piece in pieces]
        moved = [piece for piece, mark in zip(pieces, marks, strict=True) if mark == HOST]
        self.logged |= {p.place.layer for p in moved if isinstance(p.place, Logged)}
        sources = {piece.place for piece in moved}
        source = sources.pop() if len(sources) == 1 else None
        if isinstance(source, Hosted) and source.layer in self._run.layers and source.fid == fid:
            self._links[fid] = source
        elif moved:
            self._copies[fid] = moved
        if not isinstance(data, Pieces):
            return marks[0], []
        rows = [(piece.start, piece.stop, m) for piece, m in zip(pieces, marks, strict=True)]
        return PIECES, rows

    def _is_below(self, fid: int, piece: Piece) -> bool:
        """Whether the state under the run has these bytes of ``fid`` in the same place."""
        if self._is_in_run(piece):
            return False
        try:
            data = self._below.get(fid).data
        except KeyError:
            return False
        if isinstance(data, Pieces):
            return all(one.place == piece.place for one in data.within(piece.start, piece.stop))
        return data == piece.place

    def _is_in_run(self, piece: Piece) -> bool:
        return isinstance(piece.place, Hosted | Logged) and piece.place.layer in self._run.layers

    def _files(self) -> None:
        """The big contents: under one more name, or put together where layers had a part each."""
        if not self._links and not self._copies:
            return
        contents = self._live.contents
        self._folder.mkdir()
        for fid, place in self._links.items():
            (self._folder / str(fid)).hardlink_to(contents.host_path(place))
            disk.crash_point("workspace.compact.linked")
        for fid, pieces in self._copies.items():
            with (self._folder / str(fid)).open("xb", buffering=0) as file:
                for start, stop, _ in pieces:
                    for at in range(start, stop, CHUNK_BYTES):
                        data = self._live.read(fid, at, min(CHUNK_BYTES, stop - at))
                        pwrite_all(file.fileno(), data, at)
                disk.fdatasync(file.fileno())
            contents.release(fid)
        disk.fsync_dir(self._folder)


def merge(store: Store, keep: Collection[str] | None) -> Freed:
    """Merge all that can be, one run after the other; returns what that gave back.

    None keeps every snapshot, so there is nothing to merge.
    """
    freed = NOTHING
    for run in _planned(store, keep):
        job = _Job(store, run)
        job.write()
        freed = freed.plus(_finish(store, keep, job))
    return freed


def merge_aside(
    store: Store,
    keep: Collection[str] | None,
    post: Callable[[Callable[[], None]], None],
    done: Callable[[Freed], None],
) -> None:
    """As `merge`, written by a thread; what concerns ``store`` runs by ``post`` on its own thread.

    ``done`` gets what that gave back.
    """
    waiting = _planned(store, keep)
    interval_s = sys.getswitchinterval()

    def go_on(freed: Freed) -> None:
        if not waiting:
            sys.setswitchinterval(interval_s)
            done(freed)
            return
        job = _Job(store, waiting.pop())

        def work() -> None:
            job.write()
            post(lambda: go_on(freed.plus(_finish(store, keep, job))))

        Thread(target=work, name="compaction", daemon=True).start()

    sys.setswitchinterval(WRITING_SWITCH_S)
    go_on(NOTHING)


class _Job:
    """One run on its way into a layer."""

    def __init__(self, store: Store, run: Run) -> None:
        self._path = store.path
        self._in_use = store.in_use()
        self.run = run
        self.layer = store.reserve()
        self.merged: Merged | None = None

    def write(self) -> None:
        """Never raises: on a full disk everything stays as it is."""
        try:
            self.merged = write(self._path, self.run, self.layer, self._in_use)
        except (OSError, BranchkitError) as error:
            _log.warning("layers %s were not merged: %s", sorted(self.run.layers), error)


def _planned(store: Store, keep: Collection[str] | None) -> list[Run]:
    return [] if keep is None else runs(store.catalog, roots(store, keep))


def _finish(store: Store, keep: Collection[str] | None, job: _Job) -> Freed:
    """Put what was written in its place; not if somebody forked from the run meanwhile."""
    if job.merged is None or job.run not in _planned(store, keep):
        store.abandon(job.layer)
        return NOTHING
    try:
        return Freed(store.replace(job.merged), len(job.run.layers) - 1)
    except (OSError, BranchkitError) as error:
        # Whether the row is on the disk is not known, so both stay; the next start can tell.
        _log.error("layers %s stay beside %s: %s", sorted(job.run.layers), job.layer, error)
        return NOTHING
