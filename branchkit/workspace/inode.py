"""One inode as a tree knows it. Pure."""

from __future__ import annotations

import stat

from branchkit.workspace.places import Hosted, InBase, Pieces
from branchkit.workspace.sums import Sums


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
