"""The changes a tree is made of, and their form in the log: what a mutation does, fact by fact."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class Up(NamedTuple):
    """A base record is about to change: from here on a layer holds it."""

    fid: int
    path: str


class New(NamedTuple):
    """A new inode, not yet under any name."""

    fid: int
    mode: int
    uid: int
    gid: int
    rdev: int
    target: str
    now_ns: int


class Put(NamedTuple):
    """``name`` in directory ``fid`` now means ``child``."""

    fid: int
    name: str
    child: int
    now_ns: int


class Cut(NamedTuple):
    """``name`` is gone from directory ``fid``."""

    fid: int
    name: str
    now_ns: int


class Meta(NamedTuple):
    """Attributes that were set; None leaves one as it is."""

    fid: int
    mode: int | None
    uid: int | None
    gid: int | None
    atime_ns: int | None
    mtime_ns: int | None
    ctime_ns: int


class Fill(NamedTuple):
    """The whole content is now the next ``size`` bytes of the blob."""

    fid: int
    size: int
    now_ns: int | None


class Write(NamedTuple):
    """The next ``size`` bytes of the blob were written at ``offset`` of an inline file."""

    fid: int
    offset: int
    size: int
    now_ns: int


class Resize(NamedTuple):
    """An inline file was cut or padded with zeros to ``size``."""

    fid: int
    size: int
    now_ns: int


class Host(NamedTuple):
    """The content is in this layer's host file, ``size`` bytes of it."""

    fid: int
    size: int
    now_ns: int | None


class Patch(NamedTuple):
    """``bytes`` bytes from ``offset`` on are in this layer's host file, others where they were.

    What is new between the old size and the new ``size``, and not named here, is zeros.
    """

    fid: int
    offset: int
    bytes: int
    size: int
    now_ns: int


class Inset(NamedTuple):
    """The same for the next ``bytes`` bytes of the blob: they stay where they are, in the log."""

    fid: int
    offset: int
    bytes: int
    size: int
    now_ns: int


class Leaves(NamedTuple):
    """The blob holds the leaves of these ``segments`` of a big file: see `sums`."""

    fid: int
    segments: list[int]


class Xattr(NamedTuple):
    """An extended attribute was set to hex ``value``, or removed (None)."""

    fid: int
    name: str
    value: str | None
    now_ns: int


Change = Up | New | Put | Cut | Meta | Fill | Write | Resize | Host | Patch | Inset | Leaves | Xattr
_KINDS: dict[str, type[Change]] = {
    "u": Up, "n": New, "p": Put, "c": Cut, "m": Meta, "f": Fill,
    "w": Write, "r": Resize, "h": Host, "o": Patch, "i": Inset, "l": Leaves, "x": Xattr,
}  # fmt: skip
_TAGS = {kind: tag for tag, kind in _KINDS.items()}


def encode(changes: Sequence[Change]) -> list[list[Any]]:
    """``changes`` as the JSON value of one log frame."""
    return [[_TAGS[type(change)], *change] for change in changes]


def decode(value: Any) -> list[Change]:
    """The changes of one log frame."""
    return [_KINDS[tag](*fields) for tag, *fields in value]
