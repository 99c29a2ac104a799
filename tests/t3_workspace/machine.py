"""Random lives of branches beside plain directories: each call must give both the same answer.

A hypothesis state machine. Its steps are file operations by name and through open descriptors,
freezes, forks of forks, drops, and daemons that are stopped or killed. What a directory of the
machine does is the model; a snapshot is remembered as a copy of that directory.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import shutil
import stat
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from branchkit.workspace import Branch, Workspaces, tree_hash

from .kit import kill_daemon, picture

LIBC = ctypes.CDLL(None, use_errno=True)
ODD = os.fsdecode(b"caf\xe9 \n")
NAMES = ["a", "b", "big", "d", "d/a", "d/b", "d/e", "d/e/a", "d/" + ODD, "n" * 255, "n" * 256]
SIZES = [0, 1, 100, 4095, 4097, 65_535, 65_537, 200_000, (1 << 20) - 1, 1_500_000]
USES = ["write", "read", "cut", "map", "stat"]
MOST_BRANCHES = 3
MOST_HANDLES = 4
MOST_DEATHS = 2  # of daemons in one life: a start costs more than a hundred operations
GIVEN_NS = 10**16  # times below were set by an operation, times above are the clock's


class Draw(NamedTuple):
    """What an operation may use."""

    one: str
    two: str
    number: int
    size: int


def rename2(old: Path, new: Path, flags: int) -> None:
    """renameat2(2)."""
    if LIBC.renameat2(-100, os.fsencode(old), -100, os.fsencode(new), flags):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


@contextmanager
def opened(path: Path, flags: int) -> Iterator[int]:
    """A descriptor; a FIFO must not make anybody wait."""
    fd = os.open(path, flags | os.O_NONBLOCK, 0o640)
    try:
        yield fd
    finally:
        os.close(fd)


def write(root: Path, draw: Draw) -> None:
    with opened(root / draw.one, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as fd:
        os.write(fd, b"%d" % draw.number * (draw.size // 3))


def patch(root: Path, draw: Draw) -> None:
    with opened(root / draw.one, os.O_RDWR) as fd:
        os.pwrite(fd, b"P" * (draw.number + 1), draw.size)


def append(root: Path, draw: Draw) -> None:
    with opened(root / draw.one, os.O_WRONLY | os.O_APPEND) as fd:
        os.write(fd, b"+" * (draw.number + 1))


def copy(root: Path, draw: Draw) -> None:
    with opened(root / draw.one, os.O_RDONLY) as source, opened(root / draw.two, os.O_RDWR) as to:
        os.copy_file_range(source, to, draw.number * 1000, 0, draw.size)


def remove_tree(root: Path, draw: Draw) -> None:
    if draw.number % 4 == 0:
        # rmtree itself opens what it is given, and would wait at a FIFO for a writer.
        if not stat.S_ISDIR((root / draw.one).lstat().st_mode):
            raise NotADirectoryError(errno.ENOTDIR, draw.one)
        shutil.rmtree(root / draw.one)


def look(root: Path, draw: Draw) -> object:
    info = (root / draw.one).lstat()
    size = 0 if stat.S_ISDIR(info.st_mode) else info.st_size
    names = sorted(os.listdir(root / draw.one)) if stat.S_ISDIR(info.st_mode) else []
    return oct(info.st_mode), info.st_nlink, info.st_uid, info.st_gid, size, names


def times(root: Path, draw: Draw) -> None:
    ns = (draw.number, draw.size * 1_000_000_007)
    os.utime(root / draw.one, ns=ns, follow_symlinks=False)


OPERATIONS: dict[str, Callable[[Path, Draw], object]] = {
    "write": write,
    "append": append,
    "patch": patch,
    "copy": copy,
    "truncate": lambda r, d: os.truncate(r / d.one, d.size),
    "mkdir": lambda r, d: (r / d.one).mkdir(0o700 | d.number % 0o100),
    "unlink": lambda r, d: (r / d.one).unlink(),
    "rmdir": lambda r, d: (r / d.one).rmdir(),
    "rmtree": remove_tree,
    "rename": lambda r, d: os.rename(r / d.one, r / d.two),
    "noreplace": lambda r, d: rename2(r / d.one, r / d.two, 1),
    "exchange": lambda r, d: rename2(r / d.one, r / d.two, 2),
    "link": lambda r, d: os.link(r / d.one, r / d.two, follow_symlinks=False),
    "symlink": lambda r, d: (r / d.one).symlink_to(d.two),
    "mkfifo": lambda r, d: os.mkfifo(r / d.one),
    "chmod": lambda r, d: (r / d.one).chmod(0o600 | d.number % 0o7000),
    "chown": lambda r, d: os.chown(r / d.one, d.number, d.size % 7, follow_symlinks=False),
    "times": times,
    "xattr": lambda r, d: os.setxattr(r / d.one, "user.n", b"%d" % d.number * (d.size % 99)),
    "no xattr": lambda r, d: os.removexattr(r / d.one, "user.n"),
    "look": look,
}


def answer(call: Callable[[], object]) -> object:
    """What ``call`` gives, or its errno."""
    try:
        return call()
    except OSError as error:
        return f"errno {error.errno}"


def shape(root: Path) -> dict[str, object]:
    """What must be equal: all but directory sizes and times that the clock gave."""
    found: dict[str, object] = {}
    for path, (mode, mtime_ns, content, xattrs, twin) in picture(root).items():
        info = (root / path).lstat()
        given = isinstance(mtime_ns, int) and mtime_ns < GIVEN_NS
        size = 0 if stat.S_ISDIR(info.st_mode) else info.st_size
        owner = (info.st_uid, info.st_gid)
        given_ns = mtime_ns if given else 0
        found[path] = (mode, given_ns, content, xattrs, twin, info.st_nlink, size, owner)
    return found


def furnish(root: Path) -> None:
    """What every life begins with."""
    (root / "d" / "e").mkdir(parents=True)
    (root / "a").write_bytes(b"base" * 30_000)
    (root / "d" / "a").write_bytes(b"small")
    (root / "d" / "e" / "a").hardlink_to(root / "d" / "a")
    (root / "big").write_bytes(bytes(range(256)) * 6000)
    (root / "d" / ODD).symlink_to("a")


def copied(source: Path, target: Path) -> Path:
    """A copy with links, times, owners and attributes."""
    subprocess.run(["cp", "-a", source, target], check=True)
    return target


@dataclass
class World:
    """What all lives of one run share: a store, its daemon, and a count of what was done."""

    folder: Path
    ws: Workspaces
    reopen: Callable[[], Workspaces]
    base: str = ""
    done: Counter[str] = field(default_factory=Counter)
    names: int = 0

    def new_name(self) -> str:
        """A name that nothing has yet."""
        self.names += 1
        return f"n{self.names}"


@dataclass
class Pair:
    """A branch and the directory that must be equal to it."""

    plain: Path
    branch: Branch
    parent: str | None = None

    def both(self, call: Callable[[Path], object], what: object) -> None:
        """``call`` on both sides gives the same."""
        plain = answer(lambda: call(self.plain))
        ours = answer(lambda: call(self.branch.path))
        assert ours == plain, f"{what}: {ours} in the branch, {plain} in the directory"


@dataclass
class Handle:
    """One file open on both sides, and its branch."""

    plain: int
    ours: int
    pair: Pair
    name: str

    def both(self, call: Callable[[int], object], what: object) -> None:
        """``call`` on both descriptors gives the same."""
        plain, ours = answer(lambda: call(self.plain)), answer(lambda: call(self.ours))
        assert ours == plain, f"{what}: {ours!r:.200} in the branch, {plain!r:.200} beside it"

    def close(self) -> None:
        """Close both; one side may have lost its daemon."""
        os.close(self.plain)
        with suppress(OSError):
            os.close(self.ours)


names = st.sampled_from(NAMES)
sizes = st.builds(lambda size, more: size + more, st.sampled_from(SIZES), st.integers(0, 9))
draws = st.builds(Draw, names, names, st.integers(0, 99), sizes)
picks = st.integers(0, 11)


class Lives(RuleBasedStateMachine):
    """One life; `world` has to be set before."""

    world: World

    def __init__(self) -> None:
        super().__init__()
        self.folder = self.world.folder / self.world.new_name()
        self.folder.mkdir()
        (self.folder / "p0").mkdir()
        furnish(self.folder / "p0")
        branch = self.world.ws.create(self.folder.name, base=self.world.base)
        self.pairs = [Pair(self.folder / "p0", branch)]
        self.snapshots: list[tuple[str, Path]] = []
        self.handles: list[Handle] = []
        self.deaths = 0

    def count(self, what: str) -> None:
        """One more step of its kind."""
        self.world.done[what] += 1

    def pair(self, pick: int) -> Pair:
        """One of the branches."""
        return self.pairs[pick % len(self.pairs)]

    @rule(pick=picks, kind=st.sampled_from(sorted(OPERATIONS)), draw=draws)
    def operate(self, pick: int, kind: str, draw: Draw) -> None:
        """An operation by name."""
        self.count("by name")
        self.pair(pick).both(lambda root: OPERATIONS[kind](root, draw), (kind, draw))

    @rule(pick=picks, kinds=st.lists(st.sampled_from(sorted(OPERATIONS)), max_size=6), draw=draws)
    def operate_on_one(self, pick: int, kinds: list[str], draw: Draw) -> None:
        """Several operations on one name."""
        for kind in kinds:
            self.operate(pick, kind, draw)

    @precondition(lambda self: len(self.handles) < MOST_HANDLES)
    @rule(pick=picks, name=names, flags=st.sampled_from([0, os.O_CREAT, os.O_APPEND, os.O_TRUNC]))
    def open(self, pick: int, name: str, flags: int) -> None:
        """Open a file for what follows; it stays open while names come and go."""
        pair, found = self.pair(pick), []

        def call(root: Path) -> object:
            way = flags | os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW
            found.append(os.open(root / name, way, 0o640))
            return None

        self.count("open")
        pair.both(call, ("open", name, flags))
        if found:
            self.handles.append(Handle(found[0], found[1], pair, name))

    @precondition(lambda self: self.handles)
    @rule(uses=st.lists(st.tuples(picks, st.sampled_from(USES), draws), min_size=1, max_size=6))
    def use(self, uses: list[tuple[int, str, Draw]]) -> None:
        """Use open files, whether they still have names or not."""
        for pick, what, draw in uses:
            handle = self.handles[pick % len(self.handles)]
            self.count("by descriptor")
            handle.both(partial(through, what=what, draw=draw), (what, draw))

    @precondition(lambda self: self.handles)
    @rule(pick=picks)
    def lose_name(self, pick: int) -> None:
        """Remove the name of an open file: what is held by descriptors alone is easily lost."""
        handle = self.handles[pick % len(self.handles)]
        self.count("by name")
        handle.pair.both(lambda root: (root / handle.name).unlink(), ("unlink", handle.name))

    @precondition(lambda self: self.handles)
    @rule(pick=picks)
    def close(self, pick: int) -> None:
        """Close one."""
        self.handles.pop(pick % len(self.handles)).close()

    @rule(pick=picks)
    def freeze(self, pick: int) -> None:
        """A snapshot is equal to the directory as it is now."""
        pair = self.pair(pick)
        self.count("freeze")
        snapshot = pair.branch.freeze()
        assert snapshot.tree_hash == tree_hash(pair.plain)
        frozen = copied(pair.plain, self.folder / self.world.new_name())
        self.snapshots.append((snapshot.id, frozen))

    @precondition(lambda self: self.snapshots and len(self.pairs) < MOST_BRANCHES)
    @rule(pick=picks)
    def fork(self, pick: int) -> None:
        """A branch of any snapshot, so of a fork of a fork too."""
        self.count("fork")
        snapshot, frozen = self.snapshots[pick % len(self.snapshots)]
        name = self.world.new_name()
        plain = copied(frozen, self.folder / name)
        self.pairs.append(Pair(plain, self.world.ws.create(name, snapshot=snapshot), snapshot))

    @precondition(lambda self: len(self.pairs) > 1)
    @rule(pick=picks)
    def drop(self, pick: int) -> None:
        """Drop a branch; the others do not notice."""
        self.count("drop")
        pair = self.pairs.pop(pick % len(self.pairs))
        for handle in [each for each in self.handles if each.pair is pair]:
            handle.close()
            self.handles.remove(handle)
        pair.branch.drop()

    @precondition(lambda self: self.deaths < MOST_DEATHS)
    @rule(kill=st.booleans(), more=st.integers(0, 1))
    def restart(self, kill: bool, more: int) -> None:
        """Another daemon, after a farewell or a SIGKILL; what was synced or closed is there."""
        if more:
            return  # hypothesis likes every rule alike, and this one costs a second
        self.deaths += 1
        self.count("kill" if kill else "stop")
        for handle in self.handles:
            os.fsync(handle.ours)
        if not kill:
            self.close_all()
            self.world.ws.stop()
        else:
            kill_daemon(self.world.ws, self.world.folder)
            self.close_all()
        self.world.ws = self.world.reopen()
        for pair in self.pairs:
            pair.branch = self.world.ws.branch(pair.branch.name)
            assert tree_hash(pair.branch.path) == tree_hash(pair.plain)

    def close_all(self) -> None:
        """Close whatever is open."""
        while self.handles:
            self.handles.pop().close()

    def teardown(self) -> None:
        """Everything is compared, and what was not changed is as it was."""
        try:
            for pair in self.pairs:
                assert shape(pair.branch.path) == shape(pair.plain)
                expected = tree_hash(pair.plain)
                assert pair.branch.tree_hash() == tree_hash(pair.branch.path) == expected
            for snapshot, frozen in self.snapshots[-3:]:
                fork = self.world.ws.create(self.world.new_name(), snapshot=snapshot)
                assert shape(fork.path) == shape(frozen)
                fork.drop()
            self.count("lives")
        finally:
            self.close_all()
            for pair in self.pairs:
                pair.branch.drop()
            shutil.rmtree(self.folder)


def through(fd: int, what: str, draw: Draw) -> object:
    """One use of an open descriptor."""
    match what:
        case "write":
            return os.pwrite(fd, b"h%d" % draw.number * (draw.number + 1), draw.size)
        case "read":
            return os.pread(fd, 100 + draw.number, draw.size)
        case "cut":
            os.ftruncate(fd, draw.size)
            return os.fstat(fd).st_size
        case "map":
            size = os.fstat(fd).st_size
            if size:
                with mmap.mmap(fd, size) as memory:
                    memory[draw.size % size] = draw.number
            return size
        case _:
            info = os.fstat(fd)
            return oct(info.st_mode), info.st_size, info.st_nlink
