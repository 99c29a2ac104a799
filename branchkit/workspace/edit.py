"""Namespace operations as lists of changes: POSIX rules are checked here, nothing is carried out.

Raises OSError with the errno that the calling process must see.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import NamedTuple

from branchkit.workspace.changes import Change, Cut, Meta, New, Put, Up, Xattr
from branchkit.workspace.layers import Tree

NAME_BYTES = 255
LINKS = 65000  # as ext4
NOREPLACE = 1
EXCHANGE = 2
CAPABILITY = b"security.capability"
SPACES = (b"user.", b"trusted.", b"security.")  # the kernel says who may use which


class Made(NamedTuple):
    """A new inode and the changes that make it."""

    fid: int
    changes: list[Change]


def error(code: int) -> OSError:
    """The OSError of ``code``."""
    return OSError(code, os.strerror(code))


def child(tree: Tree, parent: int, name: bytes) -> int:
    """The fid under ``name`` in ``parent``; ENOENT, ENOTDIR or ENAMETOOLONG if there is none."""
    if not tree.get(parent).is_dir:
        raise error(errno.ENOTDIR)
    if len(name) > NAME_BYTES:
        raise error(errno.ENAMETOOLONG)
    fid = tree.entries(parent).get(name)
    if fid is None:
        raise error(errno.ENOENT)
    return fid


def up(tree: Tree, *fids: int) -> list[Change]:
    """Bring those of ``fids`` that only the base holds into a layer."""
    return [Up(fid, tree.lower.path(fid)) for fid in dict.fromkeys(fids) if not tree.held(fid)]


def _free(tree: Tree, parent: int, name: bytes) -> None:
    rec = tree.get(parent)
    if not rec.is_dir:
        raise error(errno.ENOTDIR)
    if len(name) > NAME_BYTES:
        raise error(errno.ENAMETOOLONG)
    if name in tree.entries(parent):
        raise error(errno.EEXIST)
    if not rec.parents and parent != tree.root:
        raise error(errno.ENOENT)  # a directory that was removed while somebody stood in it


def make(
    tree: Tree,
    parent: int,
    name: bytes,
    mode: int,
    owner: tuple[int, int],
    now_ns: int,
    *,
    rdev: int = 0,
    target: bytes = b"",
) -> Made:
    """A new file, directory, symlink or device; group and setgid come from a setgid parent."""
    _free(tree, parent, name)
    uid, gid = owner
    above = tree.get(parent)
    if above.mode & stat.S_ISGID:
        gid = above.gid
        if stat.S_ISDIR(mode):
            mode |= stat.S_ISGID
    fid = tree.next_fid
    new = New(fid, mode, uid, gid, rdev, os.fsdecode(target), now_ns)
    put = Put(parent, os.fsdecode(name), fid, now_ns)
    return Made(fid, [*up(tree, parent), new, put])


def link(tree: Tree, fid: int, parent: int, name: bytes, now_ns: int) -> list[Change]:
    """Another name for the file ``fid``."""
    _free(tree, parent, name)
    rec = tree.get(fid)
    if rec.is_dir:
        raise error(errno.EPERM)
    if rec.nlink >= LINKS:
        raise error(errno.EMLINK)
    if not rec.parents:
        raise error(errno.ENOENT)
    return [*up(tree, parent, fid), Put(parent, os.fsdecode(name), fid, now_ns)]


def unlink(tree: Tree, parent: int, name: bytes, now_ns: int) -> Made:
    """Remove the name of something that is no directory; tells whose name it was."""
    fid = child(tree, parent, name)
    if tree.get(fid).is_dir:
        raise error(errno.EISDIR)
    return Made(fid, [*up(tree, parent, fid), Cut(parent, os.fsdecode(name), now_ns)])


def rmdir(tree: Tree, parent: int, name: bytes, now_ns: int) -> Made:
    """Remove an empty directory; tells which it was."""
    fid = child(tree, parent, name)
    if not tree.get(fid).is_dir:
        raise error(errno.ENOTDIR)
    if tree.entries(fid):
        raise error(errno.ENOTEMPTY)
    return Made(fid, [*up(tree, parent, fid), Cut(parent, os.fsdecode(name), now_ns)])


def rename(
    tree: Tree, parent: int, name: bytes, to: int, new_name: bytes, now_ns: int, flags: int = 0
) -> Made:
    """Move a name, over another one if need be; fid is what lost its name there, or 0."""
    if flags & ~(NOREPLACE | EXCHANGE):
        raise error(errno.EINVAL)
    fid = child(tree, parent, name)
    if len(new_name) > NAME_BYTES:
        raise error(errno.ENAMETOOLONG)
    old = tree.entries(to).get(new_name, 0)
    source, target = os.fsdecode(name), os.fsdecode(new_name)
    if flags & EXCHANGE:
        return Made(0, _exchange(tree, Put(parent, source, fid, now_ns), Put(to, target, old, 0)))
    if old and flags & NOREPLACE:
        raise error(errno.EEXIST)
    if old == fid:
        return Made(0, [])
    changes = up(tree, parent, to, fid, *([old] if old else []))
    if old:
        _replaceable(tree, fid, old)
        changes.append(Cut(to, target, now_ns))
    changes += [Cut(parent, source, now_ns), Put(to, target, fid, now_ns)]
    return Made(old, changes)


def _exchange(tree: Tree, one: Put, two: Put) -> list[Change]:
    if not two.child:
        raise error(errno.ENOENT)
    now_ns = one.now_ns
    return [
        *up(tree, one.fid, two.fid, one.child, two.child),
        Cut(one.fid, one.name, now_ns),
        Cut(two.fid, two.name, now_ns),
        Put(one.fid, one.name, two.child, now_ns),
        Put(two.fid, two.name, one.child, now_ns),
    ]


def _replaceable(tree: Tree, fid: int, old: int) -> None:
    moving, covered = tree.get(fid), tree.get(old)
    if covered.is_dir and not moving.is_dir:
        raise error(errno.EISDIR)
    if moving.is_dir and not covered.is_dir:
        raise error(errno.ENOTDIR)
    if covered.is_dir and tree.entries(old):
        raise error(errno.ENOTEMPTY)


def meta(
    tree: Tree,
    fid: int,
    now_ns: int,
    *,
    mode: int | None = None,
    uid: int | None = None,
    gid: int | None = None,
    atime_ns: int | None = None,
    mtime_ns: int | None = None,
) -> list[Change]:
    """Set attributes; None leaves one as it is."""
    bits = None if mode is None else stat.S_IMODE(mode)
    return [*up(tree, fid), Meta(fid, bits, uid, gid, atime_ns, mtime_ns, now_ns)]


def kill_privileges(tree: Tree, fid: int, now_ns: int, *, uid: int) -> list[Change]:
    """What a write or chown by ``uid`` takes away: setuid, setgid, file capabilities.

    root leaves the setgid bit of what its group cannot execute.
    """
    rec = tree.get(fid)
    if rec.is_dir:
        return []
    changes: list[Change] = []
    mode = rec.mode & ~stat.S_ISUID
    if uid or mode & stat.S_IXGRP:
        mode &= ~stat.S_ISGID
    if mode != rec.mode:
        changes += meta(tree, fid, now_ns, mode=mode)
    if CAPABILITY in tree.xattrs(fid):
        changes += set_xattr(tree, fid, CAPABILITY, None, now_ns)
    return changes


def set_xattr(tree: Tree, fid: int, name: bytes, value: bytes | None, now_ns: int) -> list[Change]:
    """Set an extended attribute, or remove it (None; ENODATA when it is not there)."""
    if not name.startswith(SPACES):
        raise error(errno.EOPNOTSUPP)  # ACLs (system.) would be stored but not obeyed
    if value is None and name not in tree.xattrs(fid):
        raise error(errno.ENODATA)
    hexed = None if value is None else value.hex()
    return [*up(tree, fid), Xattr(fid, os.fsdecode(name), hexed, now_ns)]
