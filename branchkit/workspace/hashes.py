"""The Merkle hash of a tree: equal trees, equal hashes, whoever made them and when.

    leaf      = H(kind, mode & 0o7777, size, sha256 of the content, symlink target, user.* xattrs)
    directory = H(mode & 0o7777, user.* xattrs, sorted (name, leaf))

Left out: times, owner, group, inode and link numbers, and what `VOLATILE` names. Everything here is
pure; ``scan.tree_hash`` applies it to a directory, ``store`` to a branch.
"""

from __future__ import annotations

import hashlib
import stat
from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from branchkit.workspace import gitindex

VOLATILE: tuple[str, ...] = (
    ".git/index: hashed by its entries (path, mode, object, stage), not by its stat data",
    ".git/logs/**: reflogs, left out",
    "**/__pycache__/**: left out",
    "**/*.pyc: left out",
)

MEMORY_ROWS = 200_000  # some 30 MB

_KINDS = {
    stat.S_IFREG: b"f",
    stat.S_IFDIR: b"d",
    stat.S_IFLNK: b"l",
    stat.S_IFIFO: b"p",
    stat.S_IFSOCK: b"s",
    stat.S_IFCHR: b"c",
    stat.S_IFBLK: b"b",
}


def kind(mode: int) -> bytes:
    """One letter for the type of file."""
    return _KINDS[stat.S_IFMT(mode)]


def _xattrs(xattrs: Mapping[bytes, bytes]) -> bytes:
    user = sorted(item for item in xattrs.items() if item[0].startswith(b"user."))
    return b"".join(_part(name) + _part(value) for name, value in user)


def _part(data: bytes) -> bytes:
    return b"%d:%s" % (len(data), data)


def leaf(
    mode: int,
    size: int,
    content: bytes,
    *,
    target: bytes = b"",
    rdev: int = 0,
    xattrs: Mapping[bytes, bytes],
) -> bytes:
    """The digest of anything but a directory; ``content`` is the sha256 of a regular file."""
    head = b"%s %o %d %d " % (kind(mode), stat.S_IMODE(mode), size, rdev)
    return hashlib.sha256(head + _part(content) + _part(target) + _part(_xattrs(xattrs))).digest()


def index_leaf(mode: int, data: bytes) -> bytes | None:
    """The digest of a git index by its entries; None when it cannot be read as one."""
    content = hashlib.sha256(b"git index\n")
    try:
        for entry in gitindex.entries(data):
            fields = b"%o %s %d %d " % (entry.mode, entry.sha.hex().encode(), *entry[3:])
            content.update(fields + _part(entry.path))
    except (ValueError, IndexError):
        return None
    return leaf(mode, 0, content.digest(), xattrs={})


def directory(
    mode: int, children: Iterable[tuple[bytes, bytes]], xattrs: Mapping[bytes, bytes]
) -> bytes:
    """The digest of a directory whose ``children`` are (name, digest) pairs in any order."""
    return directory_of(mode, (row(name, below) for name, below in sorted(children)), xattrs)


def row(name: bytes, digest: bytes) -> bytes:
    """What one child gives to the digest of its directory."""
    return _part(name) + digest


def directory_of(mode: int, rows: Iterable[bytes], xattrs: Mapping[bytes, bytes]) -> bytes:
    """The digest of a directory from the `row` of each child, sorted by name."""
    digest = hashlib.sha256(b"d %o " % stat.S_IMODE(mode) + _part(_xattrs(xattrs)))
    digest.update(b"".join(rows))
    return digest.digest()


class Rows(NamedTuple):
    """The rows of one directory in their order. Shared: never written once it is remembered."""

    in_git_dir: bool
    by_name: dict[bytes, bytes]


class Memory:
    """The rows of directories by the digest that they gave: the latest `MEMORY_ROWS`."""

    def __init__(self) -> None:
        self._kept: OrderedDict[bytes, Rows] = OrderedDict()
        self._count = 0

    def keep(self, digest: bytes, rows: Rows) -> None:
        """Remember the rows behind ``digest``."""
        if digest not in self._kept:
            self._kept[digest] = rows
            self._count += len(rows.by_name)
        while self._count > MEMORY_ROWS and len(self._kept) > 1:
            self._count -= len(self._kept.popitem(last=False)[1].by_name)

    def rows(self, digest: bytes) -> Rows | None:
        """The rows behind ``digest``, if they are still remembered."""
        found = self._kept.get(digest)
        if found is not None:
            self._kept.move_to_end(digest)
        return found


def is_git_dir(names: Collection[bytes]) -> bool:
    """Whether a directory with these names is a git directory (or that of a linked worktree)."""
    return b"HEAD" in names and (
        (b"objects" in names and b"refs" in names) or b"commondir" in names
    )


def excluded(name: bytes, *, in_git_dir: bool) -> bool:
    """Whether `VOLATILE` leaves this name out altogether."""
    if name == b"__pycache__" or name.endswith(b".pyc"):
        return True
    return in_git_dir and name == b"logs"


def render(digest: bytes) -> str:
    """``digest`` as it is shown and stored."""
    return "sha256:" + digest.hex()
