"""SIGKILL, a full disk, a handler that fails: what was written is there, the base is as it was."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from branchkit.errors import DaemonGone, WorkspaceError
from branchkit.workspace import Branch, Workspaces, remote, tree_hash

from .kit import Open, git, kill_daemon, picture, worker

# It reports each file once it is closed, and goes on until its file system is gone.
WRITER = """
import os, sys
root, n = sys.argv[1], 0
while True:
    path = os.path.join(root, f"f{n}")
    with open(path + ".part", "wb") as file:
        file.write(b"%d." % n * (1 if n % 10 else 20000))
        if n % 7 == 0:
            file.flush(); os.fsync(file.fileno())
    os.rename(path + ".part", path)
    if n >= 5:
        os.unlink(os.path.join(root, f"f{n - 5}"))
    print(n, flush=True)
    n += 1
"""


@pytest.mark.parametrize("reports", [1, 40, 120])
def test_sigkill_under_load_loses_nothing_closed(
    opened: Open, base: Path, tmp_path: Path, reports: int
) -> None:
    """agentfs 271, R21: closed files are there, deleted ones stay gone, the base is as it was."""
    before = picture(base)
    ws = opened()
    branch = ws.create("one", base=ws.add_base(base))
    (branch.path / "README").unlink()
    snapshot = branch.freeze()
    command = [sys.executable, "-c", WRITER, str(branch.path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as child:
        assert child.stdout is not None
        last = -1
        for _ in range(reports):
            last = int(child.stdout.readline())
        kill_daemon(ws, tmp_path)
        last = max([last, *map(int, child.stdout.read().split())])
    with pytest.raises(OSError, match="not connected") as caught:
        os.listdir(branch.path)
    assert caught.value.errno == errno.ENOTCONN
    with pytest.raises(DaemonGone):
        ws.branches()

    root = opened().branch("one").path
    for number in range(max(0, last - 4), last + 1):
        times = 1 if number % 10 else 20_000
        path = root / f"f{number}"
        if number == last - 4 and not path.exists():
            continue  # the unlink of the next round had come through, its report had not
        assert path.read_bytes() == b"%d." % number * times
    for number in range(last - 4):
        assert not (root / f"f{number}").exists()
    assert not (root / "README").exists()
    assert picture(base) == before
    again = opened()
    assert again.create("fork", snapshot=snapshot.id).tree_hash() == snapshot.tree_hash
    assert again.branch("one").freeze().tree_hash == tree_hash(root)


def test_a_repository_survives_a_sigkill(opened: Open, base: Path, tmp_path: Path) -> None:
    ws = opened()
    root = ws.create("one", base=ws.add_base(base)).path
    (root / "x").write_text("x")
    git(root, "add", "x")
    git(root, "commit", "-q", "-m", "two")
    before = picture(root)
    kill_daemon(ws, tmp_path)
    again = opened().branch("one")
    assert picture(again.path) == before
    git(root, "fsck", "--strict")
    assert git(root, "status", "--short", "x") == ""


def test_a_dead_mount_somebody_stands_in_is_replaced(
    opened: Open, base: Path, tmp_path: Path
) -> None:
    """libfuse 41: ENOTCONN on the mount point does not block the next start."""
    ws = opened()
    root = ws.create("one", base=ws.add_base(base)).path
    with subprocess.Popen(["sleep", "60"], cwd=root) as stander:
        for _ in range(2):
            kill_daemon(ws, tmp_path)
            ws = opened()
            assert (ws.branch("one").path / "README").read_text() == "read me\n"
        stander.kill()


def layer_log(store: Path) -> Path:
    return max((store / "layers").glob("*.log"), key=lambda path: path.stat().st_size)


def test_a_damaged_layer_is_an_error_and_no_other_branch_suffers(
    opened: Open, base: Path, tmp_path: Path
) -> None:
    ws = opened()
    base_id = ws.add_base(base)
    one, two = ws.create("one", base=base_id), ws.create("two", base=base_id)
    for number in range(20):
        (one.path / f"f{number}").write_text("x" * 100)
    (two.path / "fine").write_text("fine")
    ws.stop()
    path = layer_log(ws.store)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    ws = opened()
    with pytest.raises(WorkspaceError, match=r"1\.log is damaged: the frame at byte \d+"):
        ws.branch("one").freeze()
    with pytest.raises(OSError, match="Input/output error"):
        os.listdir(ws.store / "mnt" / "one")
    assert (ws.branch("two").path / "fine").read_text() == "fine"


def test_a_torn_record_is_cut_off(opened: Open, base: Path, tmp_path: Path) -> None:
    ws = opened()
    branch = ws.create("one", base=ws.add_base(base))
    (branch.path / "first").write_text("first")
    before = branch.tree_hash()
    ws.stop()
    with layer_log(ws.store).open("ab") as log:
        log.write(b"bkf1\x10\0\0\0half a record")
    branch = opened().branch("one")
    assert branch.tree_hash() == before
    (branch.path / "second").write_text("second")
    assert branch.freeze().tree_hash == tree_hash(branch.path)


def test_a_frozen_layer_that_lost_its_end_is_an_error(opened: Open, base: Path) -> None:
    """A torn tail is fine in a live log, never in what a freeze had made durable."""
    ws = opened()
    branch = ws.create("one", base=ws.add_base(base))
    (branch.path / "x").write_text("x")
    snapshot = branch.freeze()
    ws.stop()
    os.truncate(layer_log(ws.store), 20)
    with pytest.raises(WorkspaceError, match=f"of snapshot {snapshot.id} ends after"):
        opened().create("two", snapshot=snapshot.id)


def test_a_freeze_waits_for_one_fdatasync(opened: Open, base: Path, tmp_path: Path) -> None:
    """OVERLAY 6: the row of a snapshot stands behind its changes in one log, synced once."""
    ws = opened()
    branch = ws.create("one", base=ws.add_base(base))
    (branch.path / "x").write_text("x")
    branch.freeze()  # its log was made before any was made ahead
    for number in range(10):
        (branch.path / f"f{number}").write_bytes(b"x" * 2000)
    trace = ["strace", "-f", "-e", "trace=fsync,fdatasync,syncfs,sync,msync"]
    with subprocess.Popen(
        [*trace, "-p", str(worker(ws))], stderr=subprocess.PIPE, text=True
    ) as tracer:
        assert tracer.stderr is not None
        assert "attached" in tracer.stderr.readline()
        branch.freeze()
        tracer.terminate()
        calls = [line for line in tracer.stderr if "sync(" in line]
    assert len(calls) == 1
    assert "fdatasync(" in calls[0]


def test_a_snapshot_that_only_its_layer_knows_is_found(
    opened: Open, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R21: killed between the log of the layer and the catalogue; the client does not notice."""
    ws = opened()
    branch = ws.create("one", base=ws.add_base(base))
    (branch.path / "x").write_text("x")
    first = branch.freeze()
    ws.stop()
    monkeypatch.setenv("BRANCHKIT_CRASH_AT", "workspace.freeze.sealed")
    ws = opened()
    branch = ws.branch("one")
    before = worker(ws)
    (branch.path / "y").write_bytes(b"y" * 100_000)
    expected = tree_hash(branch.path)
    made = branch.freeze()
    assert (made.parent, made.tree_hash) == (first.id, expected)
    assert worker(ws) != before
    monkeypatch.delenv("BRANCHKIT_CRASH_AT")
    assert branch.freeze() == made
    kill_daemon(ws, ws.store)
    ws = opened()
    assert ws.branch("one").freeze() == made
    assert ws.create("fork", snapshot=made.id).tree_hash() == expected


def test_a_power_loss_takes_rows_of_the_catalogue_but_no_snapshot(opened: Open, base: Path) -> None:
    """R21: only what was synced is there: the base, and the logs of the frozen layers."""
    ws = opened()
    base_id = ws.add_base(base)
    ws.stop()
    synced = (ws.store / "catalog.log").stat().st_size
    ws = opened()
    one = ws.create("one", base=base_id)
    (one.path / "x").write_text("x")
    two = ws.create("two", snapshot=one.freeze().id)
    (two.path / "x").unlink()
    snapshots = [two.freeze()]
    (one.path / "z").write_bytes(b"z" * 200_000)
    snapshots.append(one.freeze())
    ws.stop()
    os.truncate(ws.store / "catalog.log", synced)
    ws = opened()
    assert [branch.name for branch in ws.branches()] == ["one", "two"]
    for snapshot in snapshots:
        assert ws.snapshot(snapshot.id) == snapshot
        assert ws.create(snapshot.id, snapshot=snapshot.id).tree_hash() == snapshot.tree_hash
    assert ws.branch("one").freeze() == snapshots[1]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB; needs root, as the tests with FUSE in CI do."""
    point = tmp_path / "small"
    point.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", point], check=True)
    yield point
    subprocess.run(["umount", "-l", point], check=True)


def fill(path: Path, chunk: bytes) -> int:
    """Append until the disk is full; returns how much was accepted."""
    done = 0
    with path.open("wb", buffering=0) as file:
        while done < 1 << 23:
            try:
                done += file.write(chunk)
            except OSError as error:
                assert error.errno == errno.ENOSPC  # noqa: PT017 the loop is there to get this far
                return done
    raise AssertionError("the disk is bigger than it should be")


@pytest.mark.parametrize("chunk_bytes", [1000, 100_000])
def test_a_full_disk_reaches_the_writer_and_harms_nothing(
    small_disk: Path, base: Path, tmp_path: Path, chunk_bytes: int
) -> None:
    """ENOSPC from small (log) and big (host file) writes; the log stays valid, work goes on."""
    ws = Workspaces.open(small_disk / "store", backend="fuse")
    branch = ws.create("one", base=ws.add_base(base))
    (branch.path / "before").write_text("before")
    chunk = os.urandom(chunk_bytes)
    accepted = fill(branch.path / "big", chunk)
    fill_rest(branch)
    assert (branch.path / "big").stat().st_size >= accepted
    assert (branch.path / "big").read_bytes()[:accepted] == (chunk * 9000)[:accepted]
    with pytest.raises(OSError, match="No space left"):
        os.mkdir(branch.path / ("d" * 200))
    for path in branch.path.glob("rest*"):
        path.unlink()  # on a full disk one must still be able to make room
    ws.stop()
    assert str(tmp_path / "small" / "store") not in Path("/proc/self/mountinfo").read_text()
    shutil.copytree(small_disk / "store", tmp_path / "store")
    with Workspaces.open(tmp_path / "store", backend="fuse") as again:
        root = again.branch("one").path
        assert (root / "before").read_text() == "before"
        assert (root / "big").read_bytes()[:accepted] == (chunk * 9000)[:accepted]
        (root / "after").write_text("after")
        assert again.branch("one").freeze().tree_hash == tree_hash(root)
        again.stop()


def test_a_full_disk_is_emptied_from_inside(small_disk: Path, base: Path) -> None:
    """Removing a big file, or dropping a branch, gives the space back when nothing else goes."""
    with Workspaces.open(small_disk / "store", backend="fuse") as ws:
        base_id = ws.add_base(base)
        one, two = ws.create("one", base=base_id), ws.create("two", base=base_id)
        (two.path / "big").write_bytes(b"t" * 300_000)
        (one.path / "big").touch()
        fill(one.path / "big", b"o" * 50_000)
        fill_rest(one)
        two.drop()
        (one.path / "small").write_bytes(b"s" * 100_000)
        fill(one.path / "small", b"o" * 50_000)
        fill_rest(one)
        (one.path / "big").unlink()
        deadline_s = time.monotonic() + 20
        while free_bytes(small_disk) < 600_000 and time.monotonic() < deadline_s:
            time.sleep(0.01)  # the kernel gives an inode back when it gets to it
        (one.path / "again").write_bytes(b"a" * 500_000)
        assert one.freeze().tree_hash == tree_hash(one.path)
        ws.stop()


def free_bytes(point: Path) -> int:
    info = os.statvfs(point)
    return info.f_bavail * info.f_frsize


def fill_rest(branch: Branch) -> None:
    """Take the last bytes of the disk, down to where not even a name can be logged."""
    for size in (4096, 512, 1):
        number = 0
        try:
            while number < 20_000:
                (branch.path / f"rest{size}-{number}").write_bytes(b"x" * size)
                number += 1
        except OSError as error:
            assert error.errno == errno.ENOSPC  # noqa: PT017 the loop is there to get this far


# The daemon with one handler that fails in a way nobody foresaw.
FAULTY = """
import sys
from branchkit.workspace import daemon, fuse
real = fuse.Overlay.__dict__["getxattr"].__wrapped__
@fuse.guarded
def getxattr(self, inode, name, ctx):
    if name == b"user.boom":
        raise RuntimeError("boom")
    return real(self, inode, name, ctx)
fuse.Overlay.getxattr = getxattr
raise SystemExit(daemon.main(sys.argv[1:]))
"""


def test_a_failing_handler_is_eio_and_the_mount_lives(
    opened: Open, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pyfuse3 82, 86, 93: an unforeseen exception is one EIO and one log line, not the end."""
    monkeypatch.setattr(remote, "WORKER", [sys.executable, "-c", FAULTY])
    ws = opened()
    before = worker(ws)
    branch = ws.create("one", base=ws.add_base(base))
    for _ in range(3):
        with pytest.raises(OSError, match="Input/output error"):
            os.getxattr(branch.path / "README", "user.boom")
    assert (branch.path / "README").read_text() == "read me\n"
    assert worker(ws) == before
    ws.stop()
    assert (ws.store / "daemon.log").read_text().count("RuntimeError: boom") == 3
