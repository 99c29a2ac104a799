"""POSIX cases by the groups of pjdfstest, each in a plain directory and in a branch: equal answers.

What a directory of the machine answers is the oracle, so no case states what the kernel decides.
"""

from __future__ import annotations

import ctypes
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import NamedTuple

import pytest

from branchkit.workspace import Workspaces, tree_hash

LIBC = ctypes.CDLL(None, use_errno=True)
KINDS = ["file", "directory", "full", "symlink", "fifo", "none"]
FLAGS = {"plain": 0, "noreplace": 1, "exchange": 2}
USER = 65534

REFUSED: list[Callable[[Path], object]] = [
    lambda r: os.rename(r / "from", r / "from" / "full" / "deeper"),
    lambda r: os.rename(r / "hard", r / "from" / "file"),
    lambda r: os.rename(r / "from" / "file", r / "from" / "file" / "x"),
    lambda r: os.rename(r / "from" / "full", r / "to" / "directory"),
    lambda r: os.rename(r / "from" / "file" / "", r / "x"),
    lambda r: os.rmdir(r / "from" / "full"),
    lambda r: os.rmdir(r / "from" / "file"),
    lambda r: os.rmdir(r / "from" / "symlink"),
    lambda r: os.rmdir(r / "from" / "directory" / "."),
    lambda r: os.rmdir(r / "from" / "directory" / ".."),
    lambda r: os.unlink(r / "from" / "directory"),
    lambda r: os.unlink(r / "from" / "file" / "x"),
    lambda r: os.link(r / "from" / "directory", r / "x"),
    lambda r: os.link(r / "from" / "file", r / "to" / "file"),
    lambda r: os.link(r / "from" / "symlink", r / "x", follow_symlinks=False),
    lambda r: os.mkdir(r / "from" / "file" / "x"),
    lambda r: os.mkdir(r / "from" / "symlink"),
    lambda r: os.symlink("x", r / "from" / "file"),
    lambda r: os.symlink("x" * 4096, r / "x"),
    lambda r: os.symlink("x" * 4095, r / "x"),
    lambda r: os.open(r / "from" / "symlink", os.O_RDONLY | os.O_NOFOLLOW),
    lambda r: os.open(r / "from" / "directory", os.O_WRONLY),
    lambda r: os.open(r / "from" / "file", os.O_RDONLY | os.O_DIRECTORY),
    lambda r: os.open(r / "from" / "file", os.O_CREAT | os.O_EXCL),
    lambda r: os.truncate(r / "from" / "directory", 0),
    lambda r: os.truncate(r / "from" / "file", -1),
    lambda r: os.chmod(r / "none", 0o600),
    lambda r: os.mknod(r / "from" / "fifo", stat.S_IFIFO | 0o600),
    lambda r: os.utime(r / "none"),
    lambda r: os.mkdir(r / ("n" * 255)),
    lambda r: os.mkdir(r / ("n" * 256)),
    lambda r: os.rename(r / "hard", r / ("n" * 256)),
    lambda r: os.stat(r / ("n" * 256)),
    lambda r: os.mkdir(os.fspath(r) + "/." * 2100 + "/x"),
    lambda r: os.stat(tangle(r) / "l0"),
]
TIMES: list[Callable[[Path], object]] = [
    lambda r: (r / "new").touch(),
    lambda r: (r / "new").mkdir(),
    lambda r: (r / "new").symlink_to("x"),
    lambda r: os.mkfifo(r / "new"),
    lambda r: (r / "new").hardlink_to(r / "from" / "file"),
    lambda r: (r / "hard").unlink(),
    lambda r: os.rename(r / "hard", r / "renamed"),
    lambda r: os.rename(r / "hard", r / "from" / "moved"),
    lambda r: os.rename(r / "from" / "directory", r / "moved"),
    lambda r: (r / "from" / "directory").rmdir(),
    lambda r: (r / "from" / "file").write_text("longer than before"),
    lambda r: os.truncate(r / "from" / "file", 2),
    lambda r: (r / "from" / "file").chmod(0o600),
    lambda r: os.chown(r / "from" / "file", 1, 1),
    lambda r: os.setxattr(r / "from" / "file", "user.x", b"1"),
    lambda r: os.listdir(r / "from"),
]


def tangle(root: Path) -> Path:
    """``root`` with more symlinks in a row than the kernel follows."""
    for number in range(50):
        (root / f"l{number}").symlink_to(f"l{number + 1}")
    return root


def furnish(root: Path) -> None:
    """One of each kind, under two names: what stands in the base, and what is renamed over."""
    for side in ("from", "to"):
        (root / side).mkdir()
        (root / side / "file").write_text(side)
        (root / side / "directory").mkdir()
        (root / side / "full").mkdir()
        (root / side / "full" / "inner").write_text(side)
        (root / side / "symlink").symlink_to("file")
        os.mkfifo(root / side / "fifo")
    (root / "hard").hardlink_to(root / "from" / "file")
    (root / "big").write_bytes(b"b" * 70_000)
    (root / "big2").hardlink_to(root / "big")


def furnish_all(root: Path) -> None:
    """A folder for each case: one branch serves them all, and each still works on the base."""
    furnish(root)
    folders = [f"refused{number}" for number in range(len(REFUSED))]
    folders += [f"times{number}" for number in range(len(TIMES))]
    folders += ["-".join(three) for three in product(FLAGS, KINDS, KINDS)]
    for folder in folders:
        (root / folder).mkdir()
        furnish(root / folder)


class Roots(NamedTuple):
    """A plain directory and a branch with the same in them."""

    plain: Path
    ours: Path

    def __truediv__(self, name: str) -> Roots:
        return Roots(self.plain / name, self.ours / name)


@pytest.fixture(scope="module")
def every(one_store: Workspaces) -> Roots:
    """Roots with a folder for each of the many small cases."""
    ws, folder = one_store, one_store.store.parent
    for name in ("every", "every-plain"):
        (folder / name).mkdir()
        furnish_all(folder / name)
    branch = ws.create("every", base=ws.add_base(folder / "every"))
    return Roots(folder / "every-plain", branch.path)


@pytest.fixture
def roots(one_store: Workspaces, tmp_path: Path) -> Iterator[Roots]:
    """Fresh roots for one test."""
    ws, folder = one_store, one_store.store.parent
    if not (folder / "base").exists():
        (folder / "base").mkdir()
        furnish(folder / "base")
    (tmp_path / "plain").mkdir()
    furnish(tmp_path / "plain")
    branch = ws.create(tmp_path.name, base=ws.add_base(folder / "base"))
    yield Roots(tmp_path / "plain", branch.path)
    branch.drop()


def answer(call: Callable[[], object]) -> object:
    """What ``call`` gives, or its errno."""
    try:
        return call()
    except OSError as error:
        return f"errno {error.errno}"


def same(roots: Roots, case: Callable[[Path], object]) -> object:
    """The answer of ``case``, which must be the same in both roots; so must the trees after it."""
    plain, ours = answer(lambda: case(roots.plain)), answer(lambda: case(roots.ours))
    assert ours == plain
    assert tree_hash(roots.ours) == tree_hash(roots.plain)
    return ours


def rename2(old: Path, new: Path, flags: int) -> None:
    if LIBC.renameat2(-100, os.fsencode(old), -100, os.fsencode(new), flags):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def links(root: Path) -> dict[str, int]:
    """Link counts of everything."""
    return {str(p.relative_to(root)): p.lstat().st_nlink for p in [root, *root.rglob("*")]}


@pytest.mark.parametrize("old", KINDS)
@pytest.mark.parametrize("flag", FLAGS)
def test_rename_matrix(every: Roots, old: str, flag: str) -> None:
    """rename/*: each kind over each kind, with both flags, and the link counts after it."""
    for new in KINDS:

        def case(root: Path, new: str = new) -> object:
            places = root / "from" / old, root / "to" / new
            return answer(lambda: rename2(*places, FLAGS[flag])), links(root)

        same(every / f"{flag}-{old}-{new}", case)


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_what_is_refused_is_refused_alike(every: Roots, number: int) -> None:
    """ENOTEMPTY, ENOTDIR, EISDIR, EEXIST, EINVAL, ELOOP, EPERM, ENAMETOOLONG of all groups."""

    def outcome(root: Path) -> object:
        done = REFUSED[number](root)
        if isinstance(done, int):
            os.close(done)
        return None

    same(every / f"refused{number}", outcome)


@pytest.mark.parametrize("number", range(len(TIMES)))
def test_times_change_where_they_must(every: Roots, number: int) -> None:
    """mtime and ctime of parents, ctime of what lost or got a name or an attribute."""

    def moved(root: Path) -> object:
        for path in sorted(root.rglob("*"), reverse=True):
            os.utime(path, ns=(10**18, 10**18), follow_symlinks=False)
        os.utime(root, ns=(10**18, 10**18))
        watched = [root, root / "from", root / "from" / "file", root / "from" / "directory"]
        before = {path: path.lstat() for path in watched}
        TIMES[number](root)
        found = []
        for path in watched:
            with suppress(FileNotFoundError):
                old, new = before[path], path.lstat()
                changed = (old.st_mtime_ns != new.st_mtime_ns, old.st_ctime_ns != new.st_ctime_ns)
                found.append((path.name if path != root else "", *changed))
        return found

    same(every / f"times{number}", moved)


def test_links_across_a_copy_up(roots: Roots) -> None:
    """link/*, unlink/*: names of one base file stay one file, whichever is written first."""

    def case(root: Path) -> object:
        seen = []
        with (root / "big").open("rb", buffering=0) as reader:
            (root / "big3").hardlink_to(root / "big2")
            with (root / "big2").open("r+b", buffering=0) as writer:
                writer.write(b"changed")
            seen.append(os.pread(reader.fileno(), 7, 0))
            (root / "big").unlink()
            os.rename(root / "big3", root / "from" / "big3")
            with (root / "from" / "big3").open("ab") as writer:
                writer.write(b"end")
            seen.append(os.pread(reader.fileno(), 10, 69_997))
        seen.append((root / "big2").read_bytes())
        one, two = (root / "big2").stat(), (root / "from" / "big3").stat()
        return seen, one.st_nlink, one.st_size, one.st_ino == two.st_ino

    same(roots, case)


def test_appending_and_holes(roots: Roots) -> None:
    """open/*, truncate/*, ftruncate/*: O_APPEND ignores the offset, a longer file ends in zeros."""

    def case(root: Path) -> object:
        fd = os.open(root / "big", os.O_RDWR | os.O_APPEND)
        os.lseek(fd, 0, os.SEEK_SET)
        os.write(fd, b"tail")
        os.ftruncate(fd, 300_000)
        os.write(fd, b"after the hole")
        os.ftruncate(fd, 50_000)
        os.ftruncate(fd, 150_000)
        content = os.pread(fd, 1 << 20, 0)
        os.close(fd)
        os.truncate(root / "from" / "file", 70_000)
        os.truncate(root / "from" / "file", 1)
        os.truncate(root / "from" / "file", 3)
        return content, (root / "from" / "file").read_bytes(), (root / "big2").stat().st_size

    same(roots, case)


def test_deep_directories(roots: Roots) -> None:
    """Deeper than PATH_MAX, which only relative paths can reach."""

    def case(root: Path) -> object:
        here = os.getcwd()
        try:
            os.chdir(root / "from")
            for _ in range(30):
                os.mkdir("d" * 200)
                os.chdir("d" * 200)
            Path("bottom").write_text("x")
            return answer(lambda: len(os.getcwd())) != "", os.stat("bottom").st_size
        finally:
            os.chdir(here)
            subprocess.run(["rm", "-rf", root / "from"], check=True)

    same(roots, case)


# Each line of the program is one case; what it prints is compared. It runs as another user.
AS_USER = """
import os, sys
def say(call, *arguments):
    try: call(*arguments); print("ok")
    except OSError as error: print("errno", error.errno)
os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
say(os.unlink, "sticky/theirs"); say(os.rename, "sticky/theirs", "sticky/x")
say(os.rename, "sticky/mine", "sticky/theirs"); say(os.rename, "sticky/mine", "sticky/mine2")
say(os.unlink, "sticky/mine2"); say(os.rmdir, "sticky/folder")
say(os.chmod, "sticky/theirs", 0o777); say(os.chown, "sticky/theirs", 65534, 65534)
say(os.mkdir, "closed/x"); say(os.listdir, "closed"); say(os.stat, "hidden/x")
say(os.open, "secret", os.O_RDONLY); say(os.open, "readable", os.O_RDONLY)
say(os.open, "readable", os.O_WRONLY); say(os.truncate, "readable", 0)
say(os.utime, "readable"); say(os.utime, "writable"); say(os.utime, "writable", (1, 1))
say(os.access, "secret", os.R_OK); say(os.link, "secret", "sticky/link")
say(os.setxattr, "readable", "user.x", b"1"); say(os.setxattr, "writable", "user.x", b"1")
say(os.mkdir, "shared/folder"); say(os.mkdir, "shared/folder/below")
os.umask(0o027); say(os.mkdir, "shared/masked"); open("shared/file", "w").close()
say(os.chmod, "shared/file", 0o2755)
"""


def test_access_by_another_user(roots: Roots) -> None:
    """chmod/*, chown/*, open/*, unlink/*, rename/*: permissions, sticky and setgid directories."""

    def case(root: Path) -> object:
        for name, mode in (("sticky", 0o1777), ("closed", 0o755), ("hidden", 0o700)):
            (root / name).mkdir()
            (root / name).chmod(mode)
        (root / "hidden" / "x").touch()
        (root / "sticky" / "theirs").touch()
        (root / "sticky" / "folder").mkdir()
        (root / "sticky" / "mine").touch()
        os.chown(root / "sticky" / "mine", USER, USER)
        for name, mode in (("secret", 0o600), ("readable", 0o644), ("writable", 0o666)):
            (root / name).touch()
            (root / name).chmod(mode)
        (root / "shared").mkdir()
        os.chown(root / "shared", USER, 77)
        (root / "shared").chmod(0o2777)
        command = [sys.executable, "-c", AS_USER]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
        owners = [
            (str(p.relative_to(root)), oct(p.lstat().st_mode), p.lstat().st_uid, p.lstat().st_gid)
            for p in sorted((root / "shared").rglob("*"))
        ]
        return done.stdout, owners

    found = same(roots, case)
    assert "ok" in str(found)
    assert "errno 13" in str(found)


def test_setuid_and_special_modes(roots: Roots) -> None:
    """chmod/*: all twelve bits; mknod/*, mkfifo/*: types, and a node of a device."""

    def case(root: Path) -> object:
        found: list[object] = []
        for mode in (0o0, 0o777, 0o4755, 0o2755, 0o1777, 0o7777):
            (root / "from" / "file").chmod(mode)
            (root / "from" / "directory").chmod(mode)
            found += [oct((root / "from" / n).stat().st_mode) for n in ("file", "directory")]
        os.mknod(root / "device", stat.S_IFCHR | 0o600, os.makedev(1, 3))
        found.append((root / "device").stat().st_rdev)
        os.mknod(root / "plain", stat.S_IFREG | 0o640)
        found.append(oct((root / "plain").stat().st_mode))
        (root / "from" / "directory").chmod(0o755)
        return found

    same(roots, case)


def test_what_is_removed_lives_while_it_is_used(roots: Roots) -> None:
    """unlink/14, rmdir: open files and working directories outlive their names."""

    def case(root: Path) -> object:
        fd = os.open(root / "from" / "file", os.O_RDWR)
        (root / "hard").unlink()
        (root / "from" / "file").unlink()
        os.write(fd, b"still here")
        found = [os.pread(fd, 100, 0), os.fstat(fd).st_nlink]
        os.close(fd)
        place = os.open(root / "from" / "directory", os.O_RDONLY)
        (root / "from" / "directory").rmdir()
        found += [answer(lambda: os.mkdir("x", dir_fd=place)), os.listdir(place)]
        os.close(place)
        return found

    same(roots, case)
