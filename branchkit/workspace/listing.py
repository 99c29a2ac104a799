"""The inodes of a live branch as entries (see `scan.Entry`), and entries as a directory."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from branchkit.workspace.branch import Live
from branchkit.workspace.content import clone, pwrite_all
from branchkit.workspace.places import Hosted, InBase
from branchkit.workspace.scan import Entry

# All of it, the file that holds it, or (offset, bytes) of what is not zeros.
Content = bytes | Path | Iterator[tuple[int, bytes]]


def entry_of(live: Live, fid: int, path: str) -> Entry:
    """One inode as an entry; ``inode`` is its fid, ``link`` too when it has several names."""
    rec = live.tree.get(fid)
    xattrs = {os.fsdecode(n): v.hex() for n, v in sorted(live.tree.xattrs(fid).items())}
    return Entry(
        path,
        rec.mode,
        0 if rec.is_dir else rec.size,
        rec.mtime_ns,
        live.contents.sha(fid, rec).hex() if stat.S_ISREG(rec.mode) else "",
        os.fsdecode(rec.target),
        rec.rdev,
        {name: value for name, value in xattrs.items() if name.startswith("user.")},
        fid if not rec.is_dir and len(rec.parents) > 1 else 0,
        fid,
        0,
    )


def entries(live: Live) -> Iterator[Entry]:
    """Every path of the branch, parents first."""
    waiting = [("", live.tree.root)]
    while waiting:
        path, fid = waiting.pop()
        yield entry_of(live, fid, path)
        if live.tree.get(fid).is_dir:
            prefix = path + "/" if path else ""
            below = live.tree.entries(fid)
            waiting += [(prefix + os.fsdecode(n), f) for n, f in sorted(below.items())]


def content(live: Live, entry: Entry) -> Content:
    """The content of a file that `entry_of` described."""
    rec = live.tree.get(entry.inode)
    if isinstance(rec.data, InBase):
        return live.base.unchanged(rec.data.path)
    if isinstance(rec.data, Hosted):
        return live.contents.host_path(rec.data)
    if isinstance(rec.data, bytearray):
        return bytes(rec.data)
    return live.contents.regions(entry.inode, rec)


def build(directory: Path, tree: Sequence[Entry], content_of: Callable[[Entry], Content]) -> None:
    """Make ``directory`` hold ``tree``: contents, modes, times, links, user.* attributes.

    Owner and group are those of whoever runs this: git refuses repositories of strangers.
    """
    first: dict[int, Path] = {}
    in_order = sorted(tree)
    for entry in in_order:
        path = directory / entry.path
        if entry.link and entry.link in first:
            path.hardlink_to(first[entry.link])
            continue
        if entry.link:
            first[entry.link] = path
        make(path, entry, content_of)
    for entry in reversed(in_order):
        set_meta(directory / entry.path, entry)


def make(path: Path, entry: Entry, content_of: Callable[[Entry], Content]) -> None:
    """``entry`` at ``path``, where nothing is yet; its modes and times come with `set_meta`."""
    if entry.is_dir:
        path.mkdir(mode=0o700, parents=not entry.path)
    elif stat.S_ISLNK(entry.mode):
        path.symlink_to(entry.target)
    elif entry.is_file:
        source = content_of(entry)
        if isinstance(source, bytes):
            path.write_bytes(source)
        elif isinstance(source, Path):
            copy(source, path)
        else:
            with path.open("xb", buffering=0) as writer:
                for offset, data in source:
                    pwrite_all(writer.fileno(), data, offset)
                writer.truncate(entry.size)
    else:
        os.mknod(path, stat.S_IFMT(entry.mode) | 0o600, entry.rdev)


def copy(source: Path, target: Path) -> None:
    """The content of ``source`` at ``target``, sharing extents where that is possible."""
    with source.open("rb", buffering=0) as reader, target.open("xb", buffering=0) as writer:
        clone(reader.fileno(), writer.fileno(), os.fstat(reader.fileno()).st_size)


def set_meta(path: Path, entry: Entry) -> None:
    """Attributes, mode and time of what lies at ``path``."""
    for name, value in entry.xattrs.items():
        os.setxattr(path, name, bytes.fromhex(value), follow_symlinks=False)
    if not stat.S_ISLNK(entry.mode):
        path.chmod(stat.S_IMODE(entry.mode))
    os.utime(path, ns=(entry.mtime_ns, entry.mtime_ns), follow_symlinks=False)
