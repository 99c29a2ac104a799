"""The Merkle digests of one live branch: only what changed since they were last computed.

A tree says of each directory which names or inodes moved in it. The rows of a directory (a name and
the digest behind it) are remembered by the digest they gave, so whatever branch changes that
directory next starts from them: ten files changed cost ten leaves and one hash over the rows of
each directory above them, however many files, layers and branches there are.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator

from branchkit.workspace import hashes, log
from branchkit.workspace.base import Base
from branchkit.workspace.content import Contents
from branchkit.workspace.hashes import Rows
from branchkit.workspace.layers import Tree
from branchkit.workspace.places import InBase

_FID_BYTES = 8
_PAIR_BYTES = _FID_BYTES + 32


class Merkle:
    """The digests of ``tree``."""

    def __init__(self, tree: Tree, base: Base, contents: Contents) -> None:
        self._tree = tree
        self._base = base
        self._contents = contents
        self._fresh: dict[int, bytes] = {}  # of directories, since the last `frame`

    def digest(self) -> bytes:
        """The digest of the whole tree."""
        done = self._directory(self._tree.root)
        self._tree.moved.clear()  # what is left was removed: no directory comes back
        return done

    def _directory(self, fid: int) -> bytes:
        tree = self._tree
        moved = tree.moved.get(fid)
        if moved is None:
            return tree.digests.get(fid) or self._base.digest(fid)
        entries = tree.entries(fid)
        in_git_dir = hashes.is_git_dir(entries)
        old = self._rows_before(fid)
        if old is None or old.in_git_dir != in_git_dir:
            old, names = Rows(in_git_dir, {}), set(entries)
        else:
            names = self._names(fid, moved, entries)
        rows = self._patched(old, names, entries)
        done = hashes.directory_of(tree.get(fid).mode, rows.by_name.values(), tree.xattrs(fid))
        self._base.memory.keep(done, rows)
        tree.digests[fid] = self._fresh[fid] = done
        del tree.moved[fid]
        return done

    def _rows_before(self, fid: int) -> Rows | None:
        """The rows of a directory before what moved in it; None when they are not at hand."""
        digest = self._tree.digests.get(fid)
        if digest is not None:
            return self._base.memory.rows(digest)
        return self._base.rows(fid) if self._base.has(fid) else None

    def _names(self, fid: int, moved: set[bytes | int], entries: dict[bytes, int]) -> set[bytes]:
        """The names in directory ``fid`` of all that moved there."""
        names: set[bytes] = set()
        unnamed: set[int] = set()
        for each in moved:
            if isinstance(each, bytes):
                names.add(each)
                continue
            try:
                rec = self._tree.get(each)
            except KeyError:
                continue  # nobody can reach it any more, so no name leads to it
            if entries.get(rec.name) == each and rec.parents.count(fid) == 1:
                names.add(rec.name)
            else:
                unnamed.add(each)
        if unnamed:
            names |= {name for name, child in entries.items() if child in unnamed}
        return names

    def _patched(self, old: Rows, names: set[bytes], entries: dict[bytes, int]) -> Rows:
        by_name = dict(old.by_name)
        for name in names:
            child = entries.get(name)
            if child is None or hashes.excluded(name, in_git_dir=old.in_git_dir):
                by_name.pop(name, None)
            else:
                digest = self.child(name, child, in_git_dir=old.in_git_dir)
                by_name[name] = hashes.row(name, digest)
        if not names <= old.by_name.keys():
            by_name = {name: by_name[name] for name in sorted(by_name)}
        return Rows(old.in_git_dir, by_name)

    def child(self, name: bytes, fid: int, *, in_git_dir: bool) -> bytes:
        """The digest of ``fid`` as a child called ``name``: a git index is hashed by entries."""
        rec = self._tree.get(fid)
        if rec.is_dir:
            return self._directory(fid)
        if in_git_dir and name == b"index" and stat.S_ISREG(rec.mode):
            special = hashes.index_leaf(rec.mode, self._contents.whole(fid, rec))
            if special is not None:
                return special
        return self.leaf(fid)

    def leaf(self, fid: int) -> bytes:
        """The digest of anything but a directory."""
        rec = self._tree.get(fid)
        if rec.leaf is None:
            content = self._contents.sha(fid, rec) if stat.S_ISREG(rec.mode) else b""
            rec.leaf = hashes.leaf(
                rec.mode,
                rec.size,
                content,
                target=rec.target,
                rdev=rec.rdev,
                xattrs=self._tree.xattrs(fid),
            )
        return rec.leaf

    def frame(self) -> log.Frame:
        """What the top layer's log keeps of the digests: whoever loads it hashes nothing again."""
        folders, self._fresh = self._fresh, {}
        files = {
            fid: rec.sha
            for fid, rec in self._tree.top.items()
            if rec.sha is not None and not isinstance(rec.data, InBase)
        }
        pairs = [*folders.items(), *files.items()]
        blob = b"".join(fid.to_bytes(_FID_BYTES, "little") + digest for fid, digest in pairs)
        return log.Frame({"kind": "hashes", "folders": len(folders)}, blob, 0)


def recall(tree: Tree, frame: log.Frame) -> None:
    """Take back what `Merkle.frame` kept; ``tree`` is as it was then."""
    value = frame.value
    if not isinstance(value, dict) or value["kind"] != "hashes":
        return  # the row of a snapshot: see `Live.seal`
    for number, (fid, digest) in enumerate(_pairs(frame.blob)):
        if number < value["folders"]:
            tree.digests[fid] = digest
        elif fid in tree.top:
            tree.top[fid].sha = digest
    tree.moved.clear()


def _pairs(blob: bytes) -> Iterator[tuple[int, bytes]]:
    for at in range(0, len(blob), _PAIR_BYTES):
        middle = at + _FID_BYTES
        yield int.from_bytes(blob[at:middle], "little"), blob[middle : at + _PAIR_BYTES]
