"""Every call on every kind of path, and what one call alone needs: see `test_workspace_posix`.

The rest of pjdfstest's groups, with a plain directory as the oracle again.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from branchkit.workspace import Branch, Workspaces, tree_hash

from . import posix_calls
from .kit import FULL

LIBC = ctypes.CDLL(None, use_errno=True)
USER = 65534
NOW, OMIT = (1 << 30) - 1, (1 << 30) - 2  # UTIME_NOW and UTIME_OMIT, in place of nanoseconds
GIVEN_NS = 10**18
LINKS = 65_000  # as ext4; a plain directory of another kind may allow more or fewer


class Roots(NamedTuple):
    """A plain directory and a branch, both empty."""

    plain: Path
    ours: Path


@pytest.fixture
def branch(one_store: Workspaces, tmp_path: Path) -> Iterator[Branch]:
    (tmp_path / "base").mkdir()
    branch = one_store.create(tmp_path.name, base=one_store.add_base(tmp_path / "base"))
    yield branch
    branch.drop()


@pytest.fixture
def roots(branch: Branch, tmp_path: Path) -> Iterator[Roots]:
    (tmp_path / "plain").mkdir()
    yield Roots(tmp_path / "plain", branch.path)
    assert tree_hash(tmp_path / "plain") == tree_hash(branch.path) == branch.tree_hash()


def same(roots: Roots, case: Callable[[Path], object]) -> object:
    """What ``case`` gives, which must be the same in both roots."""
    plain, ours = case(roots.plain), case(roots.ours)
    assert ours == plain
    return ours


def answer(call: Callable[[], object]) -> object:
    try:
        return call()
    except OSError as error:
        return f"errno {error.errno}"


def tried(root: Path, user: int) -> dict[str, dict[str, str]]:
    """All answers of `posix_calls`, by path."""
    command = [sys.executable, posix_calls.__file__, str(user)]
    said = subprocess.check_output(command, cwd=root, text=True)
    return {str(path): answers for path, answers in map(json.loads, said.splitlines())}


@pytest.mark.parametrize("user", [0, USER])
def test_every_call_on_every_kind_of_path(branch: Branch, tmp_path: Path, user: int) -> None:
    """*/01 to */16: ENOTDIR, ENAMETOOLONG, ENOENT, EACCES, ELOOP, EEXIST, EISDIR, ENXIO, ..."""
    plain = tmp_path / "plain"
    plain.mkdir()
    expected, found = tried(plain, user), tried(branch.path, user)
    assert found.keys() == expected.keys()
    different = {
        (path, call): (answers[call], found[path][call])
        for path, answers in expected.items()
        for call in answers
        if answers[call] != found[path][call]
    }
    assert different == {}


def clock(path: Path, times: list[tuple[int, int]], flags: int = 0) -> object:
    """utimensat(2) as it is; the times after it, or that they are the clock's."""
    fields = (ctypes.c_long * 4)(*(part for pair in times for part in pair))
    if LIBC.utimensat(-100, os.fsencode(path), fields, flags):
        return f"errno {ctypes.get_errno()}"
    info = path.lstat()
    found = []
    for ns in (info.st_atime_ns, info.st_mtime_ns):
        found.append(ns if ns < 2 * GIVEN_NS // 2 or ns > 2 * GIVEN_NS else "now")
    return found


def test_times_in_nanoseconds(roots: Roots) -> None:
    """utimensat/*: now, omitted, before 1970, after 2038, on every kind, of a link itself."""

    def case(root: Path) -> object:
        (root / "file").touch()
        (root / "folder").mkdir()
        (root / "link").symlink_to("file")
        os.mkfifo(root / "fifo")
        found = []
        for name in ("file", "folder", "link", "fifo"):
            for times in (
                [(1, 999_999_999), (2, 1)],
                [(0, NOW), (0, OMIT)],
                [(3, 3), (0, NOW)],
                [(0, OMIT), (4, 4)],
                [(0, OMIT), (0, OMIT)],
                [(9_000_000_000, 5), (-1, 7)],
                [(0, 1 << 30), (0, 0)],
            ):
                found.append(clock(root / name, times, flags=0x100))
        found.append(clock(root / "link", [(7, 7), (8, 8)]))
        return found, (root / "file").stat().st_mtime_ns

    said = str(same(roots, case))
    assert "now" in said
    assert "errno 22" in said


def test_a_program_that_runs_cannot_be_written(roots: Roots) -> None:
    """open/20, truncate/11: ETXTBSY; and a file open for writing cannot be run."""

    def case(root: Path) -> object:
        program = shutil.copy("/bin/cat", root / "program")
        with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
            assert running.stdin is not None
            assert running.stdout is not None
            running.stdin.write(b"x")
            running.stdin.flush()
            assert running.stdout.read(1) == b"x"
            found = [answer(partial(os.open, program, flags)) for flags in (1, 2, os.O_TRUNC | 1)]
            found.append(answer(lambda: os.truncate(program, 1)))
            running.stdin.close()
        with open(program, "r+b"):
            found.append(answer(lambda: subprocess.run([program], check=False)))
        found.append(answer(lambda: os.truncate(program, 1)))
        return found

    assert same(roots, case) == ["errno 26"] * 5 + [None]


def test_space_is_put_aside(roots: Roots) -> None:
    """posix_fallocate/*: zeros where nothing was, never shorter, what is written stays."""

    def case(root: Path) -> object:
        fd = os.open(root / "file", os.O_RDWR | os.O_CREAT)
        os.write(fd, b"content")
        found = []
        for offset, size in ((0, 3), (5, 10), (70_000, 10), (0, 0), (-1, 5), (100, 1 << 20)):
            found.append(answer(partial(os.posix_fallocate, fd, offset, size)))
            found.append(os.fstat(fd).st_size)
        found.append(os.pread(fd, 20, 0))
        os.close(fd)
        other = os.open(root / "file", os.O_RDONLY)
        found.append(answer(lambda: os.posix_fallocate(other, 0, 1)))
        os.close(other)
        return found

    same(roots, case)


def test_sizes_at_the_limit(roots: Roots) -> None:
    """truncate/12 and 13, open/25: over 4 GiB, too big, negative."""

    def case(root: Path) -> object:
        (root / "file").touch()
        found = [answer(partial(os.truncate, root / "file", size)) for size in (-1, 1 << 62)]
        os.truncate(root / "file", 5 << 30)
        with (root / "file").open("r+b", buffering=0) as file:
            os.pwrite(file.fileno(), b"end", (5 << 30) - 1)
            found += [os.fstat(file.fileno()).st_size, os.pread(file.fileno(), 9, (5 << 30) - 2)]
            found.append(answer(lambda: os.pwrite(file.fileno(), b"x", 1 << 62)))
            found.append(answer(lambda: os.pread(file.fileno(), 1, -1)))
        os.unlink(root / "file")
        return found

    same(roots, case)


def test_attributes_made_replaced_and_listed(roots: Roots) -> None:
    """XATTR_CREATE and XATTR_REPLACE, empty and large values, what has none, who may not."""

    def case(root: Path) -> object:
        path = root / "file"
        path.touch()
        (root / "link").symlink_to("file")
        put = os.setxattr
        found = [
            answer(lambda: put(path, "user.a", b"1", os.XATTR_REPLACE)),
            answer(lambda: put(path, "user.a", b"1", os.XATTR_CREATE)),
            answer(lambda: put(path, "user.a", b"2", os.XATTR_CREATE)),
            answer(lambda: put(path, "user.a", b"", os.XATTR_REPLACE)),
            answer(lambda: put(path, "user.b", b"b" * 2000)),
            answer(lambda: put(path, "user.c", b"c" * 65_537)),
            answer(lambda: put(path, "user." + "n" * 251, b"")),
            answer(lambda: put(path, "nothing.a", b"1")),
            answer(lambda: put(root / "link", "user.a", b"1", follow_symlinks=False)),
            answer(lambda: os.getxattr(path, "user.none")),
            answer(lambda: os.removexattr(path, "user.none")),
            os.getxattr(path, "user.a"),
            len(os.getxattr(path, "user.b")),
        ]
        os.removexattr(path, "user.a")
        return [*found, sorted(os.listxattr(path))]

    same(roots, case)


def test_directories_that_move(roots: Roots) -> None:
    """rename/24: ``..`` and link counts of both parents; exchanged; over itself; below itself."""

    def case(root: Path) -> object:
        for name in ("a/b/c", "d/e", "f"):
            (root / name).mkdir(parents=True)
        (root / "f" / "file").write_text("x")
        found: list[object] = []

        def counts() -> None:
            places = [root, *sorted(p for p in root.rglob("*") if p.is_dir())]
            found.append([(p.name if p != root else "", p.stat().st_nlink) for p in places])
            for place in places[1:]:
                same_place = os.stat(place / "..").st_ino == place.parent.stat().st_ino
                assert same_place, place

        os.rename(root / "a" / "b", root / "d" / "b")
        counts()
        for old, new, flags in (("d/b", "f", 2), ("f/file", "d/e", 2), ("a", "a/x", 0),
                                ("d", "d/b/x", 2), ("f", "d", 0), ("d/b", "d/b", 0),
                                ("d/e", "f", 1), ("f", "f/c", 2)):  # fmt: skip
            done = LIBC.renameat2(
                -100, os.fsencode(root / old), -100, os.fsencode(root / new), flags
            )
            found.append(ctypes.get_errno() if done else 0)
            counts()
        return found

    same(roots, case)


def test_modes_of_what_is_made(roots: Roots) -> None:
    """mkdir/00, mkfifo/00, mknod/00, open/00: umask, setgid parents, owners, no mode at all."""

    def case(root: Path) -> object:
        (root / "shared").mkdir()
        os.chown(root / "shared", 5, 6)
        (root / "shared").chmod(0o2770)
        old = os.umask(0o027)
        try:
            for folder in (root, root / "shared"):
                (folder / "folder").mkdir(0o1777)
                os.mkfifo(folder / "fifo", 0o666)
                os.mknod(folder / "node", stat.S_IFREG | 0o6777)
                os.close(os.open(folder / "none", os.O_CREAT | os.O_WRONLY, 0))
                (folder / "link").symlink_to("x" * 4095)
        finally:
            os.umask(old)
        found = []
        for path in sorted(root.rglob("*")):
            info = path.lstat()
            size = 0 if stat.S_ISDIR(info.st_mode) else info.st_size
            found.append((path.name, oct(info.st_mode), info.st_uid, info.st_gid, size))
        return found

    same(roots, case)


def test_as_many_links_as_there_can_be(branch: Branch) -> None:
    """link/05: EMLINK at 65,000 names; a sample makes as many as a long life would."""
    first = branch.path / "first"
    first.write_text("x")
    wanted = LINKS if FULL else 500
    for number in range(1, wanted):
        os.link(first, branch.path / f"name{number}")
    assert first.stat().st_nlink == wanted
    if FULL:
        assert answer(lambda: os.link(first, branch.path / "more")) == "errno 31"
    os.unlink(first)
    assert (branch.path / "name1").stat().st_nlink == wanted - 1
    assert branch.freeze().tree_hash == tree_hash(branch.path)
