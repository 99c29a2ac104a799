"""A base: a directory that branches start from, read lazily and never written.

``<store>/bases/<id>.json`` says where it is and what inode numbers alone cannot tell (hard links,
numbers that are too big or not unique); ``<id>.manifest`` lists every path with its hashes, so the
hash of a branch costs only what the branch changed. The id is made from the manifest without inode
numbers and change times: the same tree has the same id on every machine.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from branchkit import disk
from branchkit.errors import UsageError, WorkspaceError
from branchkit.workspace import hashes, stale, sums
from branchkit.workspace.layers import MAPPED_FIDS, Rec
from branchkit.workspace.places import InBase
from branchkit.workspace.scan import Entry, digests, portable, scan, user_xattrs
from branchkit.workspace.sparse import segments_of


class Head(NamedTuple):
    """The small part of a base that is always in memory."""

    directory: str
    tree_hash: str
    links: list[list[str]]  # paths that are one inode
    odd: dict[str, int]  # path -> fid where the inode number cannot be used


class Known(NamedTuple):
    """What the manifest says of a path."""

    sha: bytes
    digest: bytes
    size: int
    mtime_ns: int


class Base:
    """The base as a tree asks for it (`layers.Lower`)."""

    def __init__(self, base_id: str, store: Path) -> None:
        head = json.loads(_head_path(store, base_id).read_bytes())
        self.id = base_id
        self.head = Head(**head)
        self.directory = self.head.directory
        self._manifest = _manifest_path(store, base_id)
        self._known: dict[str, Known] | None = None
        self._sums = _sums_path(store)
        self._segments: dict[str, sums.Segments] = {}
        self._links = {path: group for group in self.head.links for path in group}
        self._paths: dict[int, str] = {}
        self._fids: dict[str, int] = {}  # directories only
        self._records: dict[int, Rec] = {}
        self.root = self._fid_of("")

    def record(self, fid: int) -> Rec:
        """The record of ``fid``; KeyError when no directory listing has named it yet."""
        rec = self._records.get(fid)
        if rec is None:
            rec = self._records[fid] = self._load(self._paths[fid])
        return rec

    def entries(self, fid: int) -> dict[bytes, int]:
        """The names in directory ``fid``."""
        path = self._paths[fid]
        prefix = path + "/" if path else ""
        names: dict[bytes, int] = {}
        with os.scandir(self.full(path)) as listing:
            for entry in listing:
                below = prefix + entry.name
                child = self.head.odd.get(below) or entry.inode()
                self._paths.setdefault(child, below)
                names[os.fsencode(entry.name)] = child
        return names

    def xattrs(self, fid: int) -> dict[bytes, bytes]:
        """The user.* attributes of ``fid``."""
        found = user_xattrs(self.full(self._paths[fid]))
        return {os.fsencode(name): bytes.fromhex(value) for name, value in found.items()}

    def path(self, fid: int) -> str:
        """Where ``fid`` lies, relative to the base."""
        return self._paths[fid]

    def learn(self, fid: int, path: str) -> None:
        """Take note that ``fid`` lies at ``path`` (a log says so after a restart)."""
        self._paths.setdefault(fid, path)

    def full(self, path: str) -> str:
        """The absolute path of a relative one."""
        return os.path.join(self.directory, path) if path else self.directory

    def digest(self, fid: int) -> bytes:
        """The Merkle digest of an unchanged directory."""
        return self.known(self._paths[fid]).digest

    def known(self, path: str) -> Known:
        """What the manifest says of ``path``; WorkspaceError when it was not there then."""
        if self._known is None:
            self._known = {
                entry.path: Known(bytes.fromhex(entry.sha), digest, entry.size, entry.mtime_ns)
                for entry, digest in _lines(self._manifest)
            }
        found = self._known.get(path)
        if found is None:
            raise drift(self.full(path))
        return found

    def sha(self, data: InBase) -> bytes:
        """The content hash of an unchanged file; WorkspaceError when the base has changed."""
        return self._unchanged(data).sha

    def segments(self, data: InBase) -> sums.Segments:
        """The leaves of an unchanged file (see `sums`), from the store or, once, from the file."""
        known = self._segments.get(data.path)
        if known is None:
            content = self.sha(data).hex()
            path = self._sums / content
            known = sums.split(path.read_bytes()) if path.exists() else ()
            if sums.content_hash(known).hex() != content:  # small, damaged or not there
                fd = self.open(data)
                try:
                    known = segments_of(fd, data.size)
                finally:
                    os.close(fd)
                if data.size > sums.BIG_BYTES:
                    _keep_sums(self._sums, {content: known})
            self._segments[data.path] = known
        return known

    def _unchanged(self, data: InBase) -> Known:
        known = self.known(data.path)
        if (known.size, known.mtime_ns) != (data.size, data.mtime_ns):
            raise drift(self.full(data.path))
        return known

    def open(self, data: InBase) -> int:
        """A descriptor for reading an unchanged file; WorkspaceError when the base has changed."""
        self._unchanged(data)
        fd = os.open(self.full(data.path), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        info = os.fstat(fd)
        if (info.st_size, info.st_mtime_ns) != (data.size, data.mtime_ns):
            os.close(fd)
            raise drift(self.full(data.path))
        return fd

    def _fid_of(self, path: str) -> int:
        fid = self._fids.get(path)
        if fid is None:
            fid = self.head.odd.get(path) or os.lstat(self.full(path)).st_ino
            self._fids[path] = fid
            self._paths.setdefault(fid, path)
        return fid

    def _load(self, path: str) -> Rec:
        info = os.lstat(self.full(path))
        rec = Rec(info.st_mode, info.st_uid, info.st_gid, 0, rdev=info.st_rdev)
        rec.size = info.st_size
        rec.atime_ns, rec.mtime_ns, rec.ctime_ns = (
            info.st_atime_ns, info.st_mtime_ns, info.st_ctime_ns,
        )  # fmt: skip
        rec.xattrs = None
        group = self._links.get(path, [path])
        rec.parents = tuple(self._fid_of(os.path.dirname(p)) for p in group) if path else ()
        rec.nlink = max(info.st_nlink, 2) if rec.is_dir else len(group)
        if rec.is_dir:
            rec.entries = None
        elif rec.data is not None:
            rec.data = InBase(path, info.st_size, info.st_mtime_ns)
        else:
            rec.target = _target(self.full(path))
        return rec


def _target(path: str) -> bytes:
    return os.fsencode(os.readlink(path)) if os.path.islink(path) else b""


def drift(path: str) -> WorkspaceError:
    """The base is not what it was when it was added."""
    return WorkspaceError(
        f"{path} has changed since it was added as a base",
        hint="a base must not be written: add the directory again and start new branches from it",
    )


def refuse(directory: Path, store: Path) -> None:
    """Raise UsageError when ``directory`` cannot be a base of ``store``.

    A store (and so its mount) inside the base would make the daemon wait for itself.
    """
    if not directory.is_dir():
        raise UsageError(f"{directory} is not a directory", hint="name the directory to start from")
    if store == directory or store.is_relative_to(directory):
        raise UsageError(
            f"the store {store} lies inside the base {directory}",
            hint="put the store beside the base, not into it (--store DIR)",
        )
    if any(directory.is_relative_to(store / name) for name in ("mnt", "copies", "layers")):
        inside = f"{directory} lies inside the store {store}"
        raise UsageError(inside, hint="use a directory outside of the store as base")
    points = {mount.point for mount in stale.mounts()} - {directory}
    if inner := [point for point in points if point.is_relative_to(directory)]:
        raise UsageError(
            f"something is mounted inside the base {directory}: {inner[0]}",
            hint="unmount it, or copy the directory (cp -ax) and use the copy as base",
        )


def add(directory: Path, store: Path, *, expect: str | None = None) -> str:
    """Write head and manifest of ``directory`` into the store; returns the base's id.

    ``expect`` is the id that the manifest must give (an import); WorkspaceError if it does not.
    """
    leaves: dict[str, sums.Segments] = {}
    entries = scan(directory, _last_scan(directory, store), leaves)
    by_path = digests(entries, lambda path: (directory / path).read_bytes())
    base_id = identify(entries)
    if expect not in (None, base_id):
        raise WorkspaceError(
            f"the imported base is {base_id}, its pack says {expect}",
            hint="the pack is damaged, or this file system cannot hold its times or attributes",
        )
    _keep_sums(_sums_path(store), leaves)
    odd = _odd(entries)
    head = Head(os.fspath(directory), hashes.render(by_path[""]), _groups(entries), odd)
    lines = [json.dumps([*e, by_path[e.path].hex()], separators=(",", ":")) for e in entries]
    disk.write_durably(_manifest_path(store, base_id), "\n".join(lines).encode() + b"\n")
    disk.write_durably(_head_path(store, base_id), json.dumps(head._asdict()).encode())
    return base_id


def identify(entries: Sequence[Entry]) -> str:
    """The id of a tree: from paths, modes, times, contents, links; not from inode numbers."""
    digest = hashlib.sha256()
    for entry in sorted(entries):
        fields = [entry.path, portable(entry)]
        digest.update(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode())
    return "b" + digest.hexdigest()[:24]


def manifest(store: Path, base_id: str) -> list[Entry]:
    """Every entry of a base as it was when it was added."""
    return [entry for entry, _ in _lines(_manifest_path(store, base_id))]


def _last_scan(directory: Path, store: Path) -> dict[str, Entry]:
    for head in (store / "bases").glob("*.json"):
        if json.loads(head.read_bytes())["directory"] == os.fspath(directory):
            return {entry.path: entry for entry in manifest(store, head.stem)}
    return {}


def _lines(path: Path) -> Iterable[tuple[Entry, bytes]]:
    for line in path.read_bytes().splitlines():
        *fields, digest = json.loads(line)
        yield Entry(*fields), bytes.fromhex(digest)


def _groups(entries: Sequence[Entry]) -> list[list[str]]:
    groups: dict[int, list[str]] = {}
    for entry in entries:
        if entry.link:
            groups.setdefault(entry.link, []).append(entry.path)
    return list(groups.values())


def _odd(entries: Sequence[Entry]) -> dict[str, int]:
    """Fids for what inode numbers cannot identify: overlay roots have 64-bit ones, or twins."""
    odd: dict[str, int] = {}
    owner: dict[int, tuple[str, int]] = {}
    fids: dict[tuple[int, int], int] = {}
    for number, entry in enumerate(entries):
        first = owner.setdefault(entry.inode, (entry.path, entry.link))
        twin = first[0] != entry.path and not (entry.link and entry.link == first[1])
        if entry.inode >= MAPPED_FIDS or twin:
            key = (entry.link, 0) if entry.link else (0, number)
            odd[entry.path] = fids.setdefault(key, MAPPED_FIDS + number)
    return odd


def _head_path(store: Path, base_id: str) -> Path:
    return store / "bases" / f"{base_id}.json"


def _manifest_path(store: Path, base_id: str) -> Path:
    return store / "bases" / f"{base_id}.manifest"


def _sums_path(store: Path) -> Path:
    return store / "bases" / "sums"


def _keep_sums(folder: Path, leaves: Mapping[str, sums.Segments]) -> None:
    """Write the leaves of big files. Not durably: what is not what its name says is made anew."""
    for content, segments in leaves.items():
        folder.mkdir(exist_ok=True)
        (folder / content).write_bytes(b"".join(segments))
