"""Bases and snapshots as files by path: what goes into a pack and comes out of it.

    workspace/bases/<id>.json       {"id", "tree_hash", "entries": {path: entry}}
    workspace/snapshots/<id>.json   {"id", "parent", "base", "tree_hash", "files", "changed_bytes",
                                     "changed": {path: entry}, "removed": [path]}
    blobs/<sha256hex>               each content once; a big one as blobs of blobs: see `sums`

entry: mode, mtime_ns, size, and as needed sha256, target, rdev, xattrs (user.*, hex), link (equal
for names of one inode). Ids survive the journey; inode numbers and owners do not travel.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from branchkit.errors import WorkspaceError
from branchkit.workspace import base as bases
from branchkit.workspace import compare, hashes, listing, sums
from branchkit.workspace.branch import Live
from branchkit.workspace.catalog import Held, Snapshot
from branchkit.workspace.content import Contents
from branchkit.workspace.graft import find, graft
from branchkit.workspace.layers import Rec
from branchkit.workspace.mount import Workspaces
from branchkit.workspace.scan import Entry, from_portable, portable
from branchkit.workspace.store import Store

BASES = "workspace/bases/"
SNAPSHOTS = "workspace/snapshots/"
BLOBS = "blobs/"


class Chunk(NamedTuple):
    """A part of a big file, read when it is wanted: a pack is not held in memory."""

    contents: Contents
    fid: int
    rec: Rec
    offset: int

    def read_bytes(self) -> bytes:
        """Its bytes."""
        data = self.contents.read(self.fid, self.rec, self.offset, sums.CHUNK_BYTES)
        self.contents.release(self.fid)
        return data


Member = tuple[str, bytes | Path | Chunk]


def export(ws: Workspaces, *, base: str, snapshots: Sequence[str]) -> Iterator[Member]:
    """The members of a pack: ``base``, ``snapshots`` with all their ancestors, and contents.

    Reads the store's files directly: what is frozen does not change any more.
    """
    store = Store(ws.store, writable=False)
    try:
        sent = set[str]()
        yield from _base_members(store, base, sent)
        for snapshot_id in _with_ancestors(store, snapshots):
            yield from _snapshot_members(store, store.held(snapshot_id), sent)
    finally:
        store.close()


def _base_members(store: Store, base_id: str, sent: set[str]) -> Iterator[Member]:
    base = store.base(base_id)
    entries = bases.manifest(store.path, base_id)
    value = {
        "id": base_id,
        "tree_hash": base.head.tree_hash,
        "entries": {entry.path: portable(entry) for entry in entries},
    }
    yield f"{BASES}{base_id}.json", _json(value)
    view = store.view(base_id, None)
    for entry in entries:
        if entry.is_file and entry.sha not in sent:
            if entry.size > sums.BIG_BYTES:
                yield from _big_members(view, find(view, entry.path), sent)
            else:
                sent.add(entry.sha)
                yield BLOBS + entry.sha, base.unchanged(entry.path)
    view.close()


def _big_members(live: Live, fid: int, sent: set[str]) -> Iterator[Member]:
    """A big file: what its hash, its segments and its leaves are the hashes of."""
    rec = live.tree.get(fid)
    segments = live.contents.segments(fid, rec)
    hashed = sums.segment_hashes(segments)
    parts: list[tuple[bytes, bytes | Chunk]] = [(live.contents.sha(fid, rec), hashed)]
    parts += zip(_each(hashed), segments, strict=True)
    chunks = enumerate(each for leaves in segments for each in _each(leaves))
    parts += (
        (each, Chunk(live.contents, fid, rec, number * sums.CHUNK_BYTES)) for number, each in chunks
    )
    for address, part in parts:
        if address.hex() not in sent:
            sent.add(address.hex())
            yield BLOBS + address.hex(), part


def _each(hashes_in_a_row: bytes) -> list[bytes]:
    step = sums.LEAF_BYTES
    return [hashes_in_a_row[at : at + step] for at in range(0, len(hashes_in_a_row), step)]


def _content(entry: Entry, read: Callable[[str], bytes]) -> listing.Content:
    """The content of ``entry`` from blobs."""
    if entry.size <= sums.BIG_BYTES:
        return read(BLOBS + entry.sha)
    return _regions(bytes.fromhex(entry.sha), read)


def _regions(content: bytes, read: Callable[[str], bytes]) -> Iterator[tuple[int, bytes]]:
    offset = 0
    for segment in _each(read(BLOBS + content.hex())):
        for leaf in _each(read(BLOBS + segment.hex())):
            if leaf != sums.zero_leaf(sums.CHUNK_BYTES):
                yield offset, read(BLOBS + leaf.hex())
            offset += sums.CHUNK_BYTES


def _with_ancestors(store: Store, snapshots: Sequence[str]) -> list[str]:
    """``snapshots`` and what they stand on, parents first, each once."""
    found: dict[str, None] = {}
    for snapshot_id in snapshots:
        line: list[str] = []
        at: str | None = snapshot_id
        while at is not None and at not in found:
            line.append(at)
            at = store.held(at).snapshot.parent
        found.update(dict.fromkeys(reversed(line)))
    return list(found)


def _snapshot_members(store: Store, held: Held, sent: set[str]) -> Iterator[Member]:
    snapshot = held.snapshot
    old = store.view(snapshot.base, snapshot.parent)
    new = store.view(snapshot.base, snapshot.id)
    changed: dict[str, Entry] = {}
    removed: list[str] = []
    for pair in compare.pairs(old, new, logical=False):
        if pair.new is None:
            removed.append(pair.path)
        elif pair.old != pair.new or old.tree.get(pair.new) is not new.tree.get(pair.new):
            changed[pair.path] = listing.entry_of(new, pair.new, pair.path)
    entries = {path: portable(entry) for path, entry in changed.items()}
    value = {**snapshot._asdict(), "changed": entries, "removed": removed}
    yield f"{SNAPSHOTS}{snapshot.id}.json", _json(value)
    for entry in changed.values():
        if entry.is_file and entry.sha not in sent:
            if entry.size > sums.BIG_BYTES:
                yield from _big_members(new, entry.inode, sent)
            else:
                sent.add(entry.sha)
                rec = new.tree.get(entry.inode)
                yield BLOBS + entry.sha, new.contents.whole(entry.inode, rec)
    old.close()
    new.close()


def adopt(ws: Workspaces, *, read: Callable[[str], bytes], names: Iterable[str]) -> None:
    """Take in what `export` gave; what the store has already is left alone.

    ``read`` gives the content of a member. Afterwards `Workspaces.create` works with every base and
    snapshot among ``names``, byte for byte. Raises WorkspaceError when a hash does not come out.
    """
    members = list(names)
    for name in members:
        if name.startswith(BASES):
            _adopt_base(ws, json.loads(read(name)), read)
    waiting = {
        value["id"]: value
        for value in (json.loads(read(name)) for name in members if name.startswith(SNAPSHOTS))
    }
    for snapshot_id in list(waiting):
        _adopt_line(ws, snapshot_id, waiting, read)


def _adopt_base(ws: Workspaces, value: dict[str, Any], read: Callable[[str], bytes]) -> None:
    base_id = value["id"]
    if (ws.store / "bases" / f"{base_id}.json").exists():
        ws.register_base(base_id)
        return
    directory = ws.store / "bases" / base_id
    shutil.rmtree(directory, ignore_errors=True)  # an import that was cut short
    entries = [from_portable(path, fields) for path, fields in value["entries"].items()]
    listing.build(directory, entries, lambda entry: _content(entry, read))
    bases.add(directory, ws.store, expect=base_id)
    ws.register_base(base_id)


def _adopt_line(
    ws: Workspaces,
    snapshot_id: str,
    waiting: dict[str, dict[str, Any]],
    read: Callable[[str], bytes],
) -> None:
    """Adopt a snapshot after its ancestors."""
    line: list[dict[str, Any]] = []
    at: str | None = snapshot_id
    while at in waiting:
        line.append(waiting.pop(at))
        at = line[-1]["parent"]
    for value in reversed(line):
        _adopt_snapshot(ws, value, read)


def _adopt_snapshot(ws: Workspaces, value: dict[str, Any], read: Callable[[str], bytes]) -> None:
    snapshot = Snapshot(*(value[field] for field in Snapshot._fields))
    store = Store(ws.store, writable=False)
    try:
        if snapshot.id in store.snapshots:
            return
        layer = snapshot.id
        (store.layers / f"{layer}.log").unlink(missing_ok=True)  # an import that was cut short
        shutil.rmtree(store.layers / layer, ignore_errors=True)
        frozen = store.frozen(snapshot.parent) if snapshot.parent else None
        live = Live(store.layers, store.base(snapshot.base), layer, frozen)
        changed = [from_portable(path, fields) for path, fields in value["changed"].items()]
        graft(live, value["removed"], changed, lambda entry: _content(entry, read))
        found = hashes.render(live.digest())
        live.sync()
        log_bytes = live.log_bytes()
        live.close()
    finally:
        store.close()
    if found != snapshot.tree_hash:
        raise WorkspaceError(
            f"snapshot {snapshot.id} came out as {found}, its pack says {snapshot.tree_hash}",
            hint="the pack is damaged: get it again",
        )
    layer = layer if log_bytes else ""
    ws.register_snapshot({"snapshot": snapshot, "layer": layer, "log_bytes": log_bytes})


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode() + b"\n"
