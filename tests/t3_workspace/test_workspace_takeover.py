"""A worker is killed at a chosen step: what it had done is not done again, what it held is kept."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest

from branchkit.errors import DaemonGone
from branchkit.process import spawn
from branchkit.workspace import Branch, Workspaces, remote

from .kit import Open, daemons, worker

# The daemon, but a file "mark" beside the store says at which step it dies, once.
MORTAL = """
import os, signal, sys
from branchkit.workspace import daemon, kept, nodes
mark = sys.argv[1] + ".mark"
def mortal(owner, name):
    real = getattr(owner, name)
    def call(*args):
        wish = open(mark).read() if os.path.exists(mark) else ""
        if wish == f"before {name}":
            os.unlink(mark)
            os.kill(os.getpid(), signal.SIGKILL)
        done = real(*args)
        if wish == f"after {name}":
            os.unlink(mark)
            os.kill(os.getpid(), signal.SIGKILL)
        return done
    setattr(owner, name, call)
mortal(nodes.Nodes, "commit")
mortal(kept.Kept, "opened")
mortal(kept.Kept, "closed")
raise SystemExit(daemon.main(sys.argv[1:]))
"""

# The daemon, which one request kills whenever it is sent.
POISONED = """
import os, signal, sys
from branchkit.workspace import daemon, fuse
@fuse.guarded
def getxattr(self, inode, name, ctx):
    os.kill(os.getpid(), signal.SIGKILL)
fuse.Overlay.getxattr = getxattr
raise SystemExit(daemon.main(sys.argv[1:]))
"""


@pytest.fixture
def mortal(opened: Open, base: Path, monkeypatch: pytest.MonkeyPatch) -> Branch:
    monkeypatch.setattr(remote, "WORKER", [sys.executable, "-c", MORTAL])
    ws = opened()
    return ws.create("one", base=ws.add_base(base))


def die(branch: Branch, when: str, call: Callable[[], object]) -> object:
    """What ``call`` gives when the worker dies at the step ``when`` of it."""
    mark = branch.path.parent.parent.with_suffix(".mark")
    mark.write_text(when)
    done = call()
    deadline_s = time.monotonic() + 20
    while mark.exists() and time.monotonic() < deadline_s:
        time.sleep(0.001)  # the kernel tells of a close when it gets to it
    assert not mark.exists(), f"{when} was not reached"
    for _ in range(150):  # more requests than make a death in a row
        os.statvfs(branch.path)
    return done


def exchange(one: str, two: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.renameat2(-100, one.encode(), -100, two.encode(), 2) == 0


@pytest.mark.parametrize("when", ["before commit", "after commit"])
def test_what_was_done_is_not_done_again(
    mortal: Branch, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """OVERLAY 5: applied, but not answered (or noted, but not applied): it happens once."""
    monkeypatch.chdir(mortal.path / "src")
    fd = die(mortal, when, lambda: os.open("new", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    assert isinstance(fd, int)
    os.write(fd, b"content")
    die(mortal, when, lambda: os.link("new", "twin"))
    assert os.stat("new").st_nlink == os.fstat(fd).st_nlink == 2
    die(mortal, when, lambda: exchange("new", "main.py"))
    assert Path("main.py").read_text() == "content"
    assert Path("new").read_text() == "print('hello')\n"
    die(mortal, when, lambda: os.rename("new", "deep/moved"))
    die(mortal, when, lambda: os.unlink("twin"))
    assert os.fstat(fd).st_nlink == 1
    die(mortal, when, lambda: os.setxattr("main.py", "user.x", b"x", os.XATTR_CREATE))
    assert sorted(os.listdir()) == ["deep", "hard", "link", "main.py"]
    assert sorted(os.listdir("deep")) == ["data", "moved"]
    os.close(fd)


def test_directories_and_symlinks_are_made_and_removed_once(
    mortal: Branch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(mortal.path)
    when = "after commit"
    die(mortal, when, lambda: os.mkdir("folder"))
    die(mortal, when, lambda: os.symlink("../README", "folder/link"))
    assert Path("folder/link").read_text() == "read me\n"
    os.unlink("folder/link")
    die(mortal, when, lambda: os.rmdir("folder"))
    assert not os.path.lexists("folder")
    die(mortal, when, lambda: os.removexattr("README", "user.origin"))
    assert os.listxattr("README") == []


def test_a_file_without_a_name_lives_as_long_as_it_is_open(mortal: Branch) -> None:
    """An open or release that is sent again is counted once: no file goes too early, or stays."""
    path = mortal.path / "ghost"
    path.write_bytes(b"boo" * 50_000)
    layers = mortal.path.parent.parent / "layers"
    first = die(mortal, "after opened", lambda: os.open(path, os.O_RDWR))
    assert isinstance(first, int)
    second = os.open(path, os.O_RDONLY)
    path.unlink()
    hosts = set(layers.glob("*/*"))
    assert hosts
    die(mortal, "after closed", lambda: os.close(first))
    assert os.pread(second, 3, 90_000) == b"boo"
    die(mortal, "before closed", lambda: os.close(second))
    path.touch()  # a branch that nobody looks into is not loaded for a close
    deadline_s = time.monotonic() + 20
    while any(each.exists() for each in hosts) and time.monotonic() < deadline_s:
        time.sleep(0.01)  # the kernel tells of a close when it gets to it
    assert not any(each.exists() for each in hosts)


def test_what_is_open_in_a_dropped_branch_survives(mortal: Branch) -> None:
    fd = os.open(mortal.path / "src" / "deep" / "data", os.O_RDWR)
    os.write(fd, b"written")
    mortal.drop()
    for pid in daemons(mortal.path.parent.parent):
        if pid != os.getpgid(pid):  # the holder leads the group
            os.kill(pid, signal.SIGKILL)
    assert os.pread(fd, 9, 0) == b"written\x07\x08"
    os.close(fd)


def test_a_worker_that_dies_again_and_again_is_given_up(
    opened: Open, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "WORKER", [sys.executable, "-c", POISONED])
    ws = opened()
    branch = ws.create("one", base=ws.add_base(base))
    with pytest.raises(OSError, match=r"abort|not connected") as caught:
        os.getxattr(branch.path / "README", "user.origin")
    assert caught.value.errno in (errno.ECONNABORTED, errno.ENOTCONN)
    gone(ws)
    assert "giving up" in (ws.store / "daemon.log").read_text()
    with pytest.raises(DaemonGone):
        ws.branches()


def gone(ws: Workspaces) -> None:
    """Wait until nothing of ``ws`` runs or is mounted."""
    deadline_s = time.monotonic() + 20
    while daemons(ws.store) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert daemons(ws.store) == []
    assert str(ws.store) not in Path("/proc/self/mountinfo").read_text()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_end_of_the_holder_is_the_end_of_all(opened: Open, base: Path, number: int) -> None:
    """What `branchkit mount` prints as pid ends the service, however it is killed; R31."""
    ws = opened()
    branch = ws.create("one", base=ws.add_base(base))
    (branch.path / "x").write_text("x")
    os.kill(ws.pin(), number)
    gone(ws)
    assert (opened().branch("one").path / "x").read_text() == "x"


def test_an_idle_client_keeps_the_daemon_over_a_kill(base: Path, tmp_path: Path) -> None:
    """Its connection died with the worker, and it does not know: the mount stays all the same."""
    ws = Workspaces.open(tmp_path / "store", backend="fuse", linger_s=0.3)
    branch = ws.create("one", base=ws.add_base(base))
    os.kill(worker_of(ws), signal.SIGKILL)
    os.listdir(branch.path)
    taken_over = worker_of(ws)
    time.sleep(1)
    assert daemons(tmp_path)
    assert [each.name for each in ws.branches()] == ["one"]
    assert worker_of(ws) == taken_over
    ws.close()
    gone(ws)


def worker_of(ws: Workspaces) -> int:
    """As `worker`, without pinning the daemon."""
    (pid,) = [pid for pid in daemons(ws.store) if pid != os.getpgid(pid)]
    return pid


def test_an_interrupted_call_leaves_the_next_one_alone(opened: Open, base: Path) -> None:
    """Ctrl-C while a freeze waits: the next call does not read the reply to that one."""
    ws = opened()
    branch = ws.create("one", base=ws.add_base(base))
    (branch.path / "x").write_text("x")
    pid = worker(ws)

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    old = signal.signal(signal.SIGALRM, interrupt)
    os.kill(pid, signal.SIGSTOP)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            branch.freeze()
    finally:
        signal.signal(signal.SIGALRM, old)
        os.kill(pid, signal.SIGCONT)
    assert [each.name for each in ws.branches()] == ["one"]
    assert branch.freeze().tree_hash == branch.tree_hash()


def test_the_daemon_outlives_the_supervisor_of_who_started_it(opened: Open, tmp_path: Path) -> None:
    """A notebook server that `process.spawn` started ends, and its kernels: the mount stays."""
    program = (
        "import sys, pathlib; from branchkit.workspace import Workspaces\n"
        "print(Workspaces.open(pathlib.Path(sys.argv[1]), backend='fuse').pin(), flush=True)"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "store")]
    with spawn(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        pid = int(child.stdout.readline())
        child.wait(20)
    ws = opened(tmp_path / "store")
    assert ws.pin() == pid
