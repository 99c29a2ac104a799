"""Big files are not copied to be changed: what is written, and what is hashed, is what changed."""

from __future__ import annotations

import errno
import hashlib
import itertools
import os
import random
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from branchkit.workspace import Workspaces, adopt, edit, export, places, tree_hash
from branchkit.workspace import base as bases
from branchkit.workspace import branch as branches
from branchkit.workspace.branch import Live
from branchkit.workspace.places import Hosted, Pieces
from branchkit.workspace.space import taken_bytes
from branchkit.workspace.store import Store, prepare

from .kit import Open, kill_daemon

MIB = 1 << 20
CHUNK, SEGMENT = 64 * 1024, 4 * MIB
BASE_SIZE = SEGMENT + CHUNK + 100
NOW = 1

BORDERS = [0, CHUNK, MIB, MIB + CHUNK, SEGMENT, SEGMENT + CHUNK, BASE_SIZE, 5 * MIB]
PLACE = st.builds(
    lambda border, delta: max(0, border + delta), st.sampled_from(BORDERS), st.integers(-70, 70)
)
LENGTH = st.sampled_from([1, 7, 4096, CHUNK, CHUNK + 1, 3 * CHUNK])
STEP = st.one_of(
    st.tuples(st.just("write"), PLACE, LENGTH),
    st.tuples(st.just("append"), st.just(0), LENGTH),
    st.tuples(st.just("cut"), PLACE, st.just(0)),
    st.tuples(st.just("read"), PLACE, LENGTH),
    st.tuples(st.just("torn"), PLACE, LENGTH),
    st.tuples(
        st.sampled_from(["hash", "freeze", "fork", "switch", "remount", "sync", "rename"]),
        st.integers(0, 9),
        st.just(0),
    ),
)


def merkle(content: bytes) -> bytes:
    """The hash that `sums` describes, in the plainest way."""

    def sha(data: bytes) -> bytes:
        return hashlib.sha256(data).digest()

    if len(content) <= MIB:
        return sha(content)
    leaves = [sha(content[at : at + CHUNK]) for at in range(0, len(content), CHUNK)]
    segments = [sha(b"".join(leaves[at : at + 64])) for at in range(0, len(leaves), 64)]
    return sha(b"".join(segments))


def noise(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


@pytest.fixture(scope="module")
def big_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("base")
    (root / "big").write_bytes(noise(BASE_SIZE))
    return root


class Bench:
    """A store without a mount, and what ``big`` must hold in each branch and snapshot."""

    def __init__(self, folder: Path, base: Path) -> None:
        self.store = Store(prepare(folder / "store"))
        self.base = bases.add(base, self.store.path)
        self.store.register_base(self.base)
        self.at = self.fresh()
        self.store.create(self.at, base=self.base, snapshot=None)
        self.branches = {self.at: bytearray((base / "big").read_bytes())}
        self.snapshots: dict[str, bytes] = {}
        self.number = 0

    def fresh(self) -> str:
        return f"b{len(self.store.named)}"

    @property
    def live(self) -> Live:
        return self.store.live(self.at)

    def fid(self, live: Live) -> int:
        return next(iter(live.tree.entries(live.tree.root).values()))

    def step(self, what: str, place: int, length: int) -> None:
        self.number += 1
        live, model = self.live, self.branches[self.at]
        fid = self.fid(live)
        data = bytes([self.number % 255 + 1]) * length
        match what:
            case "write" | "append":
                place = place if what == "write" else len(model)
                live.write(fid, place, data, NOW)
                model.extend(bytes(max(0, place - len(model))))
                model[place : place + length] = data
            case "cut":
                live.resize(fid, place, NOW)
                del model[place:]
                model.extend(bytes(place - len(model)))
            case "read":
                assert live.read(fid, place, length) == model[place : place + length]
            case "torn":
                self.torn(live, fid, place, data)
            case "hash":
                assert live.contents.sha(fid, live.tree.get(fid)) == merkle(bytes(model))
            case "freeze":
                self.snapshots[self.store.freeze(self.at).id] = bytes(model)
            case "fork" if self.snapshots:
                origin = sorted(self.snapshots)[place % len(self.snapshots)]
                self.at = self.fresh()
                self.store.create(self.at, base=None, snapshot=origin)
                self.branches[self.at] = bytearray(self.snapshots[origin])
            case "switch":
                self.at = sorted(self.branches)[place % len(self.branches)]
            case "remount":
                self.remount()
            case "sync":
                live.sync(fid)
            case "rename":
                root = live.tree.root
                old, new = next(iter(live.tree.entries(root))), b"n%d" % self.number
                live.commit(edit.rename(live.tree, root, old, root, new, NOW).changes)

    def torn(self, live: Live, fid: int, place: int, data: bytes) -> None:
        """Killed after the data of a write and before its frame: bytes that nobody may see."""
        model = self.branches[self.at]
        own = live.tree.get(fid).data == Hosted(live.tree.layer, fid)
        if isinstance(live.tree.get(fid).data, bytearray) or (own and place < len(model)):
            return  # of a file's own bytes either the old or the new may be there
        host = Hosted(live.tree.layer, fid)
        held = [] if own else live.contents.pieces(live.tree.get(fid), place, place + len(data))
        if all(piece.place != host for piece in held):
            os.pwrite(live.contents.host_fd(fid, host), data, place)
        self.remount()

    def remount(self) -> None:
        """As after a SIGKILL: nothing is synced, nothing said."""
        for live in self.store._live.values():
            live.close()
        self.store = Store(self.store.path)

    def check(self) -> None:
        for name, model in self.branches.items():
            live = self.store.live(name)
            self.holds(live, bytes(model))
        for snapshot_id, frozen in self.snapshots.items():
            live = self.store.view(self.base, snapshot_id)
            self.holds(live, frozen)
            live.close()

    def holds(self, live: Live, model: bytes) -> None:
        fid = self.fid(live)
        rec = live.tree.get(fid)
        assert rec.size == len(model)
        assert live.read(fid, 0, len(model) + 1) == model
        assert live.contents.sha(fid, rec) == merkle(model)
        rebuilt = bytearray(len(model))
        for offset, data in live.contents.regions(fid, rec) if len(model) > CHUNK else []:
            rebuilt[offset : offset + len(data)] = data
        assert len(model) <= CHUNK or rebuilt == model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("chunks")


SMALL = [("cut", 0, 0), ("write", 0, 2 * CHUNK)]  # a host file of its own


@settings(max_examples=30)
@example([("cut", MIB + CHUNK + 5, 0)], 0, 9)
@example([("cut", MIB + CHUNK + 5, 0), ("freeze", 0, 0), ("cut", MIB + 2 * CHUNK, 0)], 0, 9)
@example([*SMALL, ("torn", 3 * CHUNK, 4096), ("write", 5 * CHUNK, 1)], 0, 9)
@example([*SMALL, ("torn", 3 * CHUNK, 4096), ("cut", 5 * CHUNK, 0)], 0, 9)
@example([("write", 9000 * n, 7) for n in range(9)], 0, 4)
@example([("write", 9000 * n, 7) for n in range(9)], 4 * CHUNK, 4)
@given(st.lists(STEP, min_size=4, max_size=25), st.sampled_from([0, 4 * CHUNK]), st.integers(2, 9))
def test_a_big_file_is_what_a_bytearray_is(
    folder: Path, big_base: Path, steps: list[tuple[str, int, int]], inset: int, crowd: int
) -> None:
    """Issue 4, OVERLAY 6: writes, cuts, freezes, forks and kills around the borders of chunks.

    With little and with nothing of it in the log, and with few pieces allowed in a segment.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(branches, "INSET_BYTES", inset)
        patch.setattr(places, "CROWD", crowd)
        bench = Bench(folder, big_base)
        for step in steps:
            bench.step(*step)
        bench.check()
        bench.remount()
        bench.check()
        bench.store.close()
    assert (big_base / "big").read_bytes() == noise(BASE_SIZE)


SPOTS = st.tuples(st.integers(0, 3 * SEGMENT), st.integers(1, 2 * SEGMENT))


@given(st.lists(st.tuples(SPOTS, st.integers(0, 3)), max_size=30), SPOTS, st.booleans())
def test_pieces_are_what_a_list_of_owners_is(
    claims: list[tuple[tuple[int, int], int]], look: tuple[int, int], cut: bool
) -> None:
    """Scaled down by 64 KiB, so that the model is one item a chunk."""
    scale, owners = CHUNK, [Hosted("1", 0), Hosted("2", 0), Hosted("3", 0), None]
    pieces, model = Pieces(Hosted("0", 0), 100 * scale), [Hosted("0", 0)] * 100 + [None] * 300
    first, kept = pieces.copy(), list(model)
    for (start, count), owner in claims:
        one, two = start // scale, start // scale + count // scale
        pieces.claim(one * scale, two * scale, owners[owner])
        model[one:two] = [owners[owner]] * (two - one)
    if cut:
        pieces.cut(look[0] // scale * scale)
        model[look[0] // scale :] = [None] * (len(model) - look[0] // scale)
    start, stop = look[0] // scale, look[0] // scale + look[1] // scale
    found = list(pieces.within(start * scale, stop * scale))
    flat = [p.place for p in found for _ in range(p.start // scale, p.stop // scale)]
    assert flat == model[start:stop]
    assert all(a.place != b.place and a.stop == b.start for a, b in itertools.pairwise(found))
    assert (
        [p.place for p in first.within(0, 400 * scale)]
        == [Hosted("0", 0), None]
        == sorted(set(kept), key=kept.index)
    )


def test_scattered_writes_do_not_take_a_file_apart(
    tmp_path: Path, big_base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many small writes: a segment has few pieces, and every byte is what it must be."""
    monkeypatch.setattr(places, "CROWD", 20)
    bench = Bench(tmp_path, big_base)
    for number in range(100):
        bench.step("write", number * 9000 + 1, 7)
    data = bench.live.tree.get(bench.fid(bench.live)).data
    assert isinstance(data, Pieces)
    assert len(list(data.within(0, BASE_SIZE))) <= 25
    bench.check()
    bench.remount()
    bench.check()
    bench.store.close()


def test_a_power_loss_leaves_zeros_only_where_nothing_was_synced(
    tmp_path: Path, big_base: Path
) -> None:
    """A host file that ends early: zeros in a live layer, an error in one that a freeze synced."""
    bench = Bench(tmp_path, big_base)
    for step in SMALL:
        bench.step(*step)
    host = bench.live.contents.host_path(Hosted(bench.live.tree.layer, bench.fid(bench.live)))
    os.truncate(host, CHUNK)
    bench.branches[bench.at][CHUNK:] = bytes(CHUNK)
    bench.remount()
    bench.step("freeze", 0, 0)
    bench.check()
    os.truncate(host, CHUNK)
    live = bench.live
    with pytest.raises(OSError, match="ends before byte") as caught:
        live.read(bench.fid(live), CHUNK, 10)
    assert caught.value.errno == errno.EIO
    bench.remount()
    bench.store.close()


def test_one_byte_more_takes_a_block_of_the_disk(
    opened: Open, tmp_path: Path, backend: str
) -> None:
    """OVERLAY "Targets", agentfs 170: an append to a big file of the base does not copy it."""
    base = tmp_path / "base"
    base.mkdir()
    (base / "big").write_bytes(noise(MIB) * 16)
    ws = opened()
    branch = ws.create("one", base=ws.add_base(base))
    before = taken_bytes(ws.store / "layers")
    with (branch.path / "big").open("ab") as file:
        file.write(b"x")
    assert (branch.path / "big").stat().st_size == 16 * MIB + 1
    assert taken_bytes(ws.store / "layers") - before <= 4 * CHUNK
    snapshot = branch.freeze()
    assert taken_bytes(ws.store / "layers") - before <= 4 * CHUNK
    assert snapshot.tree_hash == tree_hash(branch.path)
    ws.stop()
    expected = (base / "big").read_bytes() + b"x"
    again = opened(backend=backend).create("two", snapshot=snapshot.id)
    assert (again.path / "big").read_bytes() == expected
    assert again.tree_hash() == snapshot.tree_hash


@pytest.mark.parametrize("in_base", [True, False])
def test_a_small_change_of_a_big_file_is_all_that_a_freeze_reads(
    tmp_path: Path, big_base: Path, monkeypatch: pytest.MonkeyPatch, in_base: bool
) -> None:
    """OVERLAY 6 "Large-file chunk COW": one chunk is hashed again, also after a restart."""
    bench = Bench(tmp_path, big_base)
    read: list[int] = []
    real = os.pread
    if not in_base:
        bench.step("cut", 0, 0)
        for number in range(24):
            bench.step("write", number * CHUNK, CHUNK)
        bench.step("freeze", 0, 0)
        bench.remount()

    def counting(fd: int, size: int, offset: int) -> bytes:
        read.append(size)
        return real(fd, size, offset)

    for _ in range(3):
        bench.step("write", MIB + 5, 4096)
        monkeypatch.setattr(os, "pread", counting)
        bench.step("freeze", 0, 0)
        monkeypatch.undo()
        assert sum(read) <= 2 * CHUNK
        read.clear()
        bench.remount()
    bench.check()
    bench.store.close()


def test_a_store_without_its_sums_makes_them_anew(tmp_path: Path, big_base: Path) -> None:
    """The leaves of the base's files are a cache: lost or spoilt, they are found by reading."""
    for spoilt in (b"", b"no leaves"):
        bench = Bench(tmp_path / spoilt.hex(), big_base)
        (sums,) = (bench.store.path / "bases" / "sums").iterdir()
        good = sums.read_bytes()
        sums.unlink()
        if spoilt:
            sums.write_bytes(spoilt)
        bench.step("write", CHUNK, 10)
        bench.step("freeze", 0, 0)
        bench.check()
        assert sums.read_bytes() == good
        bench.store.close()


def test_five_gigabytes_with_a_hole(opened: Open, tmp_path: Path) -> None:
    """Issue 4: files > 4 GiB. A hole is neither stored nor read, and hashed by its length."""
    base, size, spot = tmp_path / "base", 5 << 30, (9 << 30) // 2 + 1
    base.mkdir()
    with (base / "big").open("wb") as file:
        file.truncate(size)
    ws = opened()
    branch = ws.create("one", base=ws.add_base(base))
    with (branch.path / "big").open("r+b", buffering=0) as file:
        os.pwrite(file.fileno(), b"here", spot)
        assert os.pread(file.fileno(), 6, spot - 1) == b"\0here\0"
        assert os.pread(file.fileno(), 9, size - 4) == bytes(4)
        os.pwrite(file.fileno(), b"end", size)
    first = branch.freeze()
    os.truncate(branch.path / "big", spot + 2)
    os.truncate(branch.path / "big", size + 3)
    second = branch.freeze()
    assert taken_bytes(ws.store / "layers") < MIB
    with (ws.create("two", snapshot=first.id).path / "big").open("rb", buffering=0) as file:
        assert os.pread(file.fileno(), 4, spot) == b"here"
        assert os.pread(file.fileno(), 9, size) == b"end"
    with (base / "big").open("r+b", buffering=0) as file:  # the same by other means
        os.pwrite(file.fileno(), b"he", spot)
        file.truncate(size + 3)
    assert tree_hash(base) == second.tree_hash != first.tree_hash


@pytest.fixture
def packed(opened: Open, big_base: Path) -> tuple[Workspaces, str, list[str]]:
    """A base and three snapshots with small changes of a big file, and one hard link more."""
    ws = opened()
    base_id = ws.add_base(big_base)
    branch = ws.create("one", base=base_id)
    taken = []
    for number in range(3):
        with (branch.path / "big").open("r+b", buffering=0) as file:
            os.pwrite(file.fileno(), b"%d" % number, MIB + number * CHUNK)
        if number == 1:
            (branch.path / "second").hardlink_to(branch.path / "big")
        if number == 2:
            os.truncate(branch.path / "big", BASE_SIZE - CHUNK)
        taken.append(branch.freeze().id)
    return ws, base_id, taken


def test_a_pack_holds_of_a_big_file_what_changed(
    packed: tuple[Workspaces, str, list[str]], opened: Open, tmp_path: Path, backend: str
) -> None:
    """Export and adopt: chunks by their hashes, each once; every version is whole elsewhere."""
    ws, base_id, taken = packed
    members = {n: c if isinstance(c, bytes) else c.read_bytes() for n, c in
               export(ws, base=base_id, snapshots=taken)}  # fmt: skip
    assert sum(map(len, members.values())) < BASE_SIZE + 8 * CHUNK
    for name, content in members.items():
        kind, _, address = name.rpartition("/")
        assert kind != "blobs" or hashlib.sha256(content).hexdigest() == address
    other = opened(tmp_path / "other", backend=backend)
    adopt(other, read=members.__getitem__, names=members)
    for snapshot_id in taken:
        here = ws.create(snapshot_id, snapshot=snapshot_id)
        there = other.create(snapshot_id, snapshot=snapshot_id)
        assert (there.path / "big").read_bytes() == (here.path / "big").read_bytes()
        assert there.tree_hash() == here.tree_hash() == tree_hash(here.path)


def test_copies_give_the_same_hashes(
    packed: tuple[Workspaces, str, list[str]], opened: Open
) -> None:
    """Equal content, equal hash, whatever the backend and whatever the history."""
    ws, _, taken = packed
    wanted = [ws.snapshot(each) for each in taken]
    ws.stop()
    copies = opened(backend="copy")
    for snapshot in wanted:
        branch = copies.create(snapshot.id, snapshot=snapshot.id)
        assert branch.tree_hash() == tree_hash(branch.path) == snapshot.tree_hash
        data = (branch.path / "big").read_bytes()
        (branch.path / "big").write_bytes(data)
        assert branch.freeze().tree_hash == snapshot.tree_hash


def mangle(choose: random.Random, path: Path, model: bytearray) -> None:
    """One operation of the kind that fsx makes, on a file and on its model."""
    border = choose.choice(BORDERS[:-1])
    place, size = max(0, border + choose.randrange(-70, 70)), choose.choice([1, 4096, 2 * CHUNK])
    data = choose.randbytes(size)
    with path.open("r+b", buffering=0) as file:
        match choose.choice(["write", "write", "append", "cut", "read", "fsync"]):
            case "write":
                os.pwrite(file.fileno(), data, place)
                model.extend(bytes(max(0, place - len(model))))
                model[place : place + size] = data
            case "append":
                os.pwrite(file.fileno(), data, len(model))
                model.extend(data)
            case "cut":
                file.truncate(place)
                del model[place:]
                model.extend(bytes(place - len(model)))
            case "read":
                assert os.pread(file.fileno(), size, place) == model[place : place + size]
            case "fsync":
                os.fsync(file.fileno())


def test_a_big_file_in_a_mount_that_is_killed(opened: Open, big_base: Path, tmp_path: Path) -> None:
    """fsx-like, with SIGKILL of the daemon again and again: every byte is there, also frozen."""
    choose, model, frozen = random.Random(7), bytearray(noise(BASE_SIZE)), {}
    ws = opened()
    branch = ws.create("one", base=ws.add_base(big_base))
    for number in range(160):
        mangle(choose, branch.path / "big", model)
        if number % 20 == 19:
            assert (branch.path / "big").read_bytes() == model
            frozen[branch.freeze().id] = bytes(model)
        if number % 40 == 29:
            kill_daemon(ws, tmp_path)
            ws = opened()
            branch = ws.branch("one")
            assert (branch.path / "big").read_bytes() == model
        if number % 40 == 39:
            branch.drop()
            branch = ws.create("one", snapshot=list(frozen)[-1])
    for snapshot_id, expected in frozen.items():
        assert (ws.create(snapshot_id, snapshot=snapshot_id).path / "big").read_bytes() == expected
    assert branch.tree_hash() == tree_hash(branch.path)


@pytest.mark.parametrize("small", [b"", b"small"])
@pytest.mark.parametrize("end", ["freeze", "stop"])
def test_a_file_that_was_big_then_small_then_removed_is_forgotten(
    opened: Open, base: Path, tmp_path: Path, small: bytes, end: str
) -> None:
    """Its host file had been noted for the next sync: that sync, and the end, did not find it."""
    ws = opened()
    branch = ws.create("one", base=ws.add_base(base))
    path = branch.path / "grew"
    path.write_bytes(os.urandom(2 * MIB))
    path.write_bytes(small)
    path.unlink()
    (branch.path / "kept").write_text("kept")
    if end == "freeze":
        branch.freeze()
    else:
        ws.stop()
    again = opened().branch("one").path
    assert sorted(os.listdir(again)) == sorted([*os.listdir(base), "kept"])
    assert "Traceback" not in (tmp_path / "store" / "daemon.log").read_text()
