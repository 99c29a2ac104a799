"""What drop and gc give back, what they never touch, and the cap of a store."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from branchkit.errors import DiskFull, UsageError
from branchkit.workspace import Workspaces, adopt, edit, export, graft, tree_hash
from branchkit.workspace import base as bases
from branchkit.workspace.collect import collect, needed
from branchkit.workspace.hashes import render
from branchkit.workspace.space import taken_bytes
from branchkit.workspace.store import Store, prepare

from .kit import Open

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["create", "fork", "write", "unlink", "freeze", "drop", "gc", "reopen"]),
        st.integers(0, 999),
    ),
    min_size=5,
    max_size=40,
)


class Bench:
    """A store without a mount, and what each of its branches and snapshots must hold."""

    def __init__(self, folder: Path) -> None:
        base = folder / "base"
        base.mkdir()
        (base / "a").write_bytes(b"base")
        self.store = Store(prepare(folder / "store"))
        self.base = bases.add(base, self.store.path)
        self.store.catalog.record({"kind": "base", "id": self.base}, durable=True)
        self.branches: dict[str, dict[str, bytes]] = {}
        self.snapshots: dict[str, dict[str, bytes]] = {}
        self.number = 0

    def step(self, what: str, number: int) -> None:
        self.number += 1
        if what == "reopen":
            self.store.close()
            self.store = Store(self.store.path)
        elif what == "create":
            name = f"b{self.number}"
            self.store.create(name, base=self.base, snapshot=None)
            self.branches[name] = {"a": b"base"}
        elif what == "fork" and self.snapshots:
            origin = sorted(self.snapshots)[number % len(self.snapshots)]
            self.store.create(f"b{self.number}", base=None, snapshot=origin)
            self.branches[f"b{self.number}"] = dict(self.snapshots[origin])
        elif what == "gc":
            self.gc({each for at, each in enumerate(sorted(self.snapshots)) if number >> at & 1})
        elif self.branches:
            self.change(what, sorted(self.branches)[number % len(self.branches)], number)

    def change(self, what: str, name: str, number: int) -> None:
        live, model = self.store.live(name), self.branches[name]
        path = "abc"[number % 3]
        if what == "write":
            content = b"%d" % number * (1 if number % 2 else 30_000)
            if path not in model:
                raw, root = path.encode(), live.tree.root
                live.commit(edit.make(live.tree, root, raw, 0o100644, (0, 0), 1).changes)
            fid = graft.find(live, path)
            live.resize(fid, 0, 1)
            live.write(fid, 0, content, 1)
            model[path] = content
        elif what == "unlink" and path in model:
            fid = graft.find(live, path)
            live.commit(edit.unlink(live.tree, live.tree.root, path.encode(), 1).changes)
            live.forget(fid)
            del model[path]
        elif what == "freeze":
            self.snapshots[self.store.freeze(name).id] = dict(model)
        elif what == "drop":
            row = self.store.drop(name)
            live.close()
            self.store.discard_dropped(row.number)
            del self.branches[name]

    def gc(self, keep: set[str]) -> None:
        left = needed(self.store.catalog, keep, self.store.named.values())
        before = taken_bytes(self.store.layers)
        freed = collect(self.store, keep)
        assert before - taken_bytes(self.store.layers) == freed.bytes
        assert self.store.snapshots.keys() == left >= keep
        self.snapshots = {each: model for each, model in self.snapshots.items() if each in left}
        used = {entry.stem for entry in self.store.layers.iterdir()}
        assert used <= self.store.catalog.layers()

    def check(self) -> None:
        for name, model in self.branches.items():
            live = self.store.live(name)
            names = live.tree.entries(live.tree.root)
            found = {n.decode(): live.read(f, 0, 1 << 20) for n, f in names.items()}
            assert found == model
        for snapshot_id, model in self.snapshots.items():
            live = self.store.view(self.base, snapshot_id)
            names = live.tree.entries(live.tree.root)
            assert {n.decode(): live.read(f, 0, 1 << 20) for n, f in names.items()} == model
            assert render(live.digest()) == self.store.held(snapshot_id).snapshot.tree_hash
            live.close()


@settings(max_examples=40)
@given(STEPS)
def test_no_branch_and_no_kept_snapshot_ever_misses_anything(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    """Issue 4: drop and gc free space and never touch what another branch needs."""
    bench = Bench(tmp_path_factory.mktemp("gc"))
    for what, number in steps:
        bench.step(what, number)
    bench.check()
    bench.step("reopen", 0)
    bench.check()
    bench.gc(set())
    bench.step("reopen", 0)
    bench.check()
    bench.store.close()


@pytest.fixture
def ws(opened: Open, backend: str) -> Workspaces:
    return opened(backend=backend)


def test_gc_gives_back_what_only_forgotten_snapshots_had(ws: Workspaces, base: Path) -> None:
    base_id = ws.add_base(base)
    one = ws.create("one", base=base_id)
    (one.path / "big").write_bytes(os.urandom(300_000))
    first = one.freeze()
    (one.path / "big").write_bytes(os.urandom(300_000))
    second = one.freeze()
    two = ws.create("two", snapshot=first.id)
    (two.path / "other").write_bytes(os.urandom(200_000))
    third = two.freeze()
    assert ws.gc().layers == 0
    two.drop()
    freed = ws.gc({second.id})
    assert freed.layers == 1
    assert freed.bytes >= 200_000
    with pytest.raises(UsageError, match="no snapshot"):
        ws.create("x", snapshot=third.id)
    with pytest.raises(UsageError, match=f"no snapshot {third.id}"):
        ws.gc({third.id})
    assert one.freeze() == second
    assert ws.create("y", snapshot=first.id).tree_hash() == first.tree_hash
    assert tree_hash(one.path) == second.tree_hash


def test_what_gc_forgot_comes_back_from_a_pack(ws: Workspaces, base: Path) -> None:
    base_id = ws.add_base(base)
    branch = ws.create("one", base=base_id)
    (branch.path / "x").write_text("x")
    snapshot = branch.freeze()
    members = export(ws, base=base_id, snapshots=[snapshot.id])
    pack = {n: c if isinstance(c, bytes) else c.read_bytes() for n, c in members}
    branch.drop()
    assert ws.gc(set()).layers == 1
    adopt(ws, read=pack.__getitem__, names=pack)
    assert ws.create("two", snapshot=snapshot.id).tree_hash() == snapshot.tree_hash


def test_files_open_in_a_dropped_branch_outlive_gc(opened: Open, base: Path) -> None:
    ws = opened()
    branch = ws.create("one", base=ws.add_base(base))
    (branch.path / "big").write_bytes(b"b" * 200_000)
    branch.freeze()
    with (branch.path / "big").open("rb", buffering=0) as file:
        branch.drop()
        assert ws.gc(set()).layers == 0
        assert file.read(200_001) == b"b" * 200_000


def test_a_power_loss_after_gc_brings_no_half_snapshot_back(opened: Open, base: Path) -> None:
    ws = opened()
    base_id = ws.add_base(base)
    branch = ws.create("one", base=base_id)
    (branch.path / "x").write_text("x")
    snapshot = branch.freeze()
    branch.drop()
    log = ws.store / "layers" / "1.log"
    layer = log.read_bytes()
    ws.gc(set())
    ws.stop()
    log.write_bytes(layer)  # the removal was not on stable storage yet
    ws = opened()
    with pytest.raises(UsageError, match="no snapshot"):
        ws.snapshot(snapshot.id)
    assert not log.exists() or log.stat().st_size == 0


def refused(write: Callable[[], object]) -> None:
    with pytest.raises(OSError, match="No space left") as caught:
        write()
    assert caught.value.errno == errno.ENOSPC


def test_a_store_stays_below_its_cap(opened: Open, base: Path, tmp_path: Path) -> None:
    """ENOSPC for writers, DiskFull for callers; removing, freezing and gc go on working."""
    cap = 2_000_000
    ws = Workspaces.open(tmp_path / "store", backend="fuse", cap_bytes=cap)
    opened(tmp_path / "store")
    base_id = ws.add_base(base)
    one, two = ws.create("one", base=base_id), ws.create("two", base=base_id)
    (one.path / "big").write_bytes(b"x" * 900_000)
    (two.path / "big").write_bytes(b"x" * 900_000)
    refused(lambda: (one.path / "more").write_bytes(b"x" * 300_000))
    refused(lambda: [(one.path / f"f{n}").write_bytes(b"x" * 50_000) for n in range(9)])
    assert taken_bytes(ws.store / "layers") <= cap
    assert one.freeze().tree_hash == tree_hash(one.path)
    before = taken_bytes(ws.store / "layers")
    (two.path / "big").unlink()
    deadline_s = time.monotonic() + 20
    while taken_bytes(ws.store / "layers") > before - 900_000 and time.monotonic() < deadline_s:
        time.sleep(0.01)  # the kernel gives an inode back when it gets to it
    (one.path / "after").write_bytes(b"x" * 500_000)
    two.drop()
    one.freeze()
    assert (one.path / "big").read_bytes() == b"x" * 900_000
    ws.close()


def test_the_cap_of_the_environment(
    opened: Open, backend: str, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRANCHKIT_STORE_CAP", "100000")
    ws = opened(backend=backend)
    branch = ws.create("one", base=ws.add_base(base))
    if backend == "fuse":
        refused(lambda: (branch.path / "big").write_bytes(b"x" * 200_000))
    else:  # the copy itself is a plain directory; what it becomes in the store is not
        (branch.path / "big").write_bytes(b"x" * 200_000)
        with pytest.raises(DiskFull, match="of 100000 bytes"):
            branch.freeze()
    monkeypatch.setenv("BRANCHKIT_STORE_CAP", "lots")
    with pytest.raises(UsageError, match="is no number"):
        Workspaces.open(ws.store, backend="copy" if backend == "copy" else "fuse")
