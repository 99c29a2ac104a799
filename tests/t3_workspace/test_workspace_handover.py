"""The kernel's flags: what we ask for on top of libfuse, what we owe in return, and without it."""

from __future__ import annotations

import os
import stat
import struct
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from branchkit.workspace import Branch, Workspaces, handover, tree_hash

from .kit import Open, picture, worker

NOBODY = 65534  # fusermount3 wants a user that has a name


@pytest.fixture(params=["handed over", "plain"])
def ws(request: pytest.FixtureRequest, opened: Open, monkeypatch: pytest.MonkeyPatch) -> Workspaces:
    if request.param == "plain":
        monkeypatch.setenv(handover.PLAIN, "1")
    return opened(backend="fuse")


@pytest.fixture
def branch(ws: Workspaces, base: Path) -> Branch:
    return ws.create("one", base=ws.add_base(base))


def message(at: int, flags: int, at_high: int) -> bytes:
    built = bytearray(range(at_high)) + b"1234the rest"
    struct.pack_into("=I", built, at, flags & 0xFFFFFFFF)
    if flags & handover.INIT_EXT:
        struct.pack_into("=I", built, at_high, flags >> 32)
    return bytes(built)


def asked(flags: int) -> bytes:
    return message(40 + 12, flags, 40 + 16)


def answered(flags: int) -> bytes:
    return message(16 + 12, flags, 16 + 32)


@pytest.mark.parametrize("more", [0, handover.INIT_EXT | handover.HAS_RESEND, handover.INIT_EXT])
def test_only_what_the_kernel_offers_is_asked_for(more: int) -> None:
    """Also of a kernel without flags above the 32nd, and of one with others there."""
    offered = handover.HANDLE_KILLPRIV_V2 | handover.AUTO_INVAL_DATA | 1 | more
    init = asked(offered)
    assert handover.hide(init) == asked(offered & ~handover.AUTO_INVAL_DATA)
    answer = handover.amend(answered(1), init)
    assert handover.granted(answer) == handover.HANDLE_KILLPRIV_V2 | 1 | more
    assert answer == answered(handover.HANDLE_KILLPRIV_V2 | 1 | more)


def test_a_branch_is_the_same_with_and_without(branch: Branch, base: Path) -> None:
    assert picture(branch.path) == picture(base)
    with (branch.path / "src" / "main.py").open("ab", buffering=0) as file:
        for _ in range(10):
            file.write(b"#")
            assert (branch.path / "src" / "main.py").read_bytes().endswith(b"#")
    assert branch.freeze().tree_hash == tree_hash(branch.path)


def test_a_write_asks_for_no_capabilities(
    opened: Open, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OVERLAY 2: without HANDLE_KILLPRIV_V2 the kernel asks for them before every write(2)."""
    asked = []
    for plain in ("0", "1"):
        monkeypatch.setenv(handover.PLAIN, plain)
        ws = opened(base.parent / plain)
        branch = ws.create("one", base=ws.add_base(base))
        with (branch.path / "file").open("wb", buffering=0) as file:
            file.write(b"first")
            trace = ["strace", "-f", "-e", "trace=read,splice", "-p", str(worker(ws))]
            with subprocess.Popen(trace, stderr=subprocess.PIPE, text=True) as tracer:
                assert tracer.stderr is not None
                assert "attached" in tracer.stderr.readline()
                for _ in range(50):
                    file.write(b"x")
                tracer.terminate()
                calls = tracer.stderr.read().splitlines()
        asked.append(len([line for line in calls if " = " in line and "-1 E" not in line]))
    handed_over, plain_asked = asked
    assert handed_over * 1.5 < plain_asked


def as_user(folder: Path, program: str, imports: str = "", first: Sequence[str] = ()) -> None:
    """Run ``program`` in ``folder`` as another user, who need not be able to reach it by path."""
    drop = "os.setgroups([]); os.setresgid(*[65534] * 3); os.setresuid(*[65534] * 3)"
    lines = ["import mmap, os, pathlib, subprocess, sys", imports, drop, program]
    command = [*first, sys.executable, "-c", "\n".join(lines)]
    subprocess.run(command, check=True, cwd=folder)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(
    ("change", "mode", "left"),
    [
        ("os.write(os.open(p, os.O_WRONLY), b'x')", 0o6777, 0o777),
        ("os.write(os.open(p, os.O_WRONLY), b'x')", 0o2767, 0o767),
        ("os.truncate(p, 1)", 0o6777, 0o777),
        ("os.open(p, os.O_WRONLY | os.O_TRUNC)", 0o4777, 0o777),
        ("mmap.mmap(os.open(p, os.O_RDWR), 0)[0]", 0o6777, 0o6777),
    ],
)
def test_what_another_user_writes_loses_its_privileges(
    branch: Branch, tmp_path: Path, change: str, mode: int, left: int
) -> None:
    """As a plain directory does it: pjdfstest chmod/12; for root nothing changes."""
    plain = tmp_path / "plain"
    plain.mkdir()
    for folder in (plain, branch.path):
        path = folder / "tool"
        path.write_bytes(b"#!/bin/sh\n")
        path.chmod(mode)
        with path.open("r+b", buffering=0) as file:
            file.write(b"#")
        assert mode_of(path) == mode
        as_user(folder, f"p = 'tool'; {change}")
        assert mode_of(path) == left
    assert (branch.path / "tool").read_bytes() == (plain / "tool").read_bytes()


def test_chown_takes_privileges_and_capabilities(branch: Branch) -> None:
    path = branch.path / "tool"
    path.write_bytes(b"x")
    path.chmod(0o6755)
    os.setxattr(path, "security.capability", bytes.fromhex("0100000200200000" + "00" * 12))
    os.chown(path, 1, 1)
    assert mode_of(path) == 0o755
    assert os.listxattr(path) == []


def test_a_symlink_that_is_made_again_points_anew(branch: Branch) -> None:
    """CACHE_SYMLINKS: a target is remembered by inode, and a new symlink is a new inode."""
    path = branch.path / "src" / "link"
    for target in ("main.py", "../README", "deep"):
        path.unlink()
        path.symlink_to(target)
        assert [os.readlink(path) for _ in range(2)] == [target, target]


def test_a_user_mounts_through_fusermount(tmp_path: Path) -> None:
    """Not root: the setuid fusermount3 mounts and hands the descriptor over.

    In a mount namespace of its own, where everybody may open the device as on most machines.
    """
    device = tmp_path / "fuse"
    os.mknod(device, stat.S_IFCHR, os.makedev(10, 229))
    device.chmod(0o666)
    bind = 'mount --bind "$0" /dev/fuse && exec "$@"'
    package = os.fspath(Path(handover.__file__).parents[2])
    with tempfile.TemporaryDirectory() as folder:  # fusermount3 must reach it as that user
        os.chown(folder, NOBODY, NOBODY)
        as_user(
            tmp_path,
            f"mounted = handover.mount(pathlib.Path({folder!r}), 'default_permissions')\n"
            "assert len(mounted.init) >= 56\n"
            "assert mounted.init[4] == 26\n"  # FUSE_INIT
            f"assert {folder!r} in pathlib.Path('/proc/self/mountinfo').read_text()\n"
            f"subprocess.run(['fusermount3', '-u', {folder!r}], check=True)\n",
            f"sys.path[:0] = [{package!r}]\nfrom branchkit.workspace import handover",
            ["unshare", "-m", "sh", "-c", bind, os.fspath(device)],
        )
        assert folder not in Path("/proc/self/mountinfo").read_text()


def test_a_mount_that_is_refused_is_left_to_libfuse(
    opened: Open, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel option that mount(2) does not know, as an old kernel would find one of ours."""
    with pytest.raises(OSError, match="mount: Invalid argument"):
        handover.mount(base / "empty", "default_permissions,no_such_option")
    assert "/empty" not in Path("/proc/self/mountinfo").read_text()
