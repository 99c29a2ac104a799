"""A plain directory as a list of entries: what is there, with content hashes.

One scanner serves the base manifest, the hash of a directory, the copying fallback and the portable
form. ``known`` entries (same inode, size, mtime and ctime) are not read again.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from branchkit.workspace import hashes, sums
from branchkit.workspace.sparse import segments_of

CHUNK_BYTES = 1 << 20


class Entry(NamedTuple):
    """One path of a tree; "" is its root. ``link`` is equal for names of one inode, else 0."""

    path: str
    mode: int
    size: int
    mtime_ns: int
    sha: str
    target: str
    rdev: int
    xattrs: dict[str, str]  # user.* only, values in hex
    link: int
    inode: int
    ctime_ns: int

    @property
    def is_dir(self) -> bool:
        """Whether this is a directory."""
        return stat.S_ISDIR(self.mode)

    @property
    def is_file(self) -> bool:
        """Whether this is a regular file."""
        return stat.S_ISREG(self.mode)

    def raw_xattrs(self) -> dict[bytes, bytes]:
        """The extended attributes as the hashes want them."""
        return {os.fsencode(name): bytes.fromhex(value) for name, value in self.xattrs.items()}


def portable(entry: Entry) -> dict[str, Any]:
    """``entry`` without its path and without what only this machine knows."""
    fields: dict[str, Any] = {"mode": entry.mode, "mtime_ns": entry.mtime_ns, "size": entry.size}
    if entry.is_file:
        fields["sha256"] = entry.sha
    if entry.target:
        fields["target"] = entry.target
    if entry.rdev:
        fields["rdev"] = entry.rdev
    if entry.xattrs:
        fields["xattrs"] = entry.xattrs
    if entry.link:
        fields["link"] = entry.link
    return fields


def from_portable(path: str, fields: Mapping[str, Any]) -> Entry:
    """The entry that `portable` wrote."""
    return Entry(
        path,
        fields["mode"],
        fields["size"],
        fields["mtime_ns"],
        fields.get("sha256", ""),
        fields.get("target", ""),
        fields.get("rdev", 0),
        dict(fields.get("xattrs", {})),
        fields.get("link", 0),
        0,
        0,
    )


def scan(
    directory: Path,
    known: Mapping[str, Entry] | None = None,
    leaves: dict[str, sums.Segments] | None = None,
) -> list[Entry]:
    """Every path under ``directory``, parents first and sorted, with hashes of the contents.

    ``leaves`` gets those of the big files that were read, by the hash of the content.
    """
    root = os.fspath(directory)
    found = [_entry(root, path) for path in _walk(root)]
    known = known or {}
    unread: list[Entry] = []
    for at, entry in enumerate(found):
        old = known.get(entry.path)
        if old is not None and _signature(old) == _signature(entry):
            found[at] = entry._replace(sha=old.sha)
        elif entry.is_file:
            unread.append(entry)
    fresh = dict(zip((e.path for e in unread), _hash_all(root, unread, leaves), strict=True))
    links = _link_numbers(found)
    return [
        e._replace(sha=fresh.get(e.path, e.sha), link=links.get(e.inode, 0) if e.link > 1 else 0)
        for e in found
    ]


def _signature(entry: Entry) -> tuple[int, int, int, int, int]:
    return entry.inode, entry.mode, entry.size, entry.mtime_ns, entry.ctime_ns


def _walk(root: str) -> Iterable[str]:
    """Relative paths, a directory before what is in it, sorted by their parts."""
    waiting = [""]
    while waiting:
        path = waiting.pop()
        yield path
        here = os.path.join(root, path) if path else root
        if path and not stat.S_ISDIR(os.lstat(here).st_mode):
            continue
        prefix = path + "/" if path else ""
        waiting += [prefix + name for name in sorted(os.listdir(here), reverse=True)]


def _entry(root: str, path: str) -> Entry:
    full = os.path.join(root, path) if path else root
    info = os.lstat(full)
    is_dir = stat.S_ISDIR(info.st_mode)
    return Entry(
        path,
        info.st_mode,
        0 if is_dir else info.st_size,
        info.st_mtime_ns,
        "",
        os.readlink(full) if stat.S_ISLNK(info.st_mode) else "",
        info.st_rdev,
        user_xattrs(full),
        0 if is_dir else info.st_nlink,  # for now: becomes the link number
        info.st_ino,
        info.st_ctime_ns,
    )


def entry(directory: Path, path: str) -> Entry | None:
    """One path under ``directory`` with the hash of its content; None if nothing is there."""
    root = os.fspath(directory)
    try:
        found = _entry(root, path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found._replace(sha=content_hash(os.path.join(root, path))) if found.is_file else found


def user_xattrs(path: str) -> dict[str, str]:
    """The user.* attributes of ``path`` (not of what it points to), values in hex."""
    try:
        names = os.listxattr(path, follow_symlinks=False)
    except OSError:
        return {}  # a file system without attributes has none
    wanted = sorted(name for name in names if name.startswith("user."))
    return {name: os.getxattr(path, name, follow_symlinks=False).hex() for name in wanted}


def _link_numbers(found: Sequence[Entry]) -> dict[int, int]:
    """A small number per inode with two or more names here, in order of the first name."""
    counts: dict[int, int] = {}
    for entry in found:
        if entry.link > 1:
            counts[entry.inode] = counts.get(entry.inode, 0) + 1
    shared = [inode for inode, count in counts.items() if count > 1]
    return {inode: number for number, inode in enumerate(shared, 1)}


def _hash_all(
    root: str, entries: Sequence[Entry], leaves: dict[str, sums.Segments] | None
) -> list[str]:
    def one(entry: Entry) -> str:
        return content_hash(os.path.join(root, entry.path), leaves)

    # hashlib and read() release the GIL, so two threads keep two cores busy.
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(one, entries, chunksize=64))


def content_hash(path: str, leaves: dict[str, sums.Segments] | None = None) -> str:
    """The hash of the content of ``path`` (see `sums`), in hex; ``leaves`` as in `scan`."""
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if size <= sums.BIG_BYTES:
            return hashlib.sha256(file.read(sums.BIG_BYTES + 1)).hexdigest()
        segments = segments_of(file.fileno(), size)
    found = sums.content_hash(segments).hex()
    if leaves is not None:
        leaves[found] = segments
    return found


def digests(entries: Sequence[Entry], read: Callable[[str], bytes]) -> dict[str, bytes]:
    """The Merkle digest of every path; ``read`` gives the content of the git index files."""
    children: dict[str, dict[bytes, str]] = {e.path: {} for e in entries if e.is_dir}
    for entry in entries:
        if entry.path:
            parent, _, name = entry.path.rpartition("/")
            children[parent][os.fsencode(name)] = entry.path
    modes = {e.path: e.mode for e in entries if e.path.endswith("index")}
    done: dict[str, bytes] = {}
    for entry in reversed(entries):  # children before parents
        xattrs = entry.raw_xattrs()
        if not entry.is_dir:
            content, target = bytes.fromhex(entry.sha), os.fsencode(entry.target)
            done[entry.path] = hashes.leaf(
                entry.mode, entry.size, content, target=target, rdev=entry.rdev, xattrs=xattrs
            )
            continue
        names = children[entry.path]
        in_git_dir = hashes.is_git_dir(names)
        index = names.get(b"index", "") if in_git_dir else ""
        if index and stat.S_ISREG(modes[index]):
            done[index] = hashes.index_leaf(modes[index], read(index)) or done[index]
        below = [
            (name, done[path])
            for name, path in names.items()
            if not hashes.excluded(name, in_git_dir=in_git_dir)
        ]
        done[entry.path] = hashes.directory(entry.mode, below, xattrs)
    return done


def tree_hash(directory: Path) -> str:
    """The Merkle hash of a plain directory; equal to that of a branch with the same files."""
    found = scan(directory)
    return hashes.render(digests(found, lambda path: (directory / path).read_bytes())[""])
