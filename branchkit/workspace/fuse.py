"""All branches of a store as one FUSE file system: ``<mount>/<branch>/...``.

nodeid = branch number << 40 | fid, so a request names its branch itself and no request depends on
which branch is "current". The only module that imports pyfuse3; it runs in the daemon alone: a
process that serves its own mount hangs in its first page fault.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import pyfuse3

from branchkit.errors import DiskFull
from branchkit.workspace import edit
from branchkit.workspace.branch import Live
from branchkit.workspace.layers import FID_BITS, Change, Put
from branchkit.workspace.loop import Loop, run

FOREVER_S = 86400  # every change comes through this mount, so the kernel may believe what it has
FID_MASK = (1 << FID_BITS) - 1
WRITE_HANDLE = 1 << 62  # in a handle: it may write, so its pages may be dirty
ROOT = 1

_log = logging.getLogger("branchkit.workspace")
P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")


def guarded(
    handler: Callable[Concatenate[S, P], R],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, R]]:
    """``handler`` for pyfuse3: any exception becomes an errno.

    pyfuse3 ends its main loop on anything but FUSEError, which is ENOTCONN for every branch.
    """

    @wraps(handler)
    async def serve(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return handler(self, *args, **kwargs)
        except pyfuse3.FUSEError:
            raise
        except OSError as error:
            raise pyfuse3.FUSEError(error.errno or errno.EIO) from error
        except DiskFull as error:
            raise pyfuse3.FUSEError(errno.ENOSPC) from error
        except Exception as error:
            _log.exception("%s%r failed", handler.__name__, args)
            raise pyfuse3.FUSEError(errno.EIO) from error

    return serve


class Mounted:
    """A branch as the mount knows it; loaded when somebody first looks into it."""

    def __init__(self, load: Callable[[], Live], ended: Callable[[], None]) -> None:
        self._load = load
        self._live: Live | None = None
        self.ended = ended  # called when it was dropped and nobody uses it any more

    @property
    def live(self) -> Live:
        """The branch's state."""
        if self._live is None:
            self._live = self._load()
        return self._live

    def close(self) -> None:
        """Give back what a loaded branch holds."""
        if self._live is not None:
            self._live.close()


class Overlay(pyfuse3.Operations):
    """The request handlers."""

    supports_dot_lookup = False
    enable_writeback_cache = False

    def __init__(self, store: Path) -> None:
        super().__init__()
        self._store = os.fspath(store)
        self.names: dict[bytes, int] = {}
        self._branches: dict[int, Mounted] = {}
        self._dropped: set[int] = set()
        self._refs: dict[int, dict[int, int]] = {}  # branch number -> fid -> kernel's lookups
        self._opens: dict[int, int] = {}
        self._writers: dict[int, int] = {}
        self._attrs: dict[int, pyfuse3.EntryAttributes] = {}
        self._listings: dict[int, tuple[int, list[tuple[bytes, int]]]] = {}
        self._next_listing = 1
        self._root_attr = self._make_root_attr()
        self._absent = pyfuse3.EntryAttributes()
        self._absent.st_ino = pyfuse3.InodeT(0)
        self._absent.entry_timeout = FOREVER_S

    def add(
        self, name: bytes, number: int, load: Callable[[], Live], ended: Callable[[], None]
    ) -> None:
        """Show a branch under ``name``."""
        prefix = number << FID_BITS

        def forget_attrs(changes: Sequence[Change]) -> None:
            for change in changes:
                self._attrs.pop(prefix | change.fid, None)
                if isinstance(change, Put):
                    self._attrs.pop(prefix | change.child, None)

        def hooked() -> Live:
            live = load()
            live.on_change = forget_attrs
            return live

        self._branches[number] = Mounted(hooked, ended)
        self._refs[number] = {}
        self.names[name] = number

    def remove(self, name: bytes) -> None:
        """Take a branch away; files that are open in it can be used until they are closed."""
        number = self.names.pop(name)
        self._dropped.add(number)
        self._end_if_unused(number)

    def dirty(self, name: bytes) -> list[pyfuse3.InodeT]:
        """Inodes whose pages the kernel may hold unwritten: open for writing, or mapped."""
        number = self.names[name]
        return [pyfuse3.InodeT(n) for n in self._writers if n >> FID_BITS == number]

    def _make_root_attr(self) -> pyfuse3.EntryAttributes:
        attr = pyfuse3.EntryAttributes()
        attr.st_ino = pyfuse3.InodeT(ROOT)
        attr.st_mode = pyfuse3.ModeT(stat.S_IFDIR | 0o755)
        attr.st_nlink = 2
        attr.st_uid, attr.st_gid = os.getuid(), os.getgid()
        attr.attr_timeout = attr.entry_timeout = FOREVER_S
        return attr

    def _at(self, node: int) -> tuple[Live, int]:
        mounted = self._branches.get(node >> FID_BITS)
        if mounted is None:
            if node == ROOT:
                raise pyfuse3.FUSEError(errno.EPERM)  # branches are made by the API, not by mkdir
            raise pyfuse3.FUSEError(errno.ESTALE)
        return mounted.live, node & FID_MASK

    def _attr(self, node: int) -> pyfuse3.EntryAttributes:
        attr = self._attrs.get(node)
        if attr is not None:
            return attr
        live, fid = self._at(node)
        rec = live.tree.get(fid)
        attr = pyfuse3.EntryAttributes()
        attr.st_ino = pyfuse3.InodeT(node)
        attr.st_mode = pyfuse3.ModeT(rec.mode)
        attr.st_nlink = rec.nlink
        attr.st_uid, attr.st_gid, attr.st_rdev = rec.uid, rec.gid, rec.rdev
        attr.st_size, attr.st_blocks = rec.size, (rec.size + 511) // 512
        attr.st_atime_ns, attr.st_mtime_ns = rec.atime_ns, rec.mtime_ns
        attr.st_ctime_ns = rec.ctime_ns
        attr.attr_timeout = attr.entry_timeout = FOREVER_S
        self._attrs[node] = attr
        return attr

    def _entry(self, node: int) -> pyfuse3.EntryAttributes:
        """The attributes for a reply that makes the kernel remember ``node``."""
        attr = self._attr(node)
        refs = self._refs[node >> FID_BITS]
        fid = node & FID_MASK
        refs[fid] = refs.get(fid, 0) + 1
        return attr

    @guarded
    def lookup(
        self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        """A name in a directory; that there is none is remembered by the kernel too."""
        if parent_inode == ROOT:
            number = self.names.get(name)
            if number is None:
                raise pyfuse3.FUSEError(errno.ENOENT)  # not remembered: it may be made any time
            return self._entry(number << FID_BITS | self._branches[number].live.tree.root)
        live, parent = self._at(parent_inode)
        fid = live.tree.entries(parent).get(name)
        if fid is None:
            if len(name) > edit.NAME_BYTES:
                raise pyfuse3.FUSEError(errno.ENAMETOOLONG)
            return self._absent
        return self._entry(parent_inode & ~FID_MASK | fid)

    async def forget(self, inode_list: Sequence[tuple[int, int]]) -> None:
        """The kernel has dropped inodes; no reply and no error is possible here."""
        for node, lookups in inode_list:
            try:
                self._forget(node, lookups)
            except Exception:  # noqa: BLE001 it would end the mount of every branch
                _log.exception("forget(%d, %d) failed", node, lookups)

    def _forget(self, node: int, lookups: int) -> None:
        refs = self._refs.get(node >> FID_BITS)
        if refs is None:
            return
        fid = node & FID_MASK
        left = refs.get(fid, 0) - lookups
        if left > 0:
            refs[fid] = left
            return
        refs.pop(fid, None)
        self._attrs.pop(node, None)
        self._drop_if_orphan(node)

    def _drop_if_orphan(self, node: int) -> None:
        number, fid = node >> FID_BITS, node & FID_MASK
        if fid not in self._refs[number] and node not in self._opens:
            self._branches[number].live.forget(fid)

    def _end_if_unused(self, number: int) -> None:
        if any(node >> FID_BITS == number for node in self._opens):
            return
        # Not when the kernel has forgotten its last inode: without need it never does. Whoever
        # still stands in a dropped branch gets ESTALE.
        self._dropped.discard(number)
        del self._refs[number]
        mounted = self._branches.pop(number)
        mounted.close()
        mounted.ended()

    @guarded
    def getattr(self, inode: int, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        """stat(2)."""
        return self._root_attr if inode == ROOT else self._attr(inode)

    @guarded
    def setattr(
        self,
        inode: int,
        attr: pyfuse3.EntryAttributes,
        fields: pyfuse3.SetattrFields,
        fh: int | None,
        ctx: pyfuse3.RequestContext,
    ) -> pyfuse3.EntryAttributes:
        """chmod, chown, utimens and truncate."""
        live, fid = self._at(inode)
        now_ns = time.time_ns()
        if fields.update_size:
            live.resize(fid, attr.st_size, now_ns)
        changes = edit.meta(
            live.tree,
            fid,
            now_ns,
            mode=attr.st_mode if fields.update_mode else None,
            uid=attr.st_uid if fields.update_uid else None,
            gid=attr.st_gid if fields.update_gid else None,
            atime_ns=attr.st_atime_ns if fields.update_atime else None,
            mtime_ns=attr.st_mtime_ns if fields.update_mtime else None,
        )
        live.commit(changes)
        return self._attr(inode)

    @guarded
    def readlink(self, inode: int, ctx: pyfuse3.RequestContext) -> bytes:
        """Where a symlink points."""
        live, fid = self._at(inode)
        return live.tree.get(fid).target

    def _make(
        self,
        parent_inode: int,
        name: bytes,
        mode: int,
        ctx: pyfuse3.RequestContext,
        *,
        rdev: int = 0,
        target: bytes = b"",
    ) -> int:
        live, parent = self._at(parent_inode)
        owner = (ctx.uid, ctx.gid)
        made = edit.make(
            live.tree, parent, name, mode, owner, time.time_ns(), rdev=rdev, target=target
        )
        live.commit(made.changes)
        return parent_inode & ~FID_MASK | made.fid

    @guarded
    def mknod(
        self, parent_inode: int, name: bytes, mode: int, rdev: int, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        """A FIFO, socket, device or regular file."""
        return self._entry(self._make(parent_inode, name, mode, ctx, rdev=rdev))

    @guarded
    def mkdir(
        self, parent_inode: int, name: bytes, mode: int, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        """A directory."""
        return self._entry(self._make(parent_inode, name, mode, ctx))

    @guarded
    def symlink(
        self, parent_inode: int, name: bytes, target: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        """A symbolic link."""
        mode = stat.S_IFLNK | 0o777
        return self._entry(self._make(parent_inode, name, mode, ctx, target=target))

    @guarded
    def link(
        self, inode: int, new_parent_inode: int, new_name: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        """Another name for a file of the same branch."""
        live, fid = self._at(inode)
        if inode >> FID_BITS != new_parent_inode >> FID_BITS:
            raise pyfuse3.FUSEError(errno.EXDEV)
        parent = new_parent_inode & FID_MASK
        live.commit(edit.link(live.tree, fid, parent, new_name, time.time_ns()))
        return self._entry(inode)

    def _lost_name(self, node: int) -> None:
        self._attrs.pop(node, None)
        self._drop_if_orphan(node)

    @guarded
    def unlink(self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        """Remove a name; the inode lives on while it is open."""
        live, parent = self._at(parent_inode)
        gone = edit.unlink(live.tree, parent, name, time.time_ns())
        live.commit(gone.changes)
        self._lost_name(parent_inode & ~FID_MASK | gone.fid)

    @guarded
    def rmdir(self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        """Remove an empty directory."""
        live, parent = self._at(parent_inode)
        gone = edit.rmdir(live.tree, parent, name, time.time_ns())
        live.commit(gone.changes)
        self._lost_name(parent_inode & ~FID_MASK | gone.fid)

    @guarded
    def rename(
        self,
        parent_inode_old: int,
        name_old: bytes,
        parent_inode_new: int,
        name_new: bytes,
        flags: int,
        ctx: pyfuse3.RequestContext,
    ) -> None:
        """Move a name, with RENAME_NOREPLACE and RENAME_EXCHANGE."""
        live, parent = self._at(parent_inode_old)
        if parent_inode_old >> FID_BITS != parent_inode_new >> FID_BITS:
            raise pyfuse3.FUSEError(errno.EXDEV)
        to = parent_inode_new & FID_MASK
        done = edit.rename(live.tree, parent, name_old, to, name_new, time.time_ns(), flags)
        live.commit(done.changes)
        if done.fid:
            self._lost_name(parent_inode_old & ~FID_MASK | done.fid)

    def _handle(self, node: int, flags: int) -> pyfuse3.FileInfo:
        handle = node
        self._opens[node] = self._opens.get(node, 0) + 1
        if flags & os.O_ACCMODE != os.O_RDONLY:
            handle |= WRITE_HANDLE
            self._writers[node] = self._writers.get(node, 0) + 1
        return pyfuse3.FileInfo(fh=pyfuse3.FileHandleT(handle))

    @guarded
    def open(self, inode: int, flags: int, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        """open(2); the kernel leaves O_TRUNC to us."""
        live, fid = self._at(inode)
        if flags & os.O_TRUNC:
            live.resize(fid, 0, time.time_ns())
        return self._handle(inode, flags)

    @guarded
    def create(
        self,
        parent_inode: int,
        name: bytes,
        mode: int,
        flags: int,
        ctx: pyfuse3.RequestContext,
    ) -> tuple[pyfuse3.FileInfo, pyfuse3.EntryAttributes]:
        """A new regular file, open."""
        node = self._make(parent_inode, name, mode, ctx)
        return self._handle(node, flags), self._entry(node)

    @guarded
    def read(self, fh: int, off: int, size: int) -> bytes:
        """read(2), or a page fault."""
        live, fid = self._at(fh & ~WRITE_HANDLE)
        return live.read(fid, off, size)

    @guarded
    def write(self, fh: int, off: int, buf: bytes) -> int:
        """write(2), or pages that were written through a mapping."""
        live, fid = self._at(fh & ~WRITE_HANDLE)
        live.write(fid, off, buf, time.time_ns())
        return len(buf)

    @guarded
    def flush(self, fh: int) -> None:
        """Nothing is held back, so the kernel need not ask again."""
        raise pyfuse3.FUSEError(errno.ENOSYS)

    @guarded
    def release(self, fh: int) -> None:
        """The last close of a handle; one from before a restart of the daemon is unknown."""
        node = fh & ~WRITE_HANDLE
        _count_down(self._opens, node)
        if fh & WRITE_HANDLE:
            _count_down(self._writers, node)
        mounted = self._branches.get(node >> FID_BITS)
        if mounted is not None and node not in self._opens:
            mounted.live.contents.release(node & FID_MASK)
            self._drop_if_orphan(node)
            if node >> FID_BITS in self._dropped:
                self._end_if_unused(node >> FID_BITS)

    @guarded
    def fsync(self, fh: int, datasync: bool) -> None:
        """Return once the file and what led to it are on stable storage."""
        live, fid = self._at(fh & ~WRITE_HANDLE)
        live.sync(fid)

    @guarded
    def opendir(self, inode: int, ctx: pyfuse3.RequestContext) -> pyfuse3.FileHandleT:
        """A listing; read anew whenever it is rewound."""
        listing, self._next_listing = self._next_listing, self._next_listing + 1
        self._listings[listing] = (inode, [])
        return pyfuse3.FileHandleT(listing)

    @guarded
    def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        """Names with true attributes from position ``start_id`` on."""
        node, names = self._listings[fh]
        if start_id == 0:
            names = self._list(node)
            self._listings[fh] = (node, names)
        for at in range(start_id, len(names)):
            name, child = names[at]
            if not self._is_there(node, name, child):
                continue  # removed since: naming it would plant it in the kernel's cache again
            attr = self._attr(child)
            if not pyfuse3.readdir_reply(token, pyfuse3.FileNameT(name), attr, at + 1):
                return
            self._entry(child)

    def _is_there(self, node: int, name: bytes, child: int) -> bool:
        if node == ROOT:
            return self.names.get(name) == child >> FID_BITS
        live, fid = self._at(node)
        return live.tree.entries(fid).get(name) == child & FID_MASK

    def _list(self, node: int) -> list[tuple[bytes, int]]:
        if node == ROOT:
            return [
                (name, number << FID_BITS | self._branches[number].live.tree.root)
                for name, number in sorted(self.names.items())
            ]
        live, fid = self._at(node)
        prefix = node & ~FID_MASK
        return [(name, prefix | child) for name, child in live.tree.entries(fid).items()]

    @guarded
    def releasedir(self, fh: int) -> None:
        """closedir(3)."""
        self._listings.pop(fh, None)

    @guarded
    def fsyncdir(self, fh: int, datasync: bool) -> None:
        """Return once every name so far is on stable storage."""
        node, _ = self._listings[fh]
        if node != ROOT:
            self._at(node)[0].sync()

    @guarded
    def statfs(self, ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        """The space of the disk that holds the store."""
        info, data = os.statvfs(self._store), pyfuse3.StatvfsData()
        data.f_bsize, data.f_frsize = info.f_bsize, info.f_frsize
        data.f_blocks, data.f_bfree, data.f_bavail = info.f_blocks, info.f_bfree, info.f_bavail
        data.f_files, data.f_ffree, data.f_favail = info.f_files, info.f_ffree, info.f_favail
        data.f_namemax = edit.NAME_BYTES
        return data

    @guarded
    def getxattr(self, inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> bytes:
        """One extended attribute."""
        found = None
        if inode != ROOT:
            live, fid = self._at(inode)
            found = live.tree.xattrs(fid).get(name)
        if found is None:
            raise pyfuse3.FUSEError(errno.ENODATA)
        return found

    @guarded
    def listxattr(self, inode: int, ctx: pyfuse3.RequestContext) -> list[pyfuse3.XAttrNameT]:
        """The names of all extended attributes."""
        if inode == ROOT:
            return []
        live, fid = self._at(inode)
        return [pyfuse3.XAttrNameT(name) for name in live.tree.xattrs(fid)]

    @guarded
    def setxattr(self, inode: int, name: bytes, value: bytes, ctx: pyfuse3.RequestContext) -> None:
        """Set an extended attribute."""
        live, fid = self._at(inode)
        live.commit(edit.set_xattr(live.tree, fid, name, value, time.time_ns()))

    @guarded
    def removexattr(self, inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        """Remove an extended attribute."""
        live, fid = self._at(inode)
        live.commit(edit.set_xattr(live.tree, fid, name, None, time.time_ns()))


def _count_down(counts: dict[int, int], key: int) -> None:
    left = counts.get(key, 0) - 1
    if left > 0:
        counts[key] = left
    else:
        counts.pop(key, None)


def mount(overlay: Overlay, point: Path, loop: Loop) -> None:
    """Mount; requests are answered once `serve` runs."""
    pyfuse3.__dict__["trio"] = loop
    options = {"default_permissions", "fsname=branchkit", "subtype=branchkit"}
    if os.geteuid() == 0:
        options.add("allow_other")  # a sandbox may run as another user; modes still decide
    pyfuse3.init(overlay, os.fspath(point), options)


def serve() -> None:
    """Answer requests until `stop` or an unmount."""
    run(pyfuse3.main(min_tasks=1, max_tasks=1))


def stop() -> None:
    """Make `serve` return."""
    pyfuse3.terminate()


def unmount() -> None:
    """Take the mount away, even if somebody still stands in it."""
    pyfuse3.close(unmount=True)


def pull(nodes: Sequence[pyfuse3.InodeT]) -> None:
    """Make the kernel hand over dirty pages of ``nodes``. Never call it on the loop's thread."""
    for node in nodes:
        try:
            pyfuse3.invalidate_inode(node)
        except OSError as error:
            if error.errno != errno.ENOENT:  # ENOENT: it has dropped the inode, so none are dirty
                _log.warning("inode %d could not be pulled: %s", node, error)


def forget_name(name: bytes) -> None:
    """Make the kernel forget a branch's name. Never call it on the loop's thread."""
    try:
        pyfuse3.invalidate_entry(pyfuse3.InodeT(ROOT), pyfuse3.FileNameT(name))
    except OSError as error:
        if error.errno != errno.ENOENT:
            _log.warning("name %r could not be invalidated: %s", name, error)
