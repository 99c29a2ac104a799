"""Layers without a mount: the same operations on a tree and on a model of nested dicts (R30)."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from branchkit.workspace import edit
from branchkit.workspace.changes import Change, Resize, Write, decode, encode
from branchkit.workspace.layers import Rec, Tree, merge

NAMES = [b"a", b"b", b"c", b"deep"]
OWNER = (0, 0)


class Lower:
    """A base in memory: /a (file), /deep (directory) with /deep/a (file)."""

    root = 2

    def __init__(self) -> None:
        self._records = {
            2: directory(()),
            3: file(b"lower a", (2,)),
            4: directory((2,)),
            5: file(b"lower deep a", (4,)),
        }
        self._names = {2: {b"a": 3, b"deep": 4}, 4: {b"a": 5}}

    def record(self, fid: int) -> Rec:
        return self._records[fid]

    def entries(self, fid: int) -> dict[bytes, int]:
        return dict(self._names[fid])

    def xattrs(self, fid: int) -> dict[bytes, bytes]:
        return {}

    def path(self, fid: int) -> str:
        return {2: "", 3: "a", 4: "deep", 5: "deep/a"}[fid]

    def learn(self, fid: int, path: str) -> None:
        assert self.path(fid) == path


def directory(parents: tuple[int, ...]) -> Rec:
    rec = Rec(stat.S_IFDIR | 0o755, 0, 0, 1)
    rec.entries, rec.parents, rec.nlink = None, parents, 2 if parents else 3
    return rec


def file(content: bytes, parents: tuple[int, ...]) -> Rec:
    rec = Rec(stat.S_IFREG | 0o644, 0, 0, 1)
    rec.data, rec.size, rec.parents, rec.nlink = bytearray(content), len(content), parents, 1
    return rec


class Logged:
    """A tree whose changes go through the log's encoding, as the store does it."""

    def __init__(self) -> None:
        self.tree = Tree(Lower(), "1")
        self.frames: list[tuple[Any, bytes]] = []

    def commit(self, changes: list[Change], blob: bytes = b"") -> None:
        value = json.loads(json.dumps(encode(changes)))
        assert decode(value) == changes
        self.frames.append((value, blob))
        self.tree.apply(changes, blob)


def dump(tree: Tree, fid: int) -> Any:
    """Names and contents as nested dicts: what the model is."""
    rec = tree.get(fid)
    if rec.is_dir:
        return {name: dump(tree, child) for name, child in tree.entries(fid).items()}
    assert isinstance(rec.data, bytearray)
    assert len(rec.data) == rec.size
    return bytes(rec.data)


def consistent(tree: Tree, fid: int, seen: dict[int, int]) -> None:
    """nlink and parents say what the entries say."""
    rec = tree.get(fid)
    if rec.is_dir:
        below = tree.entries(fid).values()
        assert rec.nlink == 2 + sum(tree.get(child).is_dir for child in below)
        for child in below:
            assert fid in tree.get(child).parents
            seen[child] = seen.get(child, 0) + 1
            consistent(tree, child, seen)


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["make", "mkdir", "write", "unlink", "rmdir", "rename", "push", "cut"]),
        st.booleans(),
        st.sampled_from(NAMES),
        st.booleans(),
        st.sampled_from(NAMES),
        st.integers(0, 40),
    ),
    max_size=40,
)


def step(logged: Logged, model: dict[bytes, Any], op: tuple[Any, ...]) -> None:
    """One operation on both; they must agree whether it works."""
    kind, here_deep, name, _, _, number = op
    tree = logged.tree
    place, mdir = locate(tree, model, here_deep)
    if place is None or mdir is None:
        return
    now = number
    with contextlib.suppress(OSError):  # refused: then the model must not have changed either
        match kind:
            case "make":
                mode = stat.S_IFREG | 0o644
                logged.commit(edit.make(tree, place, name, mode, OWNER, now).changes)
                assert name not in mdir
                mdir[name] = b""
            case "mkdir":
                mode = stat.S_IFDIR | 0o755
                logged.commit(edit.make(tree, place, name, mode, OWNER, now).changes)
                assert name not in mdir
                mdir[name] = {}
            case "write":
                fid = edit.child(tree, place, name)
                if isinstance(mdir[name], bytes):
                    data = b"%d" % number
                    logged.commit([*edit.up(tree, fid), Write(fid, number, len(data), now)], data)
                    mdir[name] = patched(mdir[name], number, data)
            case "cut":
                fid = edit.child(tree, place, name)
                if isinstance(mdir[name], bytes):
                    logged.commit([*edit.up(tree, fid), Resize(fid, number, now)])
                    mdir[name] = mdir[name][:number].ljust(number, b"\0")
            case "unlink":
                logged.commit(edit.unlink(tree, place, name, now).changes)
                assert isinstance(mdir.pop(name), bytes)
            case "rmdir":
                logged.commit(edit.rmdir(tree, place, name, now).changes)
                assert mdir.pop(name) == {}
            case "rename":
                rename(logged, model, op, place, mdir)


def rename(
    logged: Logged, model: dict[bytes, Any], op: tuple[Any, ...], place: int, mdir: dict[bytes, Any]
) -> None:
    _, _, name, there_deep, other, number = op
    to, target = locate(logged.tree, model, there_deep)
    if to is None or target is None or edit.child(logged.tree, place, name) == to:
        return
    logged.commit(edit.rename(logged.tree, place, name, to, other, number).changes)
    moving = mdir.pop(name)
    old = target.get(other)
    assert old is None or old == {} or (isinstance(old, bytes) and isinstance(moving, bytes))
    target[other] = moving


def patched(content: bytes, offset: int, data: bytes) -> bytes:
    return content[:offset].ljust(offset, b"\0") + data + content[offset + len(data) :]


def locate(
    tree: Tree, model: dict[bytes, Any], deep: bool
) -> tuple[int | None, dict[bytes, Any] | None]:
    if not deep:
        return tree.root, model
    fid = tree.entries(tree.root).get(b"deep")
    below = model.get(b"deep")
    return (fid, below) if fid is not None and isinstance(below, dict) else (None, None)


@given(OPERATIONS)
def test_a_tree_does_what_a_dict_of_dicts_does(operations: list[tuple[Any, ...]]) -> None:
    logged = Logged()
    model: dict[bytes, Any] = {b"a": b"lower a", b"deep": {b"a": b"lower deep a"}}
    kept = []
    for op in operations:
        if op[0] == "push":
            logged.tree.push("next")
            kept.append((logged.tree.frozen(), dump(logged.tree, logged.tree.root)))
        else:
            step(logged, model, op)
    assert dump(logged.tree, logged.tree.root) == model
    consistent(logged.tree, logged.tree.root, {})
    for frozen, expected in kept:  # what came after a freeze did not reach into it
        assert dump(Tree(Lower(), "x", frozen), 2) == expected


@given(OPERATIONS)
def test_a_replay_of_the_log_gives_the_same_tree(operations: list[tuple[Any, ...]]) -> None:
    """replay(log) = state: deletions, renames and contents come out of the log (agentfs 271)."""
    logged = Logged()
    model: dict[bytes, Any] = {b"a": b"lower a", b"deep": {b"a": b"lower deep a"}}
    for op in operations:
        step(logged, model, op)
    again = Tree(Lower(), "1")
    for value, blob in logged.frames:
        again.apply(decode(value), blob)
    again.sweep()
    assert dump(again, 2) == model
    assert again.next_fid == logged.tree.next_fid


def test_a_shared_file_is_copied_before_it_is_written() -> None:
    logged = Logged()
    tree = logged.tree
    logged.commit([*edit.up(tree, 3), Write(3, 0, 1, 1)], b"L")
    tree.push("2")
    frozen = tree.frozen()
    logged.commit([Write(3, 0, 1, 2)], b"X")
    assert dump(tree, 2)[b"a"] == b"Xower a"
    assert dump(Tree(Lower(), "3", frozen), 2)[b"a"] == b"Lower a"
    assert dump(Tree(Lower(), "4"), 2)[b"a"] == b"lower a"


def test_many_layers_are_merged_into_one() -> None:
    logged = Logged()
    for number in range(200):
        made = edit.make(logged.tree, 2, b"f%d" % number, stat.S_IFREG, OWNER, 1)
        logged.commit(made.changes)
        logged.tree.push(str(number))
    assert len(logged.tree.layers) < 70
    assert len(dump(logged.tree, 2)) == 202
    assert len(merge(logged.tree.layers)) >= 200


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda t: edit.make(t, 2, b"a", stat.S_IFREG, OWNER, 1), "EEXIST"),
        (lambda t: edit.make(t, 3, b"x", stat.S_IFREG, OWNER, 1), "ENOTDIR"),
        (lambda t: edit.make(t, 2, b"n" * 256, stat.S_IFREG, OWNER, 1), "ENAMETOOLONG"),
        (lambda t: edit.unlink(t, 2, b"none", 1), "ENOENT"),
        (lambda t: edit.unlink(t, 2, b"deep", 1), "EISDIR"),
        (lambda t: edit.rmdir(t, 2, b"deep", 1), "ENOTEMPTY"),
        (lambda t: edit.rmdir(t, 2, b"a", 1), "ENOTDIR"),
        (lambda t: edit.link(t, 4, 2, b"x", 1), "EPERM"),
        (lambda t: edit.rename(t, 2, b"a", 2, b"deep", 1), "EISDIR"),
        (lambda t: edit.rename(t, 2, b"deep", 2, b"a", 1), "ENOTDIR"),
        (lambda t: edit.rename(t, 2, b"a", 4, b"a", 1, edit.NOREPLACE), "EEXIST"),
        (lambda t: edit.rename(t, 2, b"a", 4, b"x", 1, edit.EXCHANGE), "ENOENT"),
        (lambda t: edit.rename(t, 2, b"a", 4, b"x", 1, 4), "EINVAL"),
        (lambda t: edit.set_xattr(t, 3, b"user.x", None, 1), "ENODATA"),
        (lambda t: edit.set_xattr(t, 3, b"system.posix_acl_access", b"", 1), "ENOTSUP"),
    ],
)
def test_what_posix_refuses_is_refused(call: Any, code: str) -> None:
    with pytest.raises(OSError, match="Errno") as caught:
        call(Tree(Lower(), "1"))
    assert caught.value.errno is not None
    assert os.strerror(caught.value.errno) == caught.value.strerror
    assert errno.errorcode[caught.value.errno] == code
