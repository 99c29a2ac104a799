"""All branches of a store as one FUSE file system: ``<mount>/<branch>/...``.

The only module that imports pyfuse3; it runs in the daemon alone: a process that serves its own
mount hangs in its first page fault. Which node is what stands in `nodes`.
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

from branchkit.errors import DiskFull
from branchkit.workspace import edit, handover, names, stale
from branchkit.workspace.kept import Kept
from branchkit.workspace.loop import Loop, in_place_of_trio, run
from branchkit.workspace.nodes import NODE_MASK, ROOT, TAMED_HANDLE, Nodes

with in_place_of_trio():
    import pyfuse3

NOBODY = 65534  # stands for whoever is not root
FOREVER_S = 86400  # every change comes through this mount, so the kernel may believe what it has

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


class Overlay(pyfuse3.Operations):
    """The request handlers."""

    supports_dot_lookup = False
    enable_writeback_cache = False

    def __init__(self, store: Path, kept: Kept) -> None:
        super().__init__()
        self._store = os.fspath(store)
        self._kept = kept
        self.nodes = Nodes(self._forget_attr, kept)
        self._attrs: dict[int, pyfuse3.EntryAttributes] = {}
        self._listings = names.Listings(self.nodes)
        self._root_attr = self._make_root_attr()
        self._absent = pyfuse3.EntryAttributes()
        self._absent.st_ino = pyfuse3.InodeT(0)
        self._absent.entry_timeout = FOREVER_S

    def _forget_attr(self, node: int) -> None:
        self._attrs.pop(node, None)

    def _make_root_attr(self) -> pyfuse3.EntryAttributes:
        attr = pyfuse3.EntryAttributes()
        attr.st_ino = pyfuse3.InodeT(ROOT)
        attr.st_mode = pyfuse3.ModeT(stat.S_IFDIR | 0o755)
        attr.st_nlink = 2
        attr.st_uid, attr.st_gid = os.getuid(), os.getgid()
        attr.attr_timeout = attr.entry_timeout = FOREVER_S
        return attr

    def _attr(self, node: int) -> pyfuse3.EntryAttributes:
        attr = self._attrs.get(node)
        if attr is not None:
            return attr
        live, fid = self.nodes.at(node)
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
        self._kept.looked_up(node)
        return attr

    @guarded
    def lookup(
        self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        """A name in a directory; that there is none is remembered by the kernel too."""
        node = names.lookup(self.nodes, parent_inode, name)
        return self._absent if node is None else self._entry(node)

    async def forget(self, inode_list: Sequence[tuple[int, int]]) -> None:
        """The kernel has dropped inodes; no reply and no error is possible here."""
        self.forgotten(inode_list)

    def forgotten(self, inode_list: Sequence[tuple[int, int]]) -> None:
        """The same for who is no coroutine."""
        for node, lookups in inode_list:
            try:
                if self.nodes.forget(node, lookups):
                    self._attrs.pop(node, None)
            except Exception:  # noqa: BLE001 it would end the mount of every branch
                _log.exception("forget(%d, %d) failed", node, lookups)

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
        names.set_attributes(
            self.nodes,
            inode,
            ctx.uid,
            size=attr.st_size if fields.update_size else None,
            mode=attr.st_mode if fields.update_mode else None,
            uid=attr.st_uid if fields.update_uid else None,
            gid=attr.st_gid if fields.update_gid else None,
            atime_ns=attr.st_atime_ns if fields.update_atime else None,
            mtime_ns=attr.st_mtime_ns if fields.update_mtime else None,
        )
        return self._attr(inode)

    @guarded
    def readlink(self, inode: int, ctx: pyfuse3.RequestContext) -> bytes:
        """Where a symlink points."""
        live, fid = self.nodes.at(inode)
        return live.tree.get(fid).target

    @guarded
    def mknod(
        self, parent_inode: int, name: bytes, mode: int, rdev: int, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        """A FIFO, socket, device or regular file."""
        owner = (ctx.uid, ctx.gid)
        return self._entry(names.make(self.nodes, parent_inode, name, mode, owner, rdev=rdev))

    @guarded
    def mkdir(
        self, parent_inode: int, name: bytes, mode: int, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        """A directory."""
        owner = (ctx.uid, ctx.gid)
        return self._entry(names.make(self.nodes, parent_inode, name, mode, owner))

    @guarded
    def symlink(
        self, parent_inode: int, name: bytes, target: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        """A symbolic link."""
        owner, mode = (ctx.uid, ctx.gid), stat.S_IFLNK | 0o777
        return self._entry(names.make(self.nodes, parent_inode, name, mode, owner, target=target))

    @guarded
    def link(
        self, inode: int, new_parent_inode: int, new_name: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        """Another name for a file of the same branch."""
        names.link(self.nodes, inode, new_parent_inode, new_name)
        return self._entry(inode)

    @guarded
    def unlink(self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        """Remove a name; the inode lives on while it is open."""
        names.unlink(self.nodes, parent_inode, name)

    @guarded
    def rmdir(self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        """Remove an empty directory."""
        names.rmdir(self.nodes, parent_inode, name)

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
        names.rename(self.nodes, parent_inode_old, name_old, parent_inode_new, name_new, flags)

    def _handle(self, node: int, flags: int, uid: int) -> pyfuse3.FileInfo:
        handle = self.nodes.opened(node, flags) | (TAMED_HANDLE if uid else 0)
        return pyfuse3.FileInfo(fh=pyfuse3.FileHandleT(handle))

    @guarded
    def open(self, inode: int, flags: int, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        """open(2); the kernel leaves O_TRUNC to us."""
        live, fid = self.nodes.at(inode)
        if flags & os.O_TRUNC:
            live.resize(fid, 0, time.time_ns())
            if ctx.uid:
                names.tame(live, fid, ctx.uid)
        return self._handle(inode, flags, ctx.uid)

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
        node = names.make(self.nodes, parent_inode, name, mode, (ctx.uid, ctx.gid))
        return self._handle(node, flags, ctx.uid), self._entry(node)

    @guarded
    def read(self, fh: int, off: int, size: int) -> bytes:
        """read(2), or a page fault."""
        live, fid = self.nodes.at(fh & NODE_MASK)
        return live.read(fid, off, size)

    @guarded
    def write(self, fh: int, off: int, buf: bytes) -> int:
        """write(2), or pages that were written through a mapping."""
        live, fid = self.nodes.at(fh & NODE_MASK)
        live.write(fid, off, buf, time.time_ns())
        if fh & TAMED_HANDLE:
            names.tame(live, fid, NOBODY)
        return len(buf)

    @guarded
    def flush(self, fh: int) -> None:
        """Nothing is held back, so the kernel need not ask again."""
        raise pyfuse3.FUSEError(errno.ENOSYS)

    @guarded
    def release(self, fh: int) -> None:
        """The last close of a handle."""
        self.nodes.closed(fh)

    @guarded
    def fsync(self, fh: int, datasync: bool) -> None:
        """Return once the file and what led to it are on stable storage."""
        live, fid = self.nodes.at(fh & NODE_MASK)
        live.sync(fid)

    @guarded
    def opendir(self, inode: int, ctx: pyfuse3.RequestContext) -> pyfuse3.FileHandleT:
        """A listing; read anew whenever it is rewound."""
        return pyfuse3.FileHandleT(self._listings.open(inode))

    @guarded
    def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        """Names with true attributes from position ``start_id`` on."""
        for name, node, after in self._listings.names(fh, start_id):
            if not pyfuse3.readdir_reply(token, pyfuse3.FileNameT(name), self._attr(node), after):
                return
            self._entry(node)

    @guarded
    def releasedir(self, fh: int) -> None:
        """closedir(3)."""
        self._listings.close(fh)

    @guarded
    def fsyncdir(self, fh: int, datasync: bool) -> None:
        """Return once every name so far is on stable storage."""
        node = self._listings.node(fh)
        if node != ROOT:
            self.nodes.at(node)[0].sync()

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
            live, fid = self.nodes.at(inode)
            found = live.tree.xattrs(fid).get(name)
        if found is None:
            raise pyfuse3.FUSEError(errno.ENODATA)
        return found

    @guarded
    def listxattr(self, inode: int, ctx: pyfuse3.RequestContext) -> list[pyfuse3.XAttrNameT]:
        """The names of all extended attributes."""
        if inode == ROOT:
            return []
        live, fid = self.nodes.at(inode)
        return [pyfuse3.XAttrNameT(name) for name in live.tree.xattrs(fid)]

    @guarded
    def setxattr(self, inode: int, name: bytes, value: bytes, ctx: pyfuse3.RequestContext) -> None:
        """Set an extended attribute."""
        live, fid = self.nodes.at(inode)
        changes = edit.set_xattr(live.tree, fid, name, value, time.time_ns())
        self.nodes.commit(live, changes)

    @guarded
    def removexattr(self, inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> None:
        """Remove an extended attribute."""
        live, fid = self.nodes.at(inode)
        changes = edit.set_xattr(live.tree, fid, name, None, time.time_ns())
        self.nodes.commit(live, changes)


def mount(
    overlay: Overlay, point: Path, loop: Loop, session: handover.Session, fuse_fd: int | None
) -> None:
    """Mount; requests are answered once `serve` runs. RuntimeError when that is not possible.

    With ``fuse_fd`` the mount is there already and is taken over from a worker that died.
    """
    pyfuse3.__dict__["trio"] = loop
    options = ["default_permissions"]
    if os.geteuid() == 0:
        options.append("allow_other")  # a sandbox may run as another user; modes still decide
    loop.on_wait = session.kept.answered
    if fuse_fd is not None:
        mounted = handover.Mounted(fuse_fd, session.kept.init)
        _hand_over(handover.Handover(mounted, session, again=True), overlay, options, loop)
        return
    if os.environ.get(handover.PLAIN) != "1":
        try:
            mounted = handover.mount(point, ",".join(options))
        except OSError as error:
            _log.warning("left to libfuse: %s", error)
        else:
            _hand_over(handover.Handover(mounted, session), overlay, options, loop)
            return
    pyfuse3.init(overlay, os.fspath(point), {*options, "fsname=branchkit", "subtype=branchkit"})
    session.ready()


def _hand_over(
    handed: handover.Handover, overlay: Overlay, options: Sequence[str], loop: Loop
) -> None:
    answered = loop.on_wait

    def step() -> None:
        if not handed.step():
            loop.on_wait = answered

    loop.on_wait = step
    pyfuse3.init(overlay, f"/dev/fd/{handed.fd}", set(options))


def serve() -> None:
    """Answer requests until `stop` or an unmount."""
    run(pyfuse3.main(min_tasks=1, max_tasks=1))


def stop() -> None:
    """Make `serve` return."""
    pyfuse3.terminate()


def unmount(point: Path) -> None:
    """Take the mount away, even if somebody still stands in it."""
    stale.clear(point)  # libfuse takes away only what it has mounted itself
    pyfuse3.close(unmount=True)


def pull(nodes: Sequence[int]) -> None:
    """Make the kernel hand over dirty pages of ``nodes``. Never call it on the loop's thread."""
    for node in nodes:
        try:
            pyfuse3.invalidate_inode(pyfuse3.InodeT(node))
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
