"""The Merkle hash: what it sees, and what it must not see."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from branchkit.workspace import VOLATILE, edit, gitindex, graft, listing, tree_hash
from branchkit.workspace import base as bases
from branchkit.workspace.branch import Live
from branchkit.workspace.hashes import render
from branchkit.workspace.store import Store, prepare

from .kit import git


def small(root: Path) -> Path:
    root.mkdir()
    (root / "file").write_text("text")
    (root / "folder").mkdir()
    (root / "link").symlink_to("file")
    os.setxattr(root / "file", "user.a", b"1")
    return root


@pytest.mark.parametrize(
    "change",
    [
        lambda r: (r / "file").write_text("texT"),
        lambda r: (r / "file").chmod(0o600),
        lambda r: (r / "folder").chmod(0o700),
        lambda r: (r / "file").rename(r / "file2"),
        lambda r: (r / "empty").mkdir(),
        lambda r: (r / "folder").rmdir(),
        lambda r: os.setxattr(r / "file", "user.a", b"2"),
        lambda r: os.setxattr(r / "folder", "user.a", b"2"),
        lambda r: ((r / "link").unlink(), (r / "link").symlink_to("folder")),
        lambda r: ((r / "link").unlink(), (r / "link").write_text("file")),
    ],
)
def test_every_change_of_behaviour_changes_it(
    tmp_path: Path, change: Callable[[Path], object]
) -> None:
    root = small(tmp_path / "r")
    before = tree_hash(root)
    change(root)
    assert tree_hash(root) != before
    assert before.startswith("sha256:")


def test_times_and_inode_numbers_do_not_count(tmp_path: Path) -> None:
    root = small(tmp_path / "r")
    before = tree_hash(root)
    shutil.copytree(root, tmp_path / "s", symlinks=True)
    for path in (tmp_path / "s").rglob("*"):
        os.utime(path, (1, 1), follow_symlinks=False)
    assert tree_hash(tmp_path / "s") == before


def test_what_is_volatile_does_not_count(tmp_path: Path) -> None:
    """ARCHITECTURE "Equal behaviour must give equal hashes": index, reflogs, byte code."""
    root = small(tmp_path / "r")
    git(root, "init", "-q", "-b", "main")
    git(root, "add", "file")
    git(root, "commit", "-q", "-m", "one")
    before = tree_hash(root)
    (root / "__pycache__").mkdir()
    (root / "__pycache__" / "x.cpython-311.pyc").write_bytes(b"x")
    (root / "old.pyc").write_bytes(b"x")
    with (root / ".git" / "logs" / "HEAD").open("a") as log:
        log.write("more\n")
    index = (root / ".git" / "index").read_bytes()
    os.utime(root / "file", (5, 5))
    git(root, "update-index", "--refresh")
    assert (root / ".git" / "index").read_bytes() != index
    assert tree_hash(root) == before
    git(root, "update-index", "--chmod=+x", "file")
    assert tree_hash(root) != before
    assert any("index" in rule for rule in VOLATILE)


@pytest.mark.parametrize("version", [2, 3, 4])
def test_the_index_is_read_as_git_reads_it(tmp_path: Path, version: int) -> None:
    root = tmp_path
    git(root, "init", "-q")
    for name in ("a", "ab/c", "ab/cd", "ab/cd2", "z" * 100, "naïve"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(name)
    git(root, "add", "a", "ab", "z" * 100, "naïve")
    if version == 3:
        (root / "later").write_text("x")
        git(root, "add", "-N", "later")
    git(root, "update-index", f"--index-version={version}")
    data = (root / ".git" / "index").read_bytes()
    assert data[7] == version
    found = [f"{e.mode:o} {e.sha.hex()} {e.path.decode()}" for e in gitindex.entries(data)]
    listed = git(root, "ls-files", "-s", "-z").split("\0")[:-1]
    assert found == [line.replace(" 0\t", " ") for line in listed]


def test_what_is_no_index_is_refused() -> None:
    for data in (b"", b"DIRC", b"x" * 64, b"DIRC" + bytes(3) + b"\x05" + bytes(40)):
        with pytest.raises(ValueError, match="index"):
            list(gitindex.entries(data))


PLACES = ["", "d", "d/e", "d/e/f", "other"]
CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["write", "chmod", "mkdir", "remove", "rename", "link", "xattr", "freeze"]),
        st.integers(0, 10**6),
    ),
    min_size=1,
    max_size=30,
)


def changed(live: Live, what: str, number: int) -> None:
    """One change of a few names in a few places; those that cannot be are left out."""
    tree, names = live.tree, [b"HEAD", b"objects", b"refs", b"index", b"a.pyc", b"x", b"y"]
    one, two = PLACES[number % 5], PLACES[number // 5 % 5]
    name, other = names[number // 25 % 7], names[number // 175 % 7]
    with contextlib.suppress(OSError):
        place, to = graft.find(live, one), graft.find(live, two)
        match what:
            case "mkdir":
                live.commit(edit.make(tree, place, name, 0o40755, (0, 0), 1).changes)
            case "write":
                if name not in tree.entries(place):
                    live.commit(edit.make(tree, place, name, 0o100644, (0, 0), 1).changes)
                live.write(edit.child(tree, place, name), 0, b"%d" % number, 1)
            case "chmod":
                mode = 0o700 + number % 8
                live.commit(edit.meta(tree, edit.child(tree, place, name), 1, mode=mode))
            case "xattr":
                fid = edit.child(tree, place, name)
                live.commit(edit.set_xattr(tree, fid, b"user.n", b"%d" % number, 1))
            case "link":
                live.commit(edit.link(tree, edit.child(tree, place, name), to, other, 1))
            case "rename":
                if to != edit.child(tree, place, name):
                    live.commit(edit.rename(tree, place, name, to, other, 1).changes)
            case "remove":
                gone = edit.unlink(tree, place, name, 1)
                live.commit(gone.changes)
                live.forget(gone.fid)


@settings(max_examples=15, deadline=None)
@given(CHANGES)
def test_a_hash_from_what_changed_is_the_hash_of_everything(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[str, int]]
) -> None:
    """R35: whatever changed, in whatever order, also after a restart: nothing stale is kept.

    A branch that remembers no rows, digests or leaves has to come to the same hash.
    """
    folder = tmp_path_factory.mktemp("merkle")
    for place in PLACES:
        (folder / "base" / place).mkdir(parents=True, exist_ok=True)
        (folder / "base" / place / "x").write_text(place)
    store = Store(prepare(folder / "store"))
    base = bases.add(folder / "base", store.path)
    store.register_base(base)
    store.create("one", base=base, snapshot=None)
    live = store.live("one")
    for what, number in changes:
        if what == "freeze":
            store.freeze("one")
        else:
            changed(live, what, number)
        if number % 3 == 0:
            live.digest()
    found = store.freeze("one")
    store.close()
    again = Store(store.path, writable=False)
    thawed = again.view(base, found.id)
    listing.build(folder / "copy", list(listing.entries(thawed)), partial(listing.content, thawed))
    assert tree_hash(folder / "copy") == found.tree_hash == render(thawed.digest())
    thawed.close()
    again.close()
