"""One branch as copy-on-write layers over a base directory. Pure: no I/O, no clock, no randomness.

A layer is a dict ``fid -> Rec`` of what changed. A branch is a tuple of frozen layers (newest
first), one mutable ``top`` and a ``view`` that remembers how each file was resolved. Freeze pushes
the top; fork shares the tuple. A whiteout is a name missing from a copied ``entries`` dict.

Every mutation is a list of `changes`: ``edit`` plans them, the store logs them, ``Tree.apply``
carries them out; a restart applies the same changes from the log. So what is in memory is what a
replay gives, and a change that could not be logged (ENOSPC) has not happened.

fid: below 2**38 the base's own inode number, up to 2**39 a base file whose inode number is too big
or not unique, from 2**39 on files made in a branch.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from branchkit.workspace import changes as kinds
from branchkit.workspace.changes import Change
from branchkit.workspace.places import Hosted, InBase, Logged, Pieces, Place
from branchkit.workspace.sums import Sums, leaves_bytes

INLINE_BYTES = 64 * 1024
MAPPED_FIDS = 1 << 38
NEW_FIDS = 1 << 39
FID_BITS = 40
DEEPEST = 64  # layers; from here on they are merged into one dict, so a miss stays cheap


type_of = stat.S_IFMT


class Rec:
    """One inode. A record whose ``epoch`` is not its tree's is shared and must not be written."""

    __slots__ = (
        "atime_ns", "ctime_ns", "data", "entries", "epoch", "gid", "leaf", "mode", "mtime_ns",
        "name", "nlink", "parents", "rdev", "sha", "shared", "size", "sums", "target", "uid",
        "xattrs",
    )  # fmt: skip

    def __init__(self, mode: int, uid: int, gid: int, now_ns: int, *, rdev: int = 0) -> None:
        self.mode = mode
        self.uid = uid
        self.gid = gid
        self.nlink = 2 if stat.S_ISDIR(mode) else 0
        self.rdev = rdev
        self.size = 0
        self.atime_ns = self.mtime_ns = self.ctime_ns = now_ns
        self.parents: tuple[int, ...] = ()  # one per name; a directory has one, the root none
        self.entries: dict[bytes, int] | None = {} if stat.S_ISDIR(mode) else None
        regular = stat.S_ISREG(mode)
        self.data: bytearray | Hosted | InBase | Pieces | None = bytearray() if regular else None
        self.name = b""  # one of its names: where to look first
        self.target = b""
        self.xattrs: dict[bytes, bytes] | None = {}  # None: not yet read from the base
        self.epoch: object = None
        self.shared = False  # entries or data belong to an older record: copy before writing
        self.sha: bytes | None = None
        self.sums: Sums | None = None  # of a big file, once its content was hashed
        self.leaf: bytes | None = None

    def copy(self, epoch: object) -> Rec:
        """A record of ``epoch`` with the same values; its contents stay shared until written."""
        new = Rec.__new__(Rec)
        for name in Rec.__slots__:
            setattr(new, name, getattr(self, name))
        new.epoch = epoch
        new.shared = True
        if self.sums is not None:
            new.sums = self.sums.copy()
        return new

    @property
    def is_dir(self) -> bool:
        """Whether this is a directory."""
        return stat.S_ISDIR(self.mode)


class Lower(Protocol):
    """What a tree asks of its base; ``base.Base`` reads it from a directory."""

    root: int

    def record(self, fid: int) -> Rec: ...
    def entries(self, fid: int) -> dict[bytes, int]: ...
    def xattrs(self, fid: int) -> dict[bytes, bytes]: ...
    def path(self, fid: int) -> str: ...
    def learn(self, fid: int, path: str) -> None: ...


class Frozen(NamedTuple):
    """What a snapshot needs to be forked: O(1) to share."""

    layers: tuple[dict[int, Rec], ...]
    digests: dict[int, bytes]
    next_fid: int


class Tree:
    """The live state of one branch."""

    def __init__(self, lower: Lower, layer: str, frozen: Frozen | None = None) -> None:
        self.lower = lower
        self.root = lower.root
        self.layer = layer
        self.layers: tuple[dict[int, Rec], ...] = frozen.layers if frozen else ()
        # Merkle hashes of directories that differ from the base, and what moved in a directory
        # since its hash was computed: names that were put or cut, inodes that changed.
        self.digests: dict[int, bytes] = dict(frozen.digests) if frozen else {}
        self.moved: dict[int, set[bytes | int]] = {}
        self.next_fid = frozen.next_fid if frozen else NEW_FIDS
        self.top: dict[int, Rec] = {}
        self.view: dict[int, Rec] = {}
        self.epoch: object = object()
        self._blob = b""
        self._at = self._blob_at = 0
        self._do: dict[type[Change], Callable[[Any], None]] = {
            kinds.Up: self._up, kinds.New: self._new, kinds.Put: self._put,
            kinds.Cut: self._cut, kinds.Meta: self._meta, kinds.Fill: self._fill,
            kinds.Write: self._write, kinds.Resize: self._resize, kinds.Host: self._host,
            kinds.Patch: self._patch, kinds.Inset: self._inset, kinds.Leaves: self._leaves,
            kinds.Xattr: self._xattr,
        }  # fmt: skip

    def get(self, fid: int) -> Rec:
        """The record of ``fid`` as this branch sees it; KeyError when there is none."""
        rec = self.view.get(fid)
        if rec is None:
            rec = self._resolve(fid)
            self.view[fid] = rec
        return rec

    def held(self, fid: int) -> bool:
        """Whether a layer holds ``fid`` already (else the base does, and Up must come first)."""
        return self.get(fid).epoch is not None

    def entries(self, fid: int) -> dict[bytes, int]:
        """The names in directory ``fid``; not to be written."""
        rec = self.get(fid)
        if rec.entries is None:
            rec.entries = self.lower.entries(fid)
        return rec.entries

    def xattrs(self, fid: int) -> dict[bytes, bytes]:
        """The extended attributes of ``fid``; not to be written."""
        rec = self.get(fid)
        if rec.xattrs is None:
            rec.xattrs = self.lower.xattrs(fid)
        return rec.xattrs

    def apply(
        self, changes: Sequence[Change], blob: bytes | bytearray = b"", blob_at: int = 0
    ) -> None:
        """Carry out ``changes``; their file contents come one after the other from ``blob``.

        It lies at ``blob_at`` in the log of this layer.
        """
        self._blob, self._at, self._blob_at = bytes(blob), 0, blob_at
        for change in changes:
            self._do[type(change)](change)
        self._blob = b""

    def push(self, next_layer: str) -> dict[int, Rec]:
        """Freeze: the top becomes the newest layer and is returned. O(1)."""
        done = self.top
        self.layers = (done, *self.layers)
        if len(self.layers) > DEEPEST:
            self.layers = (merge(self.layers),)
        self.top, self.epoch, self.layer = {}, object(), next_layer
        return done

    def frozen(self) -> Frozen:
        """This state for a snapshot; the top must have been pushed."""
        return Frozen(self.layers, dict(self.digests), self.next_fid)

    def drop(self, fid: int) -> None:
        """Forget an inode that nobody can reach. Not logged: a replay ends with `sweep`."""
        self.top.pop(fid, None)
        self.view.pop(fid, None)

    def sweep(self, held: Callable[[int], bool] = lambda fid: False) -> dict[int, Rec]:
        """Forget what lost its last name while it was open, unless it is still ``held``.

        Returns what was forgotten.
        """
        orphans = [f for f, r in self.top.items() if not r.parents and f != self.root]
        gone = {fid: self.top[fid] for fid in orphans if not held(fid)}
        for fid in gone:
            self.drop(fid)
        return gone

    def _resolve(self, fid: int) -> Rec:
        for layer in self.layers:
            rec = layer.get(fid)
            if rec is not None:
                return rec
        return self.lower.record(fid)

    def _own(self, fid: int) -> Rec:
        rec = self.get(fid)
        if rec.epoch is self.epoch:
            return rec
        if rec.is_dir:
            self.entries(fid)
        self.xattrs(fid)
        rec = rec.copy(self.epoch)
        self.top[fid] = self.view[fid] = rec
        return rec

    def _stale(self, fid: int, what: bytes | int | None) -> None:
        """The hashes of directory ``fid`` and all above it are no longer true: ``what`` moved."""
        moved = self.moved.get(fid)
        if moved is None:  # else everything above is stale already
            moved = self.moved[fid] = set()
            for parent in self.get(fid).parents:
                self._stale(parent, fid)
        if what is not None:
            moved.add(what)

    def _touched(self, fid: int, rec: Rec, name: bytes | None = None) -> None:
        """``fid`` is not what it was; of a directory: what has the name ``name`` in it."""
        rec.leaf = None
        if rec.is_dir:
            self._stale(fid, name)
        for parent in rec.parents:
            self._stale(parent, fid)

    def _up(self, change: kinds.Up) -> None:
        self.lower.learn(change.fid, change.path)
        self._own(change.fid)

    def _new(self, change: kinds.New) -> None:
        rec = Rec(change.mode, change.uid, change.gid, change.now_ns, rdev=change.rdev)
        rec.target = os.fsencode(change.target)
        rec.size = 4096 if rec.is_dir else len(rec.target)
        rec.epoch = self.epoch
        self.top[change.fid] = self.view[change.fid] = rec
        if rec.is_dir:
            self.moved[change.fid] = set()
        self.next_fid = max(self.next_fid, change.fid + 1)

    def _names(self, fid: int, name: bytes, now_ns: int) -> tuple[Rec, dict[bytes, int]]:
        rec = self._own(fid)
        entries = self.entries(fid)
        if rec.shared:
            entries = dict(entries)
            rec.entries, rec.shared = entries, False
        rec.mtime_ns = rec.ctime_ns = now_ns
        self._touched(fid, rec, name)
        return rec, entries

    def _put(self, change: kinds.Put) -> None:
        name = os.fsencode(change.name)
        parent, entries = self._names(change.fid, name, change.now_ns)
        entries[name] = change.child
        child = self._own(change.child)
        child.parents, child.name = (*child.parents, change.fid), name
        child.ctime_ns = change.now_ns
        if child.is_dir:
            parent.nlink += 1
        else:
            child.nlink += 1

    def _cut(self, change: kinds.Cut) -> None:
        name = os.fsencode(change.name)
        parent, entries = self._names(change.fid, name, change.now_ns)
        child = self._own(entries.pop(name))
        at = child.parents.index(change.fid)
        child.parents = child.parents[:at] + child.parents[at + 1 :]
        child.ctime_ns = change.now_ns
        if child.is_dir:
            parent.nlink -= 1
        else:
            child.nlink -= 1

    def _meta(self, change: kinds.Meta) -> None:
        rec = self._own(change.fid)
        if change.mode is not None:
            rec.mode = type_of(rec.mode) | change.mode
        rec.uid = rec.uid if change.uid is None else change.uid
        rec.gid = rec.gid if change.gid is None else change.gid
        rec.atime_ns = rec.atime_ns if change.atime_ns is None else change.atime_ns
        rec.mtime_ns = rec.mtime_ns if change.mtime_ns is None else change.mtime_ns
        rec.ctime_ns = change.ctime_ns
        self._touched(change.fid, rec)

    def _take(self, size: int) -> bytes:
        at = self._at
        self._at = at + size
        return self._blob[at : at + size]

    def _changed(self, fid: int, size: int, now_ns: int | None) -> Rec:
        rec = self._own(fid)
        rec.size = size
        rec.sha = None
        if now_ns is not None:
            rec.mtime_ns = rec.ctime_ns = now_ns
        self._touched(fid, rec)
        return rec

    def _fill(self, change: kinds.Fill) -> None:
        rec = self._changed(change.fid, change.size, change.now_ns)
        rec.data, rec.shared = bytearray(self._take(change.size)), False

    def _inline(self, rec: Rec) -> bytearray:
        data = rec.data
        if not isinstance(data, bytearray):
            raise TypeError(f"an inline change for a file whose content is {data!r}")
        if rec.shared:
            data = bytearray(data)
            rec.data, rec.shared = data, False
        return data

    def _write(self, change: kinds.Write) -> None:
        data = self._inline(self._own(change.fid))
        end = change.offset + change.size
        if change.offset > len(data):
            data.extend(bytes(change.offset - len(data)))
        data[change.offset : end] = self._take(change.size)
        self._changed(change.fid, len(data), change.now_ns)

    def _resize(self, change: kinds.Resize) -> None:
        data = self._inline(self._own(change.fid))
        if change.size < len(data):
            del data[change.size :]
        else:
            data.extend(bytes(change.size - len(data)))
        self._changed(change.fid, change.size, change.now_ns)

    def _host(self, change: kinds.Host) -> None:
        rec = self._changed(change.fid, change.size, change.now_ns)
        rec.data, rec.sums = Hosted(self.layer, change.fid), None

    def _patch(self, change: kinds.Patch) -> None:
        self._part(change, Hosted(self.layer, change.fid))

    def _inset(self, change: kinds.Inset) -> None:
        place = Logged(self.layer, self._blob_at + self._at - change.offset)
        self._at += change.bytes
        self._part(change, place)

    def _leaves(self, change: kinds.Leaves) -> None:
        rec = self._own(change.fid)
        rec.sums = rec.sums or Sums()
        for number in change.segments:
            rec.sums.learn(number, self._take(leaves_bytes(number, rec.size)))

    def _part(self, change: kinds.Patch | kinds.Inset, place: Place) -> None:
        rec = self._own(change.fid)
        stop = change.offset + change.bytes
        if rec.sums is not None:
            rec.sums.changed(change.offset, stop, rec.size, change.size)
        if rec.data != place:  # else all of it is there already
            pieces = self._pieces(rec)
            if change.size < rec.size:
                pieces.cut(change.size)
            pieces.claim(change.offset, stop, place)
        self._changed(change.fid, change.size, change.now_ns)

    def _pieces(self, rec: Rec) -> Pieces:
        """The map of ``rec``, its own to change."""
        data = rec.data
        if isinstance(data, Hosted | InBase):
            data = Pieces(data, rec.size)
        elif isinstance(data, Pieces):
            data = data.copy() if rec.shared else data
        else:
            raise TypeError(f"a change of a part for a file whose content is {data!r}")
        rec.data, rec.shared = data, False
        return data

    def _xattr(self, change: kinds.Xattr) -> None:
        rec = self._own(change.fid)
        name = os.fsencode(change.name)
        xattrs = dict(self.xattrs(change.fid))
        if change.value is None:
            xattrs.pop(name, None)
        else:
            xattrs[name] = bytes.fromhex(change.value)
        rec.xattrs, rec.ctime_ns = xattrs, change.now_ns
        self._touched(change.fid, rec)


def merge(layers: Sequence[dict[int, Rec]]) -> dict[int, Rec]:
    """One layer that looks like ``layers`` (newest first). O(sum of their sizes)."""
    merged: dict[int, Rec] = {}
    for layer in reversed(layers):
        merged.update(layer)
    return merged
