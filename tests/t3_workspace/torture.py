"""A program that works in a branch while its daemon is killed: ``torture.py ROOT PROGRESS SEED``.

ROOT holds nothing but a directory ``static`` with some files. The program keeps a model of what it
did, and each call must do what the model says: one that was carried out twice, or not at all, shows
at once. Until its standard input ends; then it compares the whole tree with the model and says on
standard output how many calls it made.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import random
import select
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

EXCHANGE = 2
BIG_BYTES = 100_000  # more than is kept inline

libc = ctypes.CDLL(None, use_errno=True)


class File:
    """What a file must be like; two names of one file share it."""

    def __init__(self) -> None:
        self.content = bytearray()
        self.xattrs: dict[str, bytes] = {}
        self.names = 0
        self.mode = 0o644


Node = File | str | None  # a file, the target of a symlink, a directory


class Torture:
    """The model, and one method for each kind of call."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.tree: dict[str, Node] = {"": None}
        self.made = 0
        self.log = bytearray()
        self.log_fd = os.open("the log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_EXCL)
        self.ghost = bytearray(b"ghost" * 20_000)
        self.ghost_fd = os.open("ghost", os.O_RDWR | os.O_CREAT | os.O_EXCL)
        os.write(self.ghost_fd, self.ghost)
        os.unlink("ghost")
        self.static = sorted(os.listdir("static"))
        self.listing = self.listed()

    def paths(self, kind: type[Node] | None) -> list[str]:
        if kind is None:
            return [path for path, node in self.tree.items() if node is None]
        return [path for path, node in self.tree.items() if isinstance(node, kind)]

    def new(self) -> str:
        self.made += 1
        return os.path.join(self.rng.choice(self.paths(None)), f"n{self.made}")

    def file(self) -> tuple[str, File] | None:
        found = self.paths(File)
        if not found:
            return None
        path = self.rng.choice(found)
        node = self.tree[path]
        assert isinstance(node, File)
        return path, node

    def create(self) -> None:
        path, node = self.new(), File()
        node.content[:] = os.urandom(self.rng.choice([0, 10, 5000, BIG_BYTES]))
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        os.write(fd, node.content)
        os.close(fd)
        node.names = 1
        self.tree[path] = node

    def mkdir(self) -> None:
        path = self.new()
        os.mkdir(path)
        self.tree[path] = None

    def symlink(self) -> None:
        path = self.new()
        os.symlink("target" * 3, path)
        self.tree[path] = "target" * 3

    def link(self) -> None:
        if found := self.file():
            path = self.new()
            os.link(found[0], path)
            found[1].names += 1
            self.tree[path] = found[1]

    def unlink(self) -> None:
        if found := self.file():
            os.unlink(found[0])
            found[1].names -= 1
            del self.tree[found[0]]

    def rmdir(self) -> None:
        for path in self.paths(None):
            if path and not any(each.startswith(path + "/") for each in self.tree):
                os.rmdir(path)
                del self.tree[path]
                return

    def rename(self) -> None:
        """Of a file or a directory, to a new name or over another file."""
        movable = [path for path in self.tree if path]
        if not movable:
            return
        path, to = self.rng.choice(movable), self.new()
        over = self.file()
        if over and isinstance(self.tree[path], File) and over[1] is not self.tree[path]:
            to = over[0]
            over[1].names -= 1
        if to.startswith(path + "/"):
            return
        os.rename(path, to)
        for each in [each for each in self.tree if each == path or each.startswith(path + "/")]:
            self.tree[to + each[len(path) :]] = self.tree.pop(each)

    def exchange(self) -> None:
        one, two = self.file(), self.file()
        if one and two:
            at = -100  # AT_FDCWD
            done = libc.renameat2(at, one[0].encode(), at, two[0].encode(), EXCHANGE)
            assert done == 0, os.strerror(ctypes.get_errno())
            self.tree[one[0]], self.tree[two[0]] = two[1], one[1]

    def write(self) -> None:
        if found := self.file():
            data = os.urandom(self.rng.choice([1, 100, 70_000]))
            offset = self.rng.randrange(len(found[1].content) + 1)
            fd = os.open(found[0], os.O_RDWR)
            assert os.pwrite(fd, data, offset) == len(data)
            os.close(fd)
            found[1].content[offset : offset + len(data)] = data

    def store(self) -> None:
        """Through a mapping."""
        found = self.file()
        if found and found[1].content:
            fd = os.open(found[0], os.O_RDWR)
            with mmap.mmap(fd, 0) as mapped:
                mapped[0] = found[1].content[0] = self.rng.randrange(256)
            os.close(fd)

    def truncate(self) -> None:
        if found := self.file():
            size = self.rng.randrange(len(found[1].content) + 100)
            os.truncate(found[0], size)
            found[1].content[:] = found[1].content[:size].ljust(size, b"\0")

    def chmod(self) -> None:
        if found := self.file():
            found[1].mode = self.rng.choice([0o644, 0o600, 0o755])
            os.chmod(found[0], found[1].mode)

    def xattr(self) -> None:
        if found := self.file():
            if found[1].xattrs:
                name = found[1].xattrs.popitem()[0]
                os.removexattr(found[0], name)
            else:
                self.made += 1
                os.setxattr(found[0], f"user.n{self.made}", b"value", os.XATTR_CREATE)
                found[1].xattrs[f"user.n{self.made}"] = b"value"

    def append(self) -> None:
        """To a file that is open all the time."""
        self.log += b"%d\n" % self.made
        os.write(self.log_fd, b"%d\n" % self.made)

    def haunt(self) -> None:
        """A file that is open and has no name."""
        offset = self.rng.randrange(len(self.ghost))
        assert os.pread(self.ghost_fd, 50, offset) == self.ghost[offset : offset + 50]
        self.ghost[offset : offset + 3] = b"boo"
        os.pwrite(self.ghost_fd, b"boo", offset)

    def list(self) -> None:
        """One name more of a directory that stays open."""
        next(self.listing)

    def listed(self) -> Iterator[None]:
        while True:
            with os.scandir("static") as found:
                names = []
                for entry in found:
                    names.append(entry.name)
                    if len(names) % 20 == 0:
                        yield
            assert sorted(names) == self.static

    def check(self) -> None:
        """The tree is what the model says."""
        found = {str(path): path for path in Path().rglob("*")}
        expected = set(self.tree) - {""} | {"the log", "static"}
        assert {each for each in found if not each.startswith("static/")} == expected
        for name, node in self.tree.items():
            match node:
                case File():
                    info = os.stat(name)
                    assert (info.st_nlink, info.st_mode & 0o777) == (node.names, node.mode), name
                    assert Path(name).read_bytes() == node.content, name
                    xattrs = {each: os.getxattr(name, each) for each in os.listxattr(name)}
                    assert xattrs == node.xattrs, name
                case str():
                    assert os.readlink(name) == node
                case None:
                    assert os.path.isdir(name or ".")
        assert Path("the log").read_bytes() == self.log
        assert os.pread(self.ghost_fd, BIG_BYTES * 2, 0) == self.ghost


def main(root: str, progress: str, seed: str) -> None:
    with open(progress, "r+b") as file:
        counter = mmap.mmap(file.fileno(), 8)
    os.chdir(root)
    rng = random.Random(int(seed))
    torture = Torture(rng)
    calls = [
        torture.create, torture.create, torture.create, torture.mkdir, torture.symlink,
        torture.link, torture.unlink, torture.unlink, torture.rmdir, torture.rename,
        torture.rename, torture.exchange, torture.exchange, torture.write, torture.write,
        torture.store, torture.truncate, torture.chmod, torture.xattr, torture.append,
        torture.haunt, torture.list,
    ]  # fmt: skip
    done = 0
    while not select.select([0], [], [], 0)[0]:
        rng.choice(calls)()
        done += 1
        struct.pack_into("=Q", counter, 0, done)
        if len(torture.tree) > 300:
            torture.unlink()
    torture.check()
    print(json.dumps({"calls": done, "names": len(torture.tree)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
