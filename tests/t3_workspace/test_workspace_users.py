"""Who mounts, and what lies underneath: a user, a read-only base, other disks, odd names."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

import branchkit
from branchkit.workspace import adopt, export, tree_hash
from branchkit.workspace.export import export_commit

from .kit import Open, git, picture

NOBODY = 65534  # fusermount3 wants a user that has a name

LIFE = """
import os, shutil, signal, sys
from pathlib import Path
from branchkit.workspace import Workspaces, tree_hash

folder = Path(sys.argv[1])
assert os.geteuid() != 0
base = folder / "base"
(base / "sub").mkdir(parents=True)
(base / "sub" / "file").write_text("base")
(base / "large").write_bytes(b"l" * 200_000)
with Workspaces.open(folder / "store", backend="fuse") as ws:
    branch = ws.create("one", base=ws.add_base(base))
    root = branch.path
    (root / "new").write_text("new")
    (root / "sub" / "file").write_text("changed")
    with (root / "large").open("r+b") as file:
        file.write(b"first")
    (root / "sub" / "link").symlink_to("file")
    os.link(root / "new", root / "sub" / "hard")
    for refused in (lambda: os.chown(root / "new", 0, 0), lambda: (root.parent / "x").mkdir()):
        try:
            refused()
        except PermissionError:
            continue
        raise SystemExit("that should have been refused")
    assert (root / "new").stat().st_uid == os.geteuid()
    snapshot = branch.freeze()
    fork = ws.create("two", snapshot=snapshot.id)
    shutil.rmtree(fork.path / "sub")
    assert snapshot.tree_hash == tree_hash(root) == branch.tree_hash()
    assert [c.path for c in branch.diff()] == ["large", "new", "sub/file", "sub/hard", "sub/link"]
    holder = ws.pin()
    with open(f"/proc/{holder}/task/{holder}/children") as children:
        worker = int(children.read())
    os.kill(worker, signal.SIGKILL)
    assert tree_hash(root) == snapshot.tree_hash
    with open(f"/proc/{holder}/task/{holder}/children") as children:
        worker = int(children.read())
    for pid in (holder, worker):
        os.kill(pid, signal.SIGKILL)
with Workspaces.open(folder / "store", backend="fuse") as ws:
    assert tree_hash(ws.branch("one").path) == snapshot.tree_hash
    assert not (ws.branch("two").path / "sub").exists()
    ws.branch("two").drop()
    assert [branch.name for branch in ws.branches()] == ["one"]
    ws.stop()
assert str(folder) not in Path("/proc/self/mountinfo").read_text()
assert (base / "sub" / "file").read_text() == "base"
print("lived")
"""


def reaches(path: Path) -> bool:
    """Whether everybody may go into ``path``'s directory."""
    return all(parent.stat().st_mode & stat.S_IXOTH for parent in path.resolve().parents)


def as_nobody() -> list[str]:
    """The words that make a command run as a user without privileges.

    Where that user could not even read this interpreter (one below a closed home directory), it
    keeps the right to read, and nothing else.
    """
    words = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    needed = [Path(sys.executable), Path(sys.prefix), Path(branchkit.__file__)]
    if not all(reaches(path) for path in needed):
        words += ["--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    return words


def test_a_user_lives_a_whole_life(tmp_path: Path) -> None:
    """Mount, write, freeze, fork, a killed daemon and the end through fusermount3, without root.

    In a mount namespace of its own, where everybody may open the device as on most machines.
    """
    device = tmp_path / "fuse"
    os.mknod(device, stat.S_IFCHR, os.makedev(10, 229))
    device.chmod(0o666)
    bind = 'mount --bind "$0" /dev/fuse && exec "$@"'
    with tempfile.TemporaryDirectory() as folder:  # that user must be able to reach it
        os.chown(folder, NOBODY, NOBODY)
        command = ["unshare", "-m", "sh", "-c", bind, os.fspath(device), *as_nobody()]
        done = subprocess.run(
            [*command, sys.executable, "-c", LIFE, folder],
            env={**os.environ, "PYTHONPATH": os.fspath(Path(branchkit.__file__).parents[1])},
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        log = Path(folder, "store", "daemon.log")
        told = log.read_text() if log.exists() else ""
        assert done.stdout == "lived\n", done.stderr + told
        assert "Traceback" not in told


def test_another_user_reaches_what_the_modes_allow(opened: Open, base: Path) -> None:
    """Root mounts; a sandbox that runs as somebody else has the rights of the modes, no more."""
    ws = opened()
    branch = ws.create("one", base=ws.add_base(base))
    root = branch.path
    root.chmod(0o755)
    (root / "closed").mkdir(0o700)
    (root / "shared").mkdir()
    (root / "shared").chmod(0o1777)
    (root / "secret").write_text("s")
    (root / "secret").chmod(0o600)
    script = "cat README; echo mine >shared/mine; cat secret; ls closed; rm README; ls shared"
    words = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    command = [*words, "sh", "-c", script]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout == "read me\nmine\n"
    assert done.stderr.count("ermission denied") == 3
    assert (root / "shared" / "mine").stat().st_uid == NOBODY
    assert branch.freeze().tree_hash == tree_hash(root)


@pytest.fixture
def other_disk(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs: another device, with inode numbers of its own; needs root."""
    point = tmp_path / "other"
    point.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", point], check=True)
    yield point
    subprocess.run(["umount", "-l", point], check=True)


@pytest.mark.parametrize("moved", ["base", "store"])
def test_base_and_store_on_different_disks(
    opened: Open, base: Path, other_disk: Path, moved: str
) -> None:
    """Nothing is shared or renamed across them: a copy-up copies."""
    store = other_disk / "store" if moved == "store" else base.parent / "store"
    if moved == "base":
        base = shutil.copytree(base / "src", other_disk / "base", symlinks=True)
        (base / "README").write_text("read me\n")
    (base / "large").write_bytes(bytes(range(256)) * 12_000)
    before = picture(base)
    ws = opened(store)
    branch = ws.create("one", base=ws.add_base(base))
    with (branch.path / "large").open("r+b") as file:
        file.seek(1_000_000)
        file.write(b"changed")
    with (branch.path / "README").open("a") as file:
        file.write("more")
    os.rename(branch.path / "large", branch.path / "moved")
    expected = bytearray(bytes(range(256)) * 12_000)
    expected[1_000_000:1_000_007] = b"changed"
    assert (branch.path / "moved").read_bytes() == expected
    snapshot = branch.freeze()
    ws.stop()
    ws = opened(store)
    fork = ws.create("two", snapshot=snapshot.id)
    assert (fork.path / "moved").read_bytes() == expected
    assert snapshot.tree_hash == tree_hash(fork.path)
    assert picture(base) == before
    ws.stop()


def test_a_base_that_nobody_can_write(opened: Open, base: Path) -> None:
    """A read-only mount: every kind of change works in a branch, none reaches the base."""
    before = picture(base)
    subprocess.run(["mount", "--bind", base, base], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", base], check=True)
        with pytest.raises(OSError, match="Read-only"):
            (base / "x").touch()
        ws = opened()
        branch = ws.create("one", base=ws.add_base(base))
        root = branch.path
        (root / "README").write_text("changed")
        (root / "src" / "deep" / "data").chmod(0o600)
        os.truncate(root / "src" / "deep" / "data", 70_000)
        os.setxattr(root / "src", "user.mine", b"1")
        os.chown(root / "run.sh", 1, 1)
        git(root, "commit", "-qam", "two")
        shutil.rmtree(root / "empty")
        os.rename(root / "src", root / "moved")
        assert branch.freeze().tree_hash == tree_hash(root)
        ws.stop()
    finally:
        subprocess.run(["umount", base], check=True)
    assert picture(base) == before


# Latin-1, no encoding at all, a line break, a backslash, half a surrogate as some would encode it.
ODD = [b"caf\xe9", b"\xff\xfe\x80", b"new\nline", b"back\\slash\t", b"\xed\xa0\x80", b" ", b"-rf"]


def test_names_that_are_no_text(opened: Open, tmp_path: Path, backend: str) -> None:
    """R30: through freeze, a restart, fork, diff, the portable form and a commit of git."""
    base = tmp_path / "base"
    for word in ODD:
        folder = os.fsencode(base) + b"/dir-" + word
        os.makedirs(folder)
        Path(os.fsdecode(folder + b"/" + word)).write_bytes(word)
    ws = opened(backend=backend)
    base_id = ws.add_base(base)
    branch = ws.create("one", base=base_id)
    root, expected = branch.path, set()
    for word in ODD:
        name = os.fsdecode(word)
        (root / ("new-" + name)).write_bytes(word * 2)
        (root / ("link-" + name)).symlink_to(name)
        os.rename(root / ("dir-" + name) / name, root / ("dir-" + name) / ("moved-" + name))
        os.setxattr(root / ("new-" + name), b"user." + word, word)
        expected |= {f"new-{name}", f"link-{name}", f"dir-{name}/{name}"}
        expected |= {f"dir-{name}/moved-{name}"}
    assert {change.path for change in branch.diff()} == expected
    seen, snapshot = picture(root), branch.freeze()
    assert snapshot.tree_hash == tree_hash(root) == branch.tree_hash()
    if backend == "fuse":
        ws.stop()
        ws = opened()
    assert picture(ws.create("two", snapshot=snapshot.id).path) == seen
    pack = {
        name: content if isinstance(content, bytes) else content.read_bytes()
        for name, content in export(ws, base=base_id, snapshots=[snapshot.id])
    }
    there = opened(tmp_path / "there", backend=backend)
    adopt(there, read=pack.__getitem__, names=pack)
    assert picture(there.create("here", snapshot=snapshot.id).path) == seen
    made = committed(ws.branch("one").path, tmp_path / "out.git")
    assert made == {os.fsencode(p) for p, row in seen.items() if row[2] is not None}


def committed(workspace: Path, repository: Path) -> set[bytes]:
    """The paths of a commit that was made of ``workspace``."""
    date = datetime(2026, 1, 1, tzinfo=UTC)
    made = export_commit(workspace, repository, ref="out", message="odd", date=date)
    command = ["git", "ls-tree", "-r", "-z", "--name-only", "--full-tree", made.commit]
    said = subprocess.check_output(command, cwd=repository)
    return set(said.split(b"\0")) - {b""}
