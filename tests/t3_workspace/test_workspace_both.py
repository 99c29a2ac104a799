"""What a workspace does, the same with FUSE and with copies."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from branchkit.errors import FuseMissing, UsageError, WorkspaceError
from branchkit.workspace import Change, Workspaces, adopt, export, probe, tree_hash

from .kit import Open, git, picture


@pytest.fixture
def ws(opened: Open, backend: str) -> Workspaces:
    return opened(backend=backend)


def what(changes: list[Change]) -> dict[str, str]:
    return {change.path: change.what for change in changes}


def test_a_branch_looks_like_its_base(ws: Workspaces, base: Path, backend: str) -> None:
    """Contents, modes, times, links and attributes, an empty directory, a .git (R30)."""
    before = picture(base)
    branch = ws.create("one", base=ws.add_base(base))
    assert ws.backend == backend
    assert picture(branch.path) == before
    assert branch.tree_hash() == tree_hash(base) == tree_hash(branch.path)
    assert branch.diff() == []
    assert picture(base) == before


def test_everything_can_be_changed_and_the_base_is_not(ws: Workspaces, base: Path) -> None:
    """The base is never written: tree and times are what they were."""
    before = picture(base)
    branch = ws.create("one", base=ws.add_base(base))
    root = branch.path
    (root / "new").write_text("new")
    (root / "src" / "main.py").write_text("changed")
    (root / "README").unlink()
    (root / "empty").rmdir()
    (root / "run.sh").chmod(0o700)
    os.rename(root / "src" / "deep", root / "moved")
    os.truncate(root / "moved" / "data", 100_000)
    (root / "dir").mkdir()
    (root / "dir" / "link").symlink_to("../new")
    (root / "dir" / "hard").hardlink_to(root / "new")
    os.setxattr(root / "new", "user.k", b"v")
    assert what(branch.diff()) == {
        "new": "added",
        "src/main.py": "changed",
        "README": "removed",
        "empty": "removed",
        "run.sh": "changed",
        "src/deep": "removed",
        "src/deep/data": "removed",
        "moved": "added",
        "moved/data": "added",
        "dir": "added",
        "dir/link": "added",
        "dir/hard": "added",
    }
    assert branch.tree_hash() == tree_hash(root)
    assert (root / "dir" / "link").read_text() == "new"
    assert (root / "dir" / "hard").stat().st_nlink == 2
    assert picture(base) == before


def test_a_freeze_is_not_changed_by_what_follows(ws: Workspaces, base: Path) -> None:
    branch = ws.create("one", base=ws.add_base(base))
    (branch.path / "a").write_text("1")
    first = branch.freeze()
    (branch.path / "a").write_text("2")
    (branch.path / "README").unlink()
    second = branch.freeze()
    assert second.parent == first.id
    assert first.parent is None
    assert ws.snapshot(first.id) == first
    fork = ws.create("fork", snapshot=first.id)
    assert (fork.path / "a").read_text() == "1"
    assert (fork.path / "README").read_text() == "read me\n"
    assert fork.tree_hash() == first.tree_hash
    assert branch.tree_hash() == second.tree_hash == tree_hash(branch.path)


def test_a_fork_of_a_fork_stands_alone(ws: Workspaces, base: Path) -> None:
    one = ws.create("one", base=ws.add_base(base))
    (one.path / "x").write_text("1")
    two = ws.create("two", snapshot=one.freeze().id)
    (two.path / "x").write_text("22")
    three = ws.create("three", snapshot=two.freeze().id)
    (three.path / "x").write_text("333")
    three.freeze()
    assert [(b.path / "x").read_text() for b in (one, two, three)] == ["1", "22", "333"]
    assert what(three.diff()) == {"x": "changed"}
    assert [b.name for b in ws.branches()] == ["one", "three", "two"]


def test_a_clean_branch_costs_no_snapshot(ws: Workspaces, base: Path) -> None:
    """R35: reading does not make a snapshot, and all clean branches of a base share one."""
    base_id = ws.add_base(base)
    branch = ws.create("one", base=base_id)
    first = branch.freeze()
    subprocess.run(["cat", branch.path / "README"], check=True, capture_output=True)
    assert branch.freeze() == first
    assert ws.create("two", base=base_id).freeze() == first
    assert (first.files, first.changed_bytes, first.parent) == (0, 0, None)
    (branch.path / "README").write_text("!")
    second = branch.freeze()
    assert branch.freeze() == second
    assert (second.files, second.changed_bytes, second.parent) == (1, 1, first.id)


@pytest.mark.parametrize("frozen", [False, True])
def test_deleted_and_made_again(ws: Workspaces, base: Path, frozen: bool) -> None:
    """fuse-overlayfs 271, 354, 306: no name comes back, none stays away."""
    branch = ws.create("one", base=ws.add_base(base))
    root = branch.path

    def settle() -> None:
        if frozen:
            branch.freeze()

    shutil.rmtree(root / "src")
    settle()
    assert not (root / "src").exists()
    (root / "src").mkdir()
    settle()
    assert os.listdir(root / "src") == []
    (root / "src" / "other").write_text("o")
    (root / "README").unlink()
    settle()
    os.rename(root / "src" / "other", root / "README")
    settle()
    assert (root / "README").read_text() == "o"
    (root / "run.sh").unlink()
    (root / "run.sh").mkdir()
    settle()
    (root / "run.sh").rmdir()
    (root / "run.sh").write_text("again")
    assert sorted(os.listdir(root)) == sorted(os.listdir(base))
    snapshot = branch.freeze()
    assert snapshot.tree_hash == tree_hash(root)
    fork = ws.create("fork", snapshot=snapshot.id)
    assert picture(fork.path) == picture(root)


def test_hard_links_stay_one_file(ws: Workspaces, base: Path) -> None:
    branch = ws.create("one", base=ws.add_base(base))
    with (branch.path / "README").open("a") as file:
        file.write("more")
    assert (branch.path / "src" / "hard").read_text() == "read me\nmore"
    (branch.path / "third").hardlink_to(branch.path / "README")
    assert (branch.path / "src" / "hard").stat().st_nlink == 3
    fork = ws.create("fork", snapshot=branch.freeze().id)
    (fork.path / "README").unlink()
    assert (fork.path / "third").stat().st_nlink == 2
    (fork.path / "third").write_text("new")
    assert (fork.path / "src" / "hard").read_text() == "new"
    assert fork.freeze().tree_hash == tree_hash(fork.path)


def test_a_dropped_name_can_be_used_again(ws: Workspaces, base: Path) -> None:
    base_id = ws.add_base(base)
    branch = ws.create("one", base=base_id)
    (branch.path / "x").write_text("old")
    snapshot = branch.freeze()
    branch.drop()
    assert ws.branches() == []
    assert not branch.path.exists()
    again = ws.create("one", base=base_id)
    assert not (again.path / "x").exists()
    assert (ws.create("kept", snapshot=snapshot.id).path / "x").read_text() == "old"


def members(ws: Workspaces, base_id: str, *snapshots: str) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for name, content in export(ws, base=base_id, snapshots=snapshots):
        assert name not in found
        found[name] = content if isinstance(content, bytes) else content.read_bytes()
    return found


@pytest.mark.parametrize("other", ["fuse", "copy"])
def test_a_pack_gives_the_same_bytes_elsewhere(
    ws: Workspaces, opened: Open, base: Path, tmp_path: Path, other: str
) -> None:
    """Ids, contents, modes, mtime_ns, links, attributes, empty directories and .git survive."""
    base_id = ws.add_base(base)
    branch = ws.create("one", base=base_id)
    root = branch.path
    first = branch.freeze()
    (root / "big").write_bytes(os.urandom(200_000))
    (root / "hollow").mkdir()
    (root / "third").hardlink_to(root / "README")
    os.setxattr(root / "src", "user.d", b"x")
    shutil.rmtree(root / "src" / "deep")
    (root / "src" / "deep").symlink_to("..")
    git(root, "rm", "-q", "src/main.py")
    git(root, "commit", "-qm", "two")
    os.utime(root / "run.sh", ns=(5, 7))
    second = branch.freeze()
    (root / "third").unlink()
    os.rename(root / "hollow", root / "hollow2")
    (root / "src" / "hard").write_text("r")
    seen = picture(root)
    third = branch.freeze()
    assert picture(ws.create("seen", snapshot=third.id).path) == seen
    pack = members(ws, base_id, third.id, first.id)
    expected = {s.id: picture(ws.create(s.id, snapshot=s.id).path) for s in (first, second, third)}
    shutil.rmtree(base)

    there = opened(tmp_path / "there", backend=other)
    for _ in range(2):  # the second time changes nothing
        adopt(there, read=pack.__getitem__, names=pack)
    for snapshot in (first, second, third):
        assert there.snapshot(snapshot.id) == snapshot
        made = there.create(snapshot.id, snapshot=snapshot.id)
        assert picture(made.path) == expected[snapshot.id]
        assert made.tree_hash() == snapshot.tree_hash
        assert made.freeze() == snapshot
    assert members(there, base_id, third.id).keys() == pack.keys()


def test_a_pack_with_another_content_is_refused(ws: Workspaces, opened: Open, base: Path) -> None:
    base_id = ws.add_base(base)
    branch = ws.create("one", base=base_id)
    (branch.path / "x").write_text("fine")
    snapshot = branch.freeze()
    pack = members(ws, base_id, snapshot.id)
    there = opened(base.parent / "there", backend=ws.backend)
    blob = next(name for name, content in pack.items() if content == b"fine")
    with pytest.raises(WorkspaceError, match=f"snapshot {snapshot.id} came out as"):
        adopt(there, read=(pack | {blob: b"evil"}).__getitem__, names=pack)
    with pytest.raises(UsageError, match="no snapshot"):
        there.create("x", snapshot=snapshot.id)
    adopt(there, read=pack.__getitem__, names=pack)
    assert (there.create("x", snapshot=snapshot.id).path / "x").read_text() == "fine"


def test_the_store_is_found_again(opened: Open, base: Path, backend: str, tmp_path: Path) -> None:
    first = opened(backend=backend)
    base_id = first.add_base(base)
    branch = first.create("one", base=base_id)
    (branch.path / "kept").write_text("kept")
    (branch.path / "README").unlink()
    before = picture(branch.path)
    first.stop()
    again = opened(backend=backend)
    assert again.add_base(base) == base_id
    assert picture(again.branch("one").path) == before
    assert what(again.branch("one").diff()) == {"kept": "added", "README": "removed"}


def test_the_backend_can_change_between_sessions(opened: Open, base: Path) -> None:
    """A store made by copies is served by FUSE later, and the other way round."""
    base_id = ""
    for number, backend in enumerate(["copy", "fuse", "copy", "fuse"]):
        ws = opened(backend=backend)
        base_id = base_id or ws.add_base(base)
        branch = ws.branch("one") if number else ws.create("one", base=base_id)
        assert len([n for n in os.listdir(branch.path) if n.startswith("by")]) == number
        (branch.path / f"by{number}{backend}").write_text(backend)
        if number % 2:
            branch.freeze()
        ws.stop()


@pytest.mark.parametrize(
    ("name", "message"),
    [("", "cannot be the name"), ("a/b", "cannot be"), ("..", "cannot be"), ("one", "already")],
)
def test_bad_names_are_refused(ws: Workspaces, base: Path, name: str, message: str) -> None:
    base_id = ws.add_base(base)
    ws.create("one", base=base_id)
    with pytest.raises(UsageError, match=message):
        ws.create(name, base=base_id)


def test_what_is_not_there_is_named(ws: Workspaces, base: Path) -> None:
    ws.create("one", base=ws.add_base(base))
    with pytest.raises(UsageError, match="no branch 'two'") as caught:
        ws.branch("two")
    assert "one" in caught.value.hint
    with pytest.raises(UsageError, match="no snapshot s1"):
        ws.create("two", snapshot="s1")
    with pytest.raises(UsageError, match="no base b1"):
        ws.create("two", base="b1")
    with pytest.raises(UsageError, match="starts from a base or a snapshot"):
        ws.create("two")


def test_a_base_around_the_store_is_refused(ws: Workspaces, tmp_path: Path, base: Path) -> None:
    """agentfs 167: a daemon that reads its own mount waits for itself."""
    with pytest.raises(UsageError, match="lies inside the base"):
        ws.add_base(tmp_path)
    branch = ws.create("one", base=ws.add_base(base))
    with pytest.raises(UsageError, match="lies inside the store"):
        ws.add_base(branch.path)
    with pytest.raises(UsageError, match="is not a directory"):
        ws.add_base(base / "README")


def test_a_store_of_another_version_is_refused(tmp_path: Path, backend: str) -> None:
    """agentfs 106: the format has a version, and another one is an error that says so."""
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "version").write_text("branchkit-workspace 99\n")
    with pytest.raises(WorkspaceError, match="'branchkit-workspace 99'"):
        Workspaces.open(tmp_path / "store", backend=backend)  # type: ignore[arg-type]
    (tmp_path / "other" / "layers" / "mine").mkdir(parents=True)
    with pytest.raises(UsageError, match="'layers' would be in the way"):
        Workspaces.open(tmp_path / "other", backend=backend)  # type: ignore[arg-type]


def test_a_store_may_stand_beside_blobs(opened: Open, base: Path, backend: str) -> None:
    """The rest of branchkit keeps blobs and checkouts in the same directory, and may come first."""
    store = base.parent / "store"
    (store / "blobs").mkdir(parents=True)
    shutil.copytree(base / "src", store / "checkouts" / "abc", symlinks=True)
    ws = opened(store, backend=backend)
    branch = ws.create("one", base=ws.add_base(store / "checkouts" / "abc"))
    assert branch.tree_hash() == tree_hash(base / "src")


def test_a_base_that_was_written_is_noticed(ws: Workspaces, base: Path) -> None:
    branch = ws.create("one", base=ws.add_base(base))
    (base / "src" / "main.py").write_text("changed underneath\n")
    if ws.backend == "fuse":
        with pytest.raises(OSError, match="Input/output error"):
            (branch.path / "src" / "main.py").read_text()
    os.utime(branch.path / "src" / "main.py", ns=(1, 1))
    with pytest.raises(WorkspaceError, match=r"main\.py has changed since it was added as a base"):
        ws.create("two", base=ws.branch("one").freeze().base).tree_hash()


def test_without_fuse_it_says_why(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRANCHKIT_NO_FUSE", "1")
    assert not probe().ok
    with pytest.raises(FuseMissing, match="BRANCHKIT_NO_FUSE=1 is set"):
        Workspaces.open(tmp_path / "store", backend="fuse")
    with Workspaces.open(tmp_path / "store") as ws:
        assert ws.backend == "copy"
        assert ws.reason == "BRANCHKIT_NO_FUSE=1 is set"
        assert ws.create("one", base=ws.add_base(base)).tree_hash() == tree_hash(base)


def test_fuse_works_here() -> None:
    """Not a skip: without FUSE half of this package is not proven. The remedy is in the message."""
    found = probe()
    assert found.ok, f"{found.detail}: {found.remedy}"


def test_the_client_never_imports_pyfuse3() -> None:
    program = "import branchkit.workspace, sys; assert 'pyfuse3' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_package_keeps_its_names_whatever_is_imported() -> None:
    """`export` is a function of the package and a module in it; the function must win."""
    program = (
        "import branchkit.workspace.export, branchkit.workspace.probe\n"
        "from branchkit.workspace import export, probe\n"
        "assert callable(export) and callable(probe)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
