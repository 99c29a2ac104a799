"""A base: a directory that branches start from, read lazily and never written.

``<store>/bases/<id>.json`` says where it is and which paths are one inode; ``<id>.index`` (see
`known`) holds every path with its hashes, so the hash of a branch costs only what the branch
changed. The id is made from the entries without inode numbers and change times: the same tree has
the same id on every machine.

A base counts as frozen. Names, modes, times, attributes and link targets come from the index, so
what was put into the base, taken out of it or touched there later is in no branch. Contents come
from the files: one that is not what it was is drift, found when it is opened, copied or hashed, and
an error that names it.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from branchkit import disk
from branchkit.errors import UsageError, WorkspaceError
from branchkit.workspace import hashes, known, stale, sums
from branchkit.workspace.known import Index, Row
from branchkit.workspace.layers import MAPPED_FIDS, Rec
from branchkit.workspace.places import InBase
from branchkit.workspace.scan import Entry, content_hash, digests, portable, scan
from branchkit.workspace.sparse import segments_of


class Head(NamedTuple):
    """The small part of a base that is always in memory."""

    directory: str
    tree_hash: str
    links: list[list[str]]  # paths that are one inode
    odd: dict[str, int] = {}  # noqa: RUF012 of heads that were written before there was an index


class _Owner(NamedTuple):
    uid: int
    gid: int
    atime_ns: int
    nlink: int
    size: int


class Base:
    """The base as a tree asks for it (`layers.Lower`)."""

    def __init__(self, base_id: str, store: Path) -> None:
        self.id = base_id
        self.head = _head(store, base_id)
        self.directory = self.head.directory
        self._sums = _sums_path(store)
        self._segments: dict[str, sums.Segments] = {}
        self._index = _index(store, base_id)
        self._links = {path: group for group in self.head.links for path in group}
        self._paths: dict[int, str] = {}
        self._all_named = False
        self._records: dict[int, Rec] = {}
        self.memory = hashes.Memory()
        self._same: set[str] = set()  # files of another inode whose content was found to be equal
        self.root = self._index.root.fid
        self._paths[self.root] = ""

    def record(self, fid: int) -> Rec:
        """The record of ``fid``; KeyError when the base has no such file."""
        rec = self._records.get(fid)
        if rec is None:
            rec = self._records[fid] = self._load(self.path(fid))
        return rec

    def entries(self, fid: int) -> dict[bytes, int]:
        """The names in directory ``fid``."""
        path = self.path(fid)
        prefix = path + "/" if path else ""
        names: dict[bytes, int] = {}
        for name, row in self._index.rows(path).items():
            names[name] = row.fid
            self._paths.setdefault(row.fid, prefix + os.fsdecode(name))
        return names

    def xattrs(self, fid: int) -> dict[bytes, bytes]:
        """The user.* attributes of ``fid``."""
        return self._row(self.path(fid)).xattrs

    def path(self, fid: int) -> str:
        """Where ``fid`` lies, relative to the base; KeyError when the base has no such file."""
        if fid not in self._paths and not self._all_named:
            self._name_all()
        return self._paths[fid]

    def _name_all(self) -> None:
        """Look into every directory: the kernel may know a file from before a restart."""
        self._all_named = True
        waiting = [""]
        while waiting:
            path = waiting.pop()
            prefix = path + "/" if path else ""
            for name, row in self._index.rows(path).items():
                below = prefix + os.fsdecode(name)
                self._paths.setdefault(row.fid, below)
                if stat.S_ISDIR(row.mode):
                    waiting.append(below)

    def learn(self, fid: int, path: str) -> None:
        """Take note that ``fid`` lies at ``path`` (a log says so after a restart)."""
        self._paths.setdefault(fid, path)

    def full(self, path: str) -> str:
        """The absolute path of a relative one."""
        return os.path.join(self.directory, path) if path else self.directory

    def digest(self, fid: int) -> bytes:
        """The Merkle digest of an unchanged directory."""
        return self._row(self.path(fid)).digest

    def has(self, fid: int) -> bool:
        """Whether ``fid`` is known to be of the base."""
        return fid in self._paths

    def rows(self, fid: int) -> hashes.Rows:
        """What gave the digest of an unchanged directory."""
        path = self._paths[fid]
        digest = self._row(path).digest
        rows = self.memory.rows(digest)
        if rows is None:
            names = self._index.rows(path)
            in_git_dir = hashes.is_git_dir(names)
            kept = {
                name: hashes.row(name, row.digest)
                for name, row in names.items()
                if not hashes.excluded(name, in_git_dir=in_git_dir)
            }
            rows = hashes.Rows(in_git_dir, kept)
            self.memory.keep(digest, rows)
        return rows

    def sha(self, data: InBase) -> bytes:
        """The content hash of an unchanged file; WorkspaceError when the base has changed."""
        return self._now(data.path).sha

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

    def unchanged(self, path: str) -> Path:
        """Where an unchanged file lies; WorkspaceError when the base has changed."""
        self._now(path)
        return Path(self.full(path))

    def _now(self, path: str) -> Row:
        try:
            return self._checked(path, os.lstat(self.full(path)))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise drift(self.full(path)) from error

    def open(self, data: InBase) -> int:
        """A descriptor for reading an unchanged file; WorkspaceError when the base has changed."""
        try:
            fd = os.open(self.full(data.path), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                raise drift(self.full(data.path)) from error
            raise
        try:
            self._checked(data.path, os.fstat(fd))
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _row(self, path: str) -> Row:
        row = self._index.row(path)
        if row is None:
            raise drift(self.full(path))
        return row

    def _checked(self, path: str, info: os.stat_result) -> Row:
        """What the index says of a file whose content is wanted; drift if it is another one.

        Another inode or change time may still be the same content (a restored backup, a chmod
        there and back): then the content decides, once.
        """
        row = self._row(path)
        if (info.st_mode, info.st_size, info.st_mtime_ns) != (row.mode, row.size, row.mtime_ns):
            raise drift(self.full(path))
        if (info.st_ino, info.st_ctime_ns) != (row.inode, row.ctime_ns) and path not in self._same:
            if content_hash(self.full(path)) != row.sha.hex():
                raise drift(self.full(path))
            self._same.add(path)
        return row

    def _folder_of(self, path: str) -> int:
        folder = os.path.dirname(path)
        fid = self._row(folder).fid
        self._paths.setdefault(fid, folder)
        return fid

    def _load(self, path: str) -> Rec:
        row = self._row(path)
        info = self._owner(path)
        rec = Rec(row.mode, info.uid, info.gid, 0, rdev=row.rdev)
        rec.name, rec.size, rec.mtime_ns = row.name, row.size, row.mtime_ns
        rec.atime_ns, rec.ctime_ns = info.atime_ns, row.ctime_ns
        rec.xattrs = dict(row.xattrs)
        group = self._links.get(path, [path])
        rec.parents = tuple(self._folder_of(p) for p in group) if path else ()
        rec.nlink = max(info.nlink, 2) if rec.is_dir else len(group)
        if rec.is_dir:
            rec.entries = None
            rec.size = info.size
        elif rec.data is not None:
            rec.data = InBase(path, row.size, row.mtime_ns)
        rec.target = row.target
        return rec

    def _owner(self, path: str) -> _Owner:
        """What only the file system knows; a file that has gone shows when it is opened."""
        try:
            info = os.lstat(self.full(path))
        except (FileNotFoundError, NotADirectoryError):
            return _Owner(os.geteuid(), os.getegid(), 0, 2, 0)
        return _Owner(info.st_uid, info.st_gid, info.st_atime_ns, info.st_nlink, info.st_size)


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
    """Write head and index of ``directory`` into the store; returns the base's id.

    ``expect`` is the id that the entries must give (an import); WorkspaceError if it does not.
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
    head = Head(os.fspath(directory), hashes.render(by_path[""]), _groups(entries))
    known.write(_index_path(store, base_id), entries, by_path, _fids(store, base_id, entries))
    disk.write_durably(_head_path(store, base_id), json.dumps(head._asdict()).encode())
    return base_id


def _fids(store: Path, base_id: str, entries: Sequence[Entry]) -> dict[str, int]:
    """Fids that are not inode numbers; all, if this base was added before.

    Layers name inodes by fid, so a base that was moved to other inodes must keep the old ones.
    """
    if not _head_path(store, base_id).exists():
        return _odd(entries)
    old = _index(store, base_id)
    return {entry.path: row.fid for entry in entries if (row := old.row(entry.path))}


def identify(entries: Sequence[Entry]) -> str:
    """The id of a tree: from paths, modes, times, contents, links; not from inode numbers."""
    digest = hashlib.sha256()
    for entry in sorted(entries):
        fields = [entry.path, portable(entry)]
        digest.update(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode())
    return "b" + digest.hexdigest()[:24]


def manifest(store: Path, base_id: str) -> list[Entry]:
    """Every entry of a base as it was when it was added."""
    return list(_index(store, base_id).entries())


def _last_scan(directory: Path, store: Path) -> dict[str, Entry]:
    for path in (store / "bases").glob("*.json"):
        if _head(store, path.stem).directory == os.fspath(directory):
            return {entry.path: entry for entry in manifest(store, path.stem)}
    return {}


def _head(store: Path, base_id: str) -> Head:
    return Head(**json.loads(_head_path(store, base_id).read_bytes()))


def _index(store: Path, base_id: str) -> Index:
    """The index of a base; made from its manifest where an older branchkit added it."""
    path = _index_path(store, base_id)
    if not path.exists():
        lines = (store / "bases" / f"{base_id}.manifest").read_bytes().splitlines()
        rows = [json.loads(line) for line in lines]
        entries = [Entry(*fields[:-1]) for fields in rows]
        by_path = {
            entry.path: bytes.fromhex(fields[-1])
            for entry, fields in zip(entries, rows, strict=True)
        }
        known.write(path, entries, by_path, _head(store, base_id).odd)
    return Index(path)


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


def _index_path(store: Path, base_id: str) -> Path:
    return store / "bases" / f"{base_id}.index"


def _sums_path(store: Path) -> Path:
    return store / "bases" / "sums"


def _keep_sums(folder: Path, leaves: Mapping[str, sums.Segments]) -> None:
    """Write the leaves of big files. Not durably: what is not what its name says is made anew."""
    for content, segments in leaves.items():
        folder.mkdir(exist_ok=True)
        (folder / content).write_bytes(b"".join(segments))
