"""Two loads in the manner of fsx and fsstress: one file against a model, and many hands in a tree.

``python loads.py ROOT SEED OPERATIONS`` is one of the hands.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import random
import stat
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

FILE_BYTES = 3 << 20
CHUNK_BYTES = 64 * 1024
LIBC = ctypes.CDLL(None, use_errno=True)

# What a hand may get when the others were faster; anything else is a fault of the file system.
LOST_RACES = {
    errno.ENOENT, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENOTEMPTY, errno.ELOOP,
    errno.EINVAL, errno.EPERM, errno.ENODATA, errno.EBUSY, errno.ENXIO, errno.EXDEV,
}  # fmt: skip
NAMES = [f"n{number}" for number in range(12)]


class OneFile:
    """A file and what must be in it; each step is one random operation on both."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path = path
        self.model = bytearray(path.read_bytes() if path.exists() else b"")
        self.done: Counter[str] = Counter()
        self._choose = random.Random(seed)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT)
        self._steps: list[Callable[[], None]] = [
            self.write, self.write, self.append, self.read, self.read, self.cut,
            self.map_write, self.map_read, self.copy, self.reopen, self.sync, self.fallocate,
        ]  # fmt: skip

    def step(self) -> None:
        """One operation."""
        step = self._choose.choice(self._steps)
        self.done[step.__name__] += 1
        step()

    def _offset(self, most: int) -> int:
        """Anywhere, with a liking for the borders of chunks and pages."""
        if self._choose.random() < 0.4:
            border = self._choose.randrange(most // CHUNK_BYTES + 1) * CHUNK_BYTES
            return min(most, max(0, border + self._choose.randrange(-2, 3)))
        return self._choose.randrange(most + 1)

    def _size(self) -> int:
        return self._choose.choice([1, 100, 4096, 5000, CHUNK_BYTES, 200_000])

    def _put(self, offset: int, data: bytes) -> None:
        if offset > len(self.model):
            self.model.extend(bytes(offset - len(self.model)))
        self.model[offset : offset + len(data)] = data

    def write(self) -> None:
        """pwrite(2), also behind the end."""
        offset = self._offset(min(FILE_BYTES, len(self.model) + 100_000))
        data = self._choose.randbytes(self._size())
        assert os.pwrite(self._fd, data, offset) == len(data)
        self._put(offset, data)

    def append(self) -> None:
        """write(2) through another descriptor, with O_APPEND."""
        if len(self.model) < FILE_BYTES:
            data = self._choose.randbytes(self._size())
            fd = os.open(self.path, os.O_WRONLY | os.O_APPEND)
            os.write(fd, data)
            os.close(fd)
            self._put(len(self.model), data)

    def read(self) -> None:
        """pread(2), also across and behind the end."""
        offset, size = self._offset(len(self.model) + 5000), self._size()
        found = os.pread(self._fd, size, offset)
        assert found == self.model[offset : offset + size], f"read {size} at {offset}"

    def cut(self) -> None:
        """ftruncate(2) or truncate(2), shorter or longer."""
        size = self._offset(min(FILE_BYTES, len(self.model) * 2))
        os.truncate(self._fd if self._choose.random() < 0.5 else self.path, size)
        del self.model[size:]
        self._put(size, b"")

    def map_write(self) -> None:
        """A store through a shared mapping."""
        if self.model:
            with mmap.mmap(self._fd, len(self.model)) as memory:
                offset = self._offset(len(self.model) - 1)
                data = self._choose.randbytes(min(self._size(), len(self.model) - offset))
                memory[offset : offset + len(data)] = data
                self._put(offset, data)

    def map_read(self) -> None:
        """A load through a mapping."""
        if self.model:
            with mmap.mmap(self._fd, len(self.model), access=mmap.ACCESS_READ) as memory:
                offset, size = self._offset(len(self.model)), self._size()
                assert memory[offset : offset + size] == self.model[offset : offset + size]

    def copy(self) -> None:
        """copy_file_range(2) within the file."""
        size = min(self._size(), len(self.model) // 2)
        source = self._choose.randrange(len(self.model) - 2 * size + 1)
        target = source + size + self._choose.randrange(len(self.model) - source - 2 * size + 1)
        done = os.copy_file_range(self._fd, self._fd, size, source, target) if size else 0
        self._put(target if done else 0, bytes(self.model[source : source + done]))

    def fallocate(self) -> None:
        """posix_fallocate(3): never shorter, and nothing in it changes."""
        offset, size = self._offset(len(self.model)), self._size()
        os.posix_fallocate(self._fd, offset, size)
        self._put(max(len(self.model), offset + size), b"")

    def sync(self) -> None:
        """fsync(2)."""
        os.fsync(self._fd)

    def reopen(self) -> None:
        """Close and open again."""
        self.close()
        self._fd = os.open(self.path, os.O_RDWR)

    def close(self) -> None:
        """Close."""
        os.close(self._fd)

    def check(self) -> None:
        """The file is the model, read anew."""
        assert self.path.stat().st_size == len(self.model)
        assert self.path.read_bytes() == self.model


def exchange(one: Path, two: Path) -> None:
    """renameat2(2) with RENAME_EXCHANGE."""
    if LIBC.renameat2(-100, os.fsencode(one), -100, os.fsencode(two), 2):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def hand(root: Path, seed: int, operations: int) -> int:
    """So many random operations below ``root`` among others that do the same."""
    choose = random.Random(seed)
    held: list[int] = []
    done = 0
    while done < operations:
        one, two = (somewhere(root, choose) for _ in range(2))
        try:
            act(choose.randrange(16), one, two, choose, held)
        except OSError as error:
            if error.errno not in LOST_RACES:
                print(f"seed {seed}, operation {done}: {error}", file=sys.stderr)
                return 1
        done += 1
    for fd in held:
        os.close(fd)
    return 0


def somewhere(root: Path, choose: random.Random) -> Path:
    """A path of one to three names."""
    return root.joinpath(*choose.choices(NAMES, k=choose.choice([1, 2, 2, 3])))


def act(what: int, one: Path, two: Path, choose: random.Random, held: list[int]) -> None:
    """One operation."""
    match what:
        case 0 | 1:
            one.mkdir()
        case 2 | 3:
            fd = os.open(one, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK)
            os.write(fd, choose.randbytes(choose.choice([10, 5000, 80_000])))
            held.append(fd)
            if len(held) > 5:
                os.close(held.pop(0))
        case 4:
            one.unlink()
        case 5:
            one.rmdir()
        case 6 | 7:
            os.rename(one, two)
        case 8:
            os.link(one, two, follow_symlinks=False)
        case 9:
            one.symlink_to(os.path.relpath(two, one.parent))
        case 10:
            os.truncate(one, choose.randrange(100_000))
        case 11:
            one.chmod(choose.choice([0o755, 0o700, 0o644]))
        case 12:
            os.setxattr(one, "user.x", b"x")
        case 13:
            for name in os.listdir(one):
                (one / name).lstat()
        case 14:
            exchange(one, two)
        case _:
            one.read_bytes()


def inspect(root: Path) -> int:
    """Look at everything below ``root`` as fsck would; returns how many names there are.

    AssertionError when a listing, stat(2), open(2), link counts or sizes do not fit each other.
    """
    names: Counter[int] = Counter()
    counts: dict[int, tuple[int, Path]] = {}
    waiting = [root]
    while waiting:
        folder = waiting.pop()
        listed = os.listdir(folder)
        assert len(listed) == len(set(listed)), f"{folder} lists a name twice"
        for name in set(NAMES) - set(listed):
            assert not os.path.lexists(folder / name), f"{folder / name} is there and not listed"
        below = 0
        for name in listed:
            path = folder / name
            info = path.lstat()
            names[info.st_ino] += 1
            if stat.S_ISDIR(info.st_mode):
                below += 1
                waiting.append(path)
            else:
                counts[info.st_ino] = (info.st_nlink, path)
            if stat.S_ISREG(info.st_mode):
                assert len(path.read_bytes()) == info.st_size, f"{path} has another size"
            if stat.S_ISLNK(info.st_mode):
                assert len(os.fsencode(os.readlink(path))) == info.st_size
        assert folder.stat().st_nlink == 2 + below, f"{folder} has a wrong link count"
    for inode, (count, path) in counts.items():
        assert names[inode] == count, f"{path} has {count} links and {names[inode]} names"
    return sum(names.values())


if __name__ == "__main__":
    raise SystemExit(hand(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
