"""Layers merged on the disk: what is kept is not changed by it, wherever it is cut short."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from branchkit.errors import UsageError
from branchkit.workspace import Workspaces, edit, graft, listing
from branchkit.workspace import base as bases
from branchkit.workspace.collect import Freed, collect
from branchkit.workspace.compact import merge, merge_aside
from branchkit.workspace.hashes import render
from branchkit.workspace.layout import prepare
from branchkit.workspace.space import taken_bytes
from branchkit.workspace.store import Store
from branchkit.workspace.superseded import READERS

from .changing import CHANGES, PLACES, changed
from .kit import Open

PROGRAM = """
import sys
from pathlib import Path
from branchkit.workspace.collect import Freed, collect
from branchkit.workspace.compact import merge, merge_aside
from branchkit.workspace.store import Store
store = Store(Path(sys.argv[1]))
collect(store, set(sys.argv[2:]))
merge(store, set(sys.argv[2:]))
store.close()
store = Store(Path(sys.argv[1]))
store.tidy(always=True)
store.close()
"""
POINTS = [
    "workspace.compact.written", "workspace.compact.linked", "workspace.compact.ready",
    "workspace.compact.replaced", "workspace.compact.removed", "workspace.catalog.written",
    "workspace.catalog.renamed",
]  # fmt: skip


def a_base(folder: Path) -> Path:
    for place in PLACES:
        (folder / "base" / place).mkdir(parents=True, exist_ok=True)
        (folder / "base" / place / "x").write_text(place)
    (folder / "base" / "y").write_bytes(bytes(range(256)) * 8192)  # 2 MiB: written in pieces
    return folder / "base"


def seen(store: Store, snapshot_id: str) -> tuple[object, ...]:
    """Everything that a snapshot is: hash, entries with their times, and every byte."""
    held = store.held(snapshot_id)
    view = store.view(held.snapshot.base, snapshot_id)
    try:
        found = []
        for entry in listing.entries(view):
            rec = view.tree.get(entry.inode)
            times = rec.atime_ns, rec.mtime_ns, rec.ctime_ns
            content = view.read(entry.inode, 0, 1 << 23) if entry.is_file else b""
            found.append((entry, rec.uid, rec.gid, rec.nlink, times, content))
        assert render(view.digest()) == held.snapshot.tree_hash
        return held.snapshot.id, held.snapshot.tree_hash, tuple(found)
    finally:
        view.close()


def a_history(folder: Path, changes: list[tuple[str, int]]) -> tuple[Store, list[str]]:
    """A store in which one branch was changed, frozen and forked as ``changes`` say."""
    store = Store(prepare(folder / "store"))
    base = bases.add(a_base(folder), store.path)
    store.register_base(base)
    store.create("0", base=base, snapshot=None)
    taken: list[str] = []
    for what, number in changes:
        name = sorted(store.named)[number % len(store.named)]
        if what == "freeze":
            taken.append(store.freeze(name).id)
        elif what == "fork" and taken:
            origin = taken[number % len(taken)]
            store.create(str(len(store.named)), base=None, snapshot=origin)
        else:
            changed(store.live(name), what, number)
    taken += [store.freeze(name).id for name in store.named]
    return store, list(dict.fromkeys(taken))


@settings(max_examples=12, deadline=None)
@given(CHANGES, st.integers(0, 2**30))
def test_what_is_kept_is_the_same_after_a_merge(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[str, int]], mask: int
) -> None:
    """R34: hash, bytes, times, links; in memory, after a restart, and in what comes later."""
    store, taken = a_history(tmp_path_factory.mktemp("compact"), changes)
    keep = {each for at, each in enumerate(taken) if mask >> at & 1}
    before = {each: seen(store, each) for each in keep}
    states = {name: store.live(name).digest() for name in store.named}
    collect(store, keep)
    merge(store, keep)
    for _ in range(2):
        assert {each: seen(store, each) for each in keep} == before
        assert {name: store.live(name).digest() for name in store.named} == states
        for name in store.named:
            changed(store.live(name), "write", 26)
            states[name] = store.live(name).digest()
            store.freeze(name)
        store.close()
        store = Store(store.path)
    store.close()


def a_line(folder: Path) -> tuple[Store, list[str]]:
    """One branch with ten snapshots: small files, big ones in pieces, removed ones."""
    store = Store(prepare(folder / "store"))
    base = bases.add(a_base(folder), store.path)
    store.register_base(base)
    store.create("one", base=base, snapshot=None)
    live, taken = store.live("one"), []
    for number in range(10):
        name, root = b"f%d" % number, live.tree.root
        live.commit(edit.make(live.tree, root, name, 0o100644, (0, 0), 1).changes)
        live.write(graft.find(live, f"f{number}"), 0, b"%d" % number * 200_000, 1)
        live.write(graft.find(live, "y"), number * 70_000, b"new" * 30_000, 1)
        live.write(graft.find(live, "d/x"), 0, b"%d" % number * 50, 1)
        if number % 3 == 2:
            gone = edit.unlink(live.tree, root, b"f%d" % (number - 1), 1)
            live.commit(gone.changes)
            live.forget(gone.fid)
        taken.append(store.freeze("one").id)
    return store, taken


@pytest.mark.parametrize("point", POINTS)
def test_a_merge_that_is_killed_leaves_old_or_new(tmp_path: Path, point: str) -> None:
    """Issue 4: SIGKILL at any point of it; what is kept is whole, and the next gc finishes."""
    store, taken = a_line(tmp_path)
    keep = [taken[4], taken[9]]
    before = {each: seen(store, each) for each in keep}
    store.close()
    command = [sys.executable, "-c", PROGRAM, os.fspath(store.path), *keep]
    environment = {**os.environ, "BRANCHKIT_CRASH_AT": point}
    assert subprocess.run(command, env=environment, check=False).returncode == -signal.SIGKILL
    for _ in range(2):
        store = Store(store.path)
        assert {each: seen(store, each) for each in keep} == before
        assert store.live("one").digest().hex() == before[keep[1]][1][7:]  # type: ignore[index]
        collect(store, set(keep))
        merge(store, set(keep))
        assert store.snapshots.keys() == set(keep)
        store.close()
    store = Store(store.path)
    assert {entry.stem for entry in store.layers.iterdir()} <= store.catalog.layers()
    assert not list(store.path.glob(".*.tmp"))
    store.close()


def test_a_merge_gives_space_back_and_files_keep_their_inodes(tmp_path: Path) -> None:
    store, taken = a_line(tmp_path)
    whole = store.layers / store.held(taken[0]).layer / "549755813888"
    inode = whole.stat().st_ino
    freed = merge(store, {taken[9]})
    assert freed.layers == 9
    assert freed.bytes > 500_000  # three files that were removed; a new log stands beside old ones
    assert list(store.snapshots) == [taken[9]]
    now = store.layers / store.held(taken[9]).layer
    assert (now / "549755813888").stat().st_ino == inode
    with pytest.raises(UsageError, match="no snapshot"):
        store.held(taken[3])
    store.close()
    before = taken_bytes(store.layers)
    store = Store(store.path)  # the former names go
    assert {entry.stem for entry in store.layers.iterdir()} == {store.held(taken[9]).layer}
    assert taken_bytes(store.layers) <= before
    store.close()


def test_a_branch_that_forks_while_layers_are_written_keeps_its_start(tmp_path: Path) -> None:
    store, taken = a_line(tmp_path)
    posted: SimpleQueue[Callable[[], None]] = SimpleQueue()  # as the daemon's loop
    freed: list[Freed] = []
    merge_aside(store, {taken[9]}, posted.put, freed.append)
    store.create("late", base=None, snapshot=taken[5])
    before = seen(store, taken[5])
    posted.get(timeout=60)()
    assert seen(store, taken[5]) == before
    assert taken[5] in store.snapshots
    assert freed == [Freed(0, 0)]  # the run is not what it was when that began
    store.close()


def test_who_reads_keeps_what_is_merged_until_done(tmp_path: Path) -> None:
    """Another process (history, pack) may have loaded the catalogue of before."""
    store, taken = a_line(tmp_path)
    other = Store(store.path, writable=False)
    assert (store.path / READERS).exists()
    merge(store, {taken[9]})
    assert seen(other, taken[3])[0] == taken[3]
    assert collect(store, {taken[9]}).bytes == 0
    other.close()
    assert collect(store, {taken[9]}).bytes > 500_000
    store.close()


def test_a_file_that_was_open_without_a_name_is_left_out(tmp_path: Path) -> None:
    """Later layers go on with it; once nobody has it open, nobody misses it."""
    store, taken = a_line(tmp_path)
    live = store.live("one")
    fid, root = graft.find(live, "f9"), live.tree.root
    live.commit(edit.unlink(live.tree, root, b"f9", 1).changes)
    taken.append(store.freeze("one").id)
    live.write(fid, 0, b"still open" * 20_000, 1)
    live.write(fid, 5, b"x", 1)
    store.create("two", base=None, snapshot=taken[10])
    before = seen(store, taken[10])
    assert merge(store, {taken[10]}).layers == 10
    assert live.read(fid, 0, 10) == b"stillxopen"
    store.close()
    store = Store(store.path)
    assert seen(store, taken[10]) == before
    assert store.live("one").digest() == store.live("two").digest()
    store.close()


def test_the_catalogue_is_written_anew_when_most_of_it_is_past(tmp_path: Path) -> None:
    store, taken = a_line(tmp_path)
    for number in range(600):
        store.create(f"b{number}", base=None, snapshot=taken[9])
        store.drop(f"b{number}")
        store.discard_dropped(store.catalog.number)
    long = (store.path / "catalog.log").stat().st_size
    numbers = store.catalog.layer, store.catalog.number
    collect(store, {taken[9]})
    assert (store.path / "catalog.log").stat().st_size < long / 2
    store.create("after", base=None, snapshot=taken[9])
    store.close()
    store = Store(store.path)
    assert (store.catalog.layer - 1, store.catalog.number - 1) == numbers
    assert store.named.keys() == {"one", "after"}
    store.close()


def test_branches_work_while_the_daemon_merges(opened: Open, base: Path) -> None:
    """A file open since before the merge, writes during it, and the same hash after it."""
    ws: Workspaces = opened()
    one = ws.create("one", base=ws.add_base(base))
    taken = []
    for number in range(6):
        (one.path / "big").write_bytes(os.urandom(300_000))
        (one.path / f"f{number}").write_bytes(b"%d" % number * 200_000)
        taken.append(one.freeze())
    with (one.path / "f0").open("rb") as file:
        freed = ws.gc({taken[-1].id})
        assert freed.bytes > 5 * 300_000
        assert file.read() == b"0" * 200_000
    assert one.freeze().tree_hash == taken[-1].tree_hash
    assert (one.path / "f3").read_bytes() == b"3" * 200_000
    two = ws.create("two", snapshot=taken[-1].id)
    assert two.tree_hash() == taken[-1].tree_hash
    ws.stop()
    ws = opened()
    assert ws.branch("two").tree_hash() == taken[-1].tree_hash
    assert (ws.branch("two").path / "f0").read_bytes() == b"0" * 200_000
