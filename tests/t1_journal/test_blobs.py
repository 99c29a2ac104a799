"""Blobs and packs: what was put in comes out, or an error; never something else."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from branchkit import disk
from branchkit.errors import BlobMissing, BranchkitError, DiskFull, InputRefused
from branchkit.journal.blobs import Blobs, first_of
from branchkit.journal.pack import Pack, pack_path, write_pack

shared = settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])


@shared
@given(st.binary(max_size=3000))
def test_a_blob_comes_back(tmp_path: Path, content: bytes) -> None:
    """R12: by the SHA-256 of its content."""
    blobs = Blobs(tmp_path / "store" / "blobs")
    address = blobs.put(content)
    assert address == hashlib.sha256(content).hexdigest()
    assert blobs.get(address) == content


def test_a_blob_is_stored_once(tmp_path: Path) -> None:
    """R12: one image that is shown in 50 turns."""
    blobs = Blobs(tmp_path)
    image = os.urandom(100_000)
    inodes = set()
    for _ in range(50):
        address = blobs.put(image)
        inodes.add((tmp_path / address[:2] / address[2:]).stat().st_ino)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(inodes) == len(files) == 1
    assert stat.S_IMODE(files[0].stat().st_mode) == 0o600


def test_threads_may_store_the_same_blob_at_once(tmp_path: Path) -> None:
    """They shared one temporary name: one renamed it away under the other."""
    blobs, content, errors = Blobs(tmp_path), os.urandom(200_000), []
    start = threading.Barrier(8)

    def put() -> None:
        start.wait()
        try:
            blobs.put(content)
        except OSError as error:
            errors.append(error)

    threads = [threading.Thread(target=put) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert blobs.get(hashlib.sha256(content).hexdigest()) == content
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 1


def test_a_changed_blob_is_found(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path)
    address = blobs.put(b"content")
    (tmp_path / address[:2] / address[2:]).write_bytes(b"content!")
    with pytest.raises(BlobMissing, match=address):
        blobs.get(address)


@pytest.mark.parametrize(
    "address", ["", "..", "0" * 63, "0" * 64, "../" * 10 + "etc/passwd", "A" * 64]
)
def test_what_is_no_address_is_not_looked_up(tmp_path: Path, address: str) -> None:
    with pytest.raises(KeyError):
        Blobs(tmp_path).get(address)


def test_readers_are_asked_in_turn(tmp_path: Path) -> None:
    one, two = Blobs(tmp_path / "1"), Blobs(tmp_path / "2")
    a, b = one.put(b"a"), two.put(b"b")
    read = first_of(one.get, two.get)
    assert (read(a), read(b)) == (b"a", b"b")
    with pytest.raises(KeyError):
        read("0" * 64)


def test_every_new_folder_is_made_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ENGINE 2.4: a synced file in a folder that a power cut took is lost all the same."""
    synced: list[Path] = []
    monkeypatch.setattr(disk, "fsync_dir", synced.append)
    address = Blobs(tmp_path / "store" / "blobs").put(b"x")
    store = tmp_path / "store"
    folder = store / "blobs" / address[:2]
    assert synced == [tmp_path, store, store / "blobs", folder]


# ---- packs ----

MEMBERS = {
    "blobs/" + hashlib.sha256(b"text" * 50).hexdigest(): b"text" * 50,
    "workspace/bases/1.json": b'{"a": 1}',
    "workspace/snapshots/\u00e4.json": bytes(300),
}


@shared
@given(st.dictionaries(st.text("abc/\u00e4", min_size=1, max_size=8), st.binary(max_size=200)))
def test_a_pack_gives_its_members_back(tmp_path: Path, members: dict[str, bytes]) -> None:
    path = tmp_path / "run.pack"
    write_pack(path, members.items())
    pack = Pack(path)
    assert sorted(pack.names) == sorted(members)
    assert {name: pack.read(name) for name in pack.names} == members
    pack.close()


def test_equal_members_give_equal_bytes(tmp_path: Path) -> None:
    """In whatever order they come, from memory or from files, once or twice."""
    one, two = tmp_path / "1.pack", tmp_path / "2.pack"
    write_pack(one, MEMBERS.items())
    members: list[tuple[str, bytes | Path]] = []
    for number, (name, content) in enumerate(reversed(MEMBERS.items())):
        (tmp_path / str(number)).write_bytes(content)
        members += [(name, tmp_path / str(number)), (name, content)]
    write_pack(two, iter(members))
    assert one.read_bytes() == two.read_bytes()
    assert stat.S_IMODE(one.stat().st_mode) == 0o600


def test_damage_to_a_pack_never_gives_other_content(tmp_path: Path) -> None:
    """Each byte changed in turn, and the file cut there: the content, or an error of ours."""
    path = tmp_path / "run.pack"
    write_pack(path, MEMBERS.items())
    data = path.read_bytes()
    missed = 0
    for offset in range(len(data)):
        for damaged in (
            data[:offset] + bytes([data[offset] ^ 0xFF]) + data[offset + 1 :],
            data[:offset],
        ):
            path.write_bytes(damaged)
            missed += all_read(path)
    # Fields of the format that say nothing about content, such as times and attributes.
    assert missed < len(data) / 3


def all_read(path: Path) -> bool:
    """Whether every member came back; each one that did is as it was."""
    try:
        pack = Pack(path)
    except InputRefused:
        return False
    came = 0
    for name, content in MEMBERS.items():
        try:
            read = pack.blob(name[6:]) if name.startswith("blobs/") else pack.read(name)
        except (KeyError, BranchkitError):
            continue
        assert read == content
        came += 1
    pack.close()
    return came == len(MEMBERS)


def test_a_blob_in_a_pack_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "run.pack"
    write_pack(path, [("blobs/" + "0" * 64, b"not what the name says")])
    pack = Pack(path)
    with pytest.raises(BlobMissing):
        pack.blob("0" * 64)
    with pytest.raises(KeyError):
        pack.blob("1" * 64)
    pack.close()


def test_what_is_no_pack_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.pack"
    with pytest.raises(InputRefused, match="cannot be read as a pack"):
        Pack(path)
    path.write_bytes(b"hello")
    with pytest.raises(InputRefused, match="cannot be read as a pack"):
        Pack(path)


def test_a_pack_stands_beside_its_journal() -> None:
    assert pack_path(Path("a/run.journal.jsonl")) == Path("a/run.pack")


def test_a_pack_that_found_no_space_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.pack"
    write_pack(path, MEMBERS.items())
    before = path.read_bytes()

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(disk, "fdatasync", full)
    with pytest.raises(DiskFull):
        write_pack(path, [("other", b"x")])
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
