"""A branch brought back to where it came from: as a patch, or written, on request only."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from branchkit.errors import UsageError, WorkspaceError
from branchkit.workspace import Branch, Workspaces, tree_hash
from branchkit.workspace.applied import apply, export_branch, patch_of


@pytest.fixture
def base(tmp_path: Path) -> Path:
    root = tmp_path / "base"
    (root / "lib/deep").mkdir(parents=True)
    (root / "a.txt").write_text("a\n")
    (root / "b.txt").write_text("b\n")
    (root / "lib/old.py").write_text("old\n" * 10)
    (root / "lib/deep/x").write_bytes(bytes(range(256)))
    (root / "link").symlink_to("a.txt")
    return root


@pytest.fixture(params=["fuse", "copy"])
def ws(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Workspaces]:
    with Workspaces.open(tmp_path / "store", backend=request.param, linger_s=0.1) as found:
        yield found
        found.stop()


def changed(ws: Workspaces, base: Path) -> Branch:
    """A branch with every kind of change, two of whose contents lie in the base alone."""
    branch = ws.create("work", base=ws.add_base(base))
    at = branch.path
    os.rename(at / "a.txt", at / "c")  # a and b change places
    os.rename(at / "b.txt", at / "a.txt")
    os.rename(at / "c", at / "b.txt")
    os.rename(at / "lib/old.py", at / "lib/new.py")
    shutil.rmtree(at / "lib/deep")
    (at / "lib/deep").write_text("a file where a directory was\n")
    (at / "link").unlink()
    (at / "link").symlink_to("b.txt")
    (at / "run.sh").write_text("#!/bin/sh\n")
    (at / "run.sh").chmod(0o755)
    (at / os.fsdecode(b"n\xff")).write_bytes(b"\0\xfe")
    return branch


def test_a_base_becomes_what_the_branch_is(ws: Workspaces, base: Path) -> None:
    """Moved files whose only content lies in the base survive; every kind of change arrives."""
    branch = changed(ws, base)
    wanted = branch.tree_hash()
    done = apply(ws, "work")
    assert tree_hash(base) == wanted
    assert {change.path for change in done.changes} >= {"a.txt", "b.txt", "lib/deep/x", "run.sh"}
    assert not [name for name in os.listdir(base) if name.startswith(".branchkit")]


def test_another_directory_gets_only_the_changes(
    ws: Workspaces, base: Path, tmp_path: Path
) -> None:
    """What else is there stays, and a second apply has nothing left to do."""
    branch = changed(ws, base)
    other = tmp_path / "other"
    shutil.copytree(base, other, symlinks=True)
    before = tree_hash(base)
    (other / "mine.txt").write_text("not the branch's business\n")
    apply(ws, "work", other)
    assert (other / "mine.txt").read_text() == "not the branch's business\n"
    (other / "mine.txt").unlink()
    assert tree_hash(other) == branch.tree_hash()
    assert apply(ws, "work", other).changes == []
    assert tree_hash(base) == before


def test_one_conflict_and_nothing_is_written(ws: Workspaces, base: Path, tmp_path: Path) -> None:
    """A path that changed in both names itself, and the directory stays as it was."""
    changed(ws, base)
    other = tmp_path / "other"
    shutil.copytree(base, other, symlinks=True)
    (other / "lib/old.py").write_text("somebody else's work\n")
    before = tree_hash(other)
    with pytest.raises(WorkspaceError, match=r"lib/old\.py") as error:
        apply(ws, "work", other)
    assert "nothing was written" in error.value.hint
    assert tree_hash(other) == before


def test_a_base_that_others_stand_on_is_written_only_by_force(ws: Workspaces, base: Path) -> None:
    """Their files would change under them."""
    branch = changed(ws, base)
    ws.create("neighbour", base=ws.add_base(base))
    with pytest.raises(UsageError, match="neighbour"):
        apply(ws, "work")
    wanted = branch.tree_hash()
    apply(ws, "work", force=True)
    assert tree_hash(base) == wanted


def test_git_takes_the_patch(ws: Workspaces, base: Path, tmp_path: Path) -> None:
    """`git apply` of the patch makes of the base what the branch is, bytes and modes."""
    branch = changed(ws, base)
    patched = tmp_path / "patched"
    shutil.copytree(base, patched, symlinks=True)
    text = patch_of(ws, "work").encode("utf-8", "surrogateescape")
    git = ["git", "-c", "core.fileMode=true", "apply", "--whitespace=nowarn", "-"]
    subprocess.run(git, input=text, cwd=patched, check=True)
    assert tree_hash(patched) == branch.tree_hash()


def test_a_branch_without_changes_is_an_empty_patch(ws: Workspaces, base: Path) -> None:
    """And applying it writes nothing."""
    ws.create("idle", base=ws.add_base(base))
    assert patch_of(ws, "idle") == ""
    assert apply(ws, "idle").changes == []


def test_exports_of_a_branch_follow_each_other(ws: Workspaces, base: Path, tmp_path: Path) -> None:
    """Each export is the child of the last, and says which snapshot it holds."""
    branch = ws.create("work", base=ws.add_base(base))
    repository = tmp_path / "out.git"
    first = export_branch(ws, "work", repository)
    (branch.path / "a.txt").write_text("more\n")
    second = export_branch(ws, "work", repository)
    log = subprocess.run(
        ["git", "-C", repository, "log", "--format=%H %P%n%B", second.ref],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert log.startswith(f"{second.commit} {first.commit}\n")
    assert f"Branchkit-Tree: {branch.tree_hash()}" in log
