"""What only a mount has: open files, mappings, names, one daemon for many processes."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import stat
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from branchkit.errors import DaemonGone, WorkspaceError
from branchkit.workspace import Branch, Workspaces, tree_hash

from .kit import Open, daemons, git, worker

LIBC = ctypes.CDLL(None, use_errno=True)


@pytest.fixture
def ws(opened: Open) -> Workspaces:
    return opened(backend="fuse")


@pytest.fixture
def branch(ws: Workspaces, base: Path) -> Branch:
    return ws.create("one", base=ws.add_base(base))


def rename2(old: Path, new: Path, flags: int) -> None:
    if LIBC.renameat2(-100, os.fsencode(old), -100, os.fsencode(new), flags):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def test_an_unlinked_file_lives_while_it_is_open(branch: Branch) -> None:
    path = branch.path / "README"
    with path.open("r+b", buffering=0) as file:
        path.unlink()
        (branch.path / "src" / "hard").unlink()
        file.seek(0, os.SEEK_END)
        file.write(b"written after")
        file.seek(0)
        assert file.read() == b"read me\nwritten after"
        assert os.fstat(file.fileno()).st_nlink == 0
        branch.freeze()
        file.write(b"!")
        assert os.pread(file.fileno(), 100, 0) == b"read me\nwritten after!"
    assert not path.exists()
    assert branch.tree_hash() == tree_hash(branch.path)


def test_a_file_replaced_while_open_keeps_its_old_content(branch: Branch) -> None:
    path = branch.path / "README"
    (branch.path / "new").write_text("new")
    with path.open() as file:
        os.rename(branch.path / "new", path)
        assert file.read() == "read me\n"
    assert path.read_text() == "new"


def test_a_reader_sees_what_is_written_after_the_copy_up(branch: Branch) -> None:
    with (branch.path / "src" / "deep" / "data").open("rb", buffering=0) as reader:
        assert reader.read(2) == b"\0\1"
        with (branch.path / "src" / "deep" / "data").open("r+b", buffering=0) as writer:
            writer.write(b"XY")
        assert os.pread(reader.fileno(), 3, 0) == b"XY\2"


def test_open_files_and_mappings_are_in_the_freeze(ws: Workspaces, branch: Branch) -> None:
    """OVERLAY 0.5: a write on an open handle and a store through mmap are not lost, and do not
    leak into a snapshot that was taken before them."""
    path = branch.path / "mapped"
    path.write_bytes(b"." * 100_000)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        other = (branch.path / "handle").open("wb", buffering=0)
        other.write(b"x" * 10_000)
        memory[70_000:70_004] = b"DATA"
        first = branch.freeze()
        memory[70_000:70_004] = b"LATE"
        other.write(b"y")
        second = branch.freeze()
        other.close()
    for snapshot, word, size in ((first, b"DATA", 10_000), (second, b"LATE", 10_001)):
        fork = ws.create(snapshot.id, snapshot=snapshot.id)
        assert (fork.path / "mapped").read_bytes()[70_000:70_004] == word
        assert (fork.path / "handle").stat().st_size == size
        assert tree_hash(fork.path) == snapshot.tree_hash


def test_mapped_pages_are_in_the_hash_and_in_the_diff(branch: Branch) -> None:
    with (branch.path / "README").open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        before = branch.tree_hash()
        memory[0:4] = b"READ"
        assert branch.tree_hash() != before
        assert [c.path for c in branch.diff()] == ["README", "src/hard"]


def test_mapped_pages_survive_the_end_of_the_daemon(
    opened: Open, ws: Workspaces, base: Path
) -> None:
    branch = ws.create("one", base=ws.add_base(base))
    program = (
        "import mmap, sys; f = open(sys.argv[1], 'r+b'); m = mmap.mmap(f.fileno(), 0);"
        "m[0:4] = b'READ'; print('ready', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(branch.path / "README")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        ws.stop()
        child.kill()
    assert (opened().branch("one").path / "README").read_text() == "READ me\n"


def test_rename_exchange_and_noreplace(branch: Branch) -> None:
    root = branch.path
    with pytest.raises(FileExistsError):
        rename2(root / "README", root / "run.sh", 1)
    rename2(root / "README", root / "src" / "deep", 2)
    assert (root / "src" / "deep").read_text() == "read me\n"
    assert os.listdir(root / "README") == ["data"]
    with pytest.raises(FileNotFoundError):
        rename2(root / "none", root / "run.sh", 2)
    assert branch.tree_hash() == tree_hash(root)


def test_branches_are_apart(ws: Workspaces, branch: Branch, base: Path) -> None:
    """branchfs 28: the branch is in the inode, so no write goes to another one."""
    two = ws.create("two", base=ws.add_base(base))
    for call in (os.rename, os.link):
        with pytest.raises(OSError, match="cross-device") as caught:
            call(branch.path / "README", two.path / "moved")
        assert caught.value.errno == errno.EXDEV
    program = "import sys, pathlib; p = pathlib.Path(sys.argv[1]);"
    program += "[(p / f'f{n}').write_text(sys.argv[2]) for n in range(50)]"
    running = [
        subprocess.Popen([sys.executable, "-c", program, str(b.path), b.name])
        for b in (branch, two)
    ]
    assert [process.wait() for process in running] == [0, 0]
    for each in (branch, two):
        assert {(each.path / f"f{n}").read_text() for n in range(50)} == {each.name}


def test_the_top_of_the_mount_is_not_writable(ws: Workspaces, branch: Branch) -> None:
    with pytest.raises(PermissionError):
        (ws.store / "mnt" / "mine").mkdir()
    assert os.listdir(ws.store / "mnt") == ["one"]


def test_metadata(branch: Branch) -> None:
    path = branch.path / "src" / "main.py"
    path.chmod(0o4711)
    os.chown(path, 12, 34)
    os.utime(path, ns=(1_000_000_001, 2_000_000_002))
    info = path.stat()
    assert (stat.S_IMODE(info.st_mode), info.st_uid, info.st_gid) == (0o711, 12, 34)
    assert (info.st_atime_ns, info.st_mtime_ns) == (1_000_000_001, 2_000_000_002)
    (branch.path / "shared").mkdir()
    os.chown(branch.path / "shared", 0, 77)
    (branch.path / "shared").chmod(0o2775)
    (branch.path / "shared" / "below").mkdir()
    assert (branch.path / "shared" / "below").stat().st_gid == 77
    assert (branch.path / "shared" / "below").stat().st_mode & stat.S_ISGID
    assert (branch.path / "src").stat().st_nlink == 3
    assert os.statvfs(branch.path).f_namemax == 255
    with pytest.raises(OSError, match="name too long"):
        (branch.path / ("n" * 256)).touch()


def test_xattrs(branch: Branch) -> None:
    path = branch.path / "README"
    assert os.getxattr(path, "user.origin") == b"test"
    os.setxattr(path, "user.b", b"2", os.XATTR_CREATE)
    with pytest.raises(FileExistsError):
        os.setxattr(path, "user.b", b"3", os.XATTR_CREATE)
    assert sorted(os.listxattr(path)) == ["user.b", "user.origin"]
    os.removexattr(path, "user.b")
    with pytest.raises(OSError, match="No data"):
        os.getxattr(path, "user.b")


def test_holes_and_sizes(branch: Branch) -> None:
    """Around the border between the log and host files, and with bytes of an earlier life."""
    path = branch.path / "file"
    with path.open("w+b", buffering=0) as file:
        for size in (10, 65_536, 65_537, 1_000_000, 70_000, 3, 200_000, 0, 5):
            os.pwrite(file.fileno(), b"E", max(0, size - 1))
            os.ftruncate(file.fileno(), size)
            assert os.fstat(file.fileno()).st_size == size
            content = path.read_bytes()
            assert len(content) == size
            assert content.strip(b"\0E") == b""
        os.ftruncate(file.fileno(), 70_000)
        assert path.read_bytes()[5:] == bytes(69_995)
    (branch.path / "sparse").touch()
    os.truncate(branch.path / "sparse", 1 << 34)
    assert (branch.path / "sparse").stat().st_size == 1 << 34


def test_appending_from_two_processes(branch: Branch) -> None:
    program = (
        "import sys; f = open(sys.argv[1], 'ab', 0); [f.write(b'%5d' % n) for n in range(300)]"
    )
    path = str(branch.path / "log")
    running = [subprocess.Popen([sys.executable, "-c", program, path]) for _ in range(2)]
    assert [process.wait() for process in running] == [0, 0]
    content = Path(path).read_bytes()
    words = sorted(content[at : at + 5] for at in range(0, len(content), 5))
    assert words == sorted(b"%5d" % n for n in range(300) for _ in range(2))


def test_a_big_directory_lists_each_name_once(branch: Branch) -> None:
    folder = branch.path / "many"
    folder.mkdir()
    for number in range(2000):
        (folder / f"name-{number}").touch()
    listing = os.scandir(folder)
    first = next(listing).name
    for number in range(0, 2000, 2):
        (folder / f"name-{number}").unlink()
    names = [first, *(entry.name for entry in listing)]
    assert len(names) == len(set(names))
    assert {f"name-{n}" for n in range(1, 2000, 2)} <= set(names)
    assert len(os.listdir(folder)) == 1000


def test_git_works_inside(ws: Workspaces, branch: Branch) -> None:
    """sandbox0 609, branchfs 4 and 5: init, commit, checkout, branch -D, gc, clone, worktree."""
    root = branch.path
    assert git(root, "status", "--short").split("\n")[0] != "fatal"
    git(root, "checkout", "-q", "-b", "side")
    (root / "side").write_text("side")
    git(root, "add", "side")
    git(root, "commit", "-q", "-m", "side")
    git(root, "checkout", "-q", "main")
    assert not (root / "side").exists()
    git(root, "merge", "-q", "side")
    git(root, "branch", "-D", "side")
    git(root, "gc", "-q", "--prune=now")
    git(root, "fsck", "--strict")
    git(root.parent, "clone", "-q", "--no-local", "one", "one/clone")
    assert (root / "clone" / "side").read_text() == "side"
    git(root, "worktree", "add", "-q", "tree")
    snapshot = branch.freeze()
    fork = ws.create("fork", snapshot=snapshot.id)
    assert git(fork.path, "log", "--format=%s") == "side\none\n"
    assert snapshot.tree_hash == tree_hash(root) == tree_hash(fork.path)


def test_git_in_two_branches_hashes_equal(ws: Workspaces, base: Path) -> None:
    """Equal behaviour must give equal hashes, though index and reflogs differ in every byte."""
    found = set()
    for name in ("one", "two"):
        branch = ws.create(name, base=ws.add_base(base))
        (branch.path / "x").write_text("x")
        git(branch.path, "add", "x")
        git(branch.path, "commit", "-q", "-m", "x")
        git(branch.path, "status")
        found.add(branch.freeze().tree_hash)
    assert len(found) == 1


def test_two_processes_get_one_daemon(ws: Workspaces, branch: Branch, tmp_path: Path) -> None:
    program = (
        "import sys, pathlib; from branchkit.workspace import Workspaces\n"
        "with Workspaces.open(pathlib.Path(sys.argv[1])) as ws: print(ws.pin(), ws.branch('one'))"
    )
    command = [sys.executable, "-c", program, str(ws.store)]
    pids = {subprocess.check_output(command, text=True) for _ in range(2)}
    assert pids == {f"{ws.pin()} Branch('one')\n"}
    assert sorted(daemons(tmp_path)) == sorted([ws.pin(), worker(ws)])


def test_opening_at_once_starts_one_daemon(opened: Open, tmp_path: Path) -> None:
    program = (
        "import sys, pathlib; from branchkit.workspace import Workspaces\n"
        "ws = Workspaces.open(pathlib.Path(sys.argv[1]), backend='fuse')\n"
        "print(ws.pin(), flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "store")]
    with ExitStack() as stack:
        running = [
            stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            )
            for _ in range(5)
        ]
        pids = [process.stdout.readline() for process in running if process.stdout]
        opened()  # so that the fixture ends the daemon
    assert len(set(pids)) == 1
    assert b"" not in pids


def test_the_daemon_leaves_after_its_last_client(base: Path, tmp_path: Path) -> None:
    """It lingers, a client that comes in time keeps it, then it unmounts and goes."""
    store = tmp_path / "store"
    ws = Workspaces.open(store, backend="fuse", linger_s=0.3)
    branch = ws.create("one", base=ws.add_base(base))
    (branch.path / "x").write_text("x")
    ws.close()
    deadline_s = time.monotonic() + 20
    while daemons(tmp_path) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert daemons(tmp_path) == []
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
    with Workspaces.open(store, backend="fuse") as again:
        assert (again.branch("one").path / "x").read_text() == "x"
        again.stop()


def test_a_long_store_path_works(opened: Open, base: Path, tmp_path: Path) -> None:
    """sun_path holds 108 bytes; stores may lie deeper."""
    ws = opened(tmp_path / ("long" * 30) / ("longer" * 20) / "store")
    assert len(os.fspath(ws.store)) > 250
    assert ws.create("one", base=ws.add_base(base)).tree_hash() == tree_hash(base)


def test_copies_and_a_daemon_do_not_share_a_store(opened: Open, ws: Workspaces) -> None:
    with pytest.raises(WorkspaceError, match="is served by a FUSE daemon"):
        Workspaces.open(ws.store, backend="copy")
    ws.stop()
    with Workspaces.open(ws.store, backend="copy"), pytest.raises(WorkspaceError, match="in use"):
        Workspaces.open(ws.store, backend="fuse")


def test_after_stop_the_client_says_so(ws: Workspaces) -> None:
    ws.stop()
    with pytest.raises(DaemonGone) as caught:
        ws.branches()
    assert "open the workspaces again" in caught.value.hint


def test_what_is_open_in_a_dropped_branch_stays_readable(ws: Workspaces, branch: Branch) -> None:
    (branch.path / "big").write_bytes(b"b" * 200_000)
    with (branch.path / "big").open("rb", buffering=0) as file:
        branch.drop()
        assert file.read(3) == b"bbb"
        assert os.pread(file.fileno(), 3, 150_000) == b"bbb"
    deadline_s = time.monotonic() + 20
    layer = [ws.store / "layers" / "1.log", ws.store / "layers" / "1"]
    while any(path.exists() for path in layer) and time.monotonic() < deadline_s:
        time.sleep(0.01)  # the kernel tells of a close when it gets to it
    assert not any(path.exists() for path in layer)
