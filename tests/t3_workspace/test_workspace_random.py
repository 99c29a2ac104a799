"""Random operations in a branch and in a plain directory beside it: they must stay equal."""

from __future__ import annotations

import os
import random
import signal
import stat
from pathlib import Path

import pytest

from branchkit.workspace import Workspaces, tree_hash

from .kit import Open, picture

NAMES = ["a", "b", "c", "d/a", "d/b", "d/e/a", "d", "d/e", "f"]


def apply(root: Path, kind: str, one: str, two: str, number: int) -> object:
    """One operation; its result, or its errno."""
    path, other = root / one, root / two
    try:
        match kind:
            case "write":
                path.write_bytes(b"%d" % number * number)
            case "append":
                with path.open("ab") as file:
                    file.write(b"+%d" % number)
            case "patch":
                with path.open("r+b") as file:
                    os.pwrite(file.fileno(), b"P" * (number % 50), number)
            case "truncate":
                os.truncate(path, number)
            case "mkdir":
                path.mkdir()
            case "unlink":
                path.unlink()
            case "rmdir":
                path.rmdir()
            case "rename":
                os.rename(path, other)
            case "link":
                os.link(path, other, follow_symlinks=False)
            case "symlink":
                path.symlink_to(two)
            case "chmod":
                path.chmod(0o600 | number % 0o100)
            case "utime":
                os.utime(path, ns=(number, number * 1_000_000_007), follow_symlinks=False)
            case "xattr":
                os.setxattr(path, "user.n", b"%d" % number)
    except OSError as error:
        return error.errno
    return None


def shape(root: Path) -> dict[str, object]:
    """What must be equal: all but directory sizes and times that the clock gave."""
    found: dict[str, object] = {}
    for path, (mode, mtime_ns, content, xattrs, twin) in picture(root).items():
        info = (root / path).lstat()
        given = isinstance(mtime_ns, int) and mtime_ns < 10**16
        links = info.st_nlink
        size = 0 if stat.S_ISDIR(info.st_mode) else info.st_size
        found[path] = (mode, mtime_ns if given else 0, content, xattrs, twin, links, size)
    return found


@pytest.mark.parametrize("seed", range(3))
def test_a_branch_behaves_like_a_directory(opened: Open, tmp_path: Path, seed: int) -> None:
    """Hundreds of operations with freezes, forks and restarts between them (R30, R60)."""
    choose = random.Random(seed)
    plain, base = tmp_path / "plain", tmp_path / "base"
    for root in (plain, base):
        (root / "d" / "e").mkdir(parents=True)
        (root / "a").write_bytes(b"base" * 30_000)
        (root / "d" / "a").write_bytes(b"small")
        (root / "d" / "e" / "a").hardlink_to(root / "d" / "a")
    kinds = ["write", "append", "patch", "truncate", "mkdir", "unlink", "rmdir", "rename", "link"]
    kinds += ["symlink", "chmod", "utime", "xattr", "rename", "write"]
    ws = opened()
    branch = ws.create("0", base=ws.add_base(base))
    before, frozen = picture(base), {}
    for number in range(400):
        size = choose.choice([choose.randrange(200), choose.randrange(200_000)])
        op = (choose.choice(kinds), choose.choice(NAMES), choose.choice(NAMES), size)
        if op[0] == "write":
            op = (*op[:3], size // 200)
        assert apply(branch.path, *op) == apply(plain, *op), f"operation {number}: {op}"
        if number % 50 == 49:
            assert shape(branch.path) == shape(plain), f"after operation {number}"
            assert branch.tree_hash() == tree_hash(plain)
            snapshot = branch.freeze()
            frozen[snapshot.id] = shape(plain)
            ws, name = restarted(opened, ws, number), str(number)
            branch = ws.create(name, snapshot=snapshot.id)
    for snapshot_id, expected in frozen.items():
        assert shape(ws.create(snapshot_id, snapshot=snapshot_id).path) == expected
    assert picture(base) == before


def restarted(opened: Open, ws: Workspaces, number: int) -> Workspaces:
    """Now and then another daemon, once after a farewell and once after a SIGKILL."""
    if number % 100 == 99:
        return ws
    if number % 200 == 49:
        ws.stop()
    else:
        os.kill(ws.pin(), signal.SIGKILL)
    return opened()
