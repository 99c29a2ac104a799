"""Many files and large ones; 2,000 files here, 100,000 in `make test-fs`."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from branchkit.workspace import tree_hash

from .kit import FULL, Open

pytestmark = pytest.mark.timeout(1800 if FULL else 180)

FILES = 100_000 if FULL else 2_000
FOLDER_FILES = 100
LARGE_BYTES = 5 << 30  # nothing of it is on the disk but what is written


def spread(root: Path) -> None:
    """So many files, each in a folder with ninety-nine others; most are empty, so it is quick."""
    for folder in range(FILES // FOLDER_FILES):
        place = os.fspath(root / f"d{folder % 10}" / f"e{folder}")
        os.makedirs(place)
        for number in range(FOLDER_FILES):
            os.mknod(f"{place}/f{number}")
        Path(place, "f0").write_text(str(folder))


def count(root: Path) -> int:
    """How many files there are below ``root``."""
    return sum(len(files) for _, _, files in os.walk(root))


def test_a_tree_of_many_files(opened: Open, tmp_path: Path) -> None:
    """R30: seen, changed, frozen, forked and found again; what was not changed is not copied."""
    base = tmp_path / "base"
    spread(base)
    ws = opened()
    base_id = ws.add_base(base)
    branch = ws.create("one", base=base_id)
    root = branch.path
    assert branch.tree_hash() == tree_hash(base)
    changed = []
    for folder in range(0, FILES // FOLDER_FILES, 25):
        place = f"d{folder % 10}/e{folder}"
        (root / place / "f0").write_text("changed")
        os.rename(root / place / "f1", root / place / "moved")
        changed += [f"{place}/f0", f"{place}/f1", f"{place}/moved"]
    shutil.rmtree(root / "d3" / "e3")
    changed += [f"d3/e3/f{number}" for number in range(FOLDER_FILES)]
    found = {change.path for change in branch.diff()}
    assert found - {"d3/e3"} == set(changed)
    snapshot = branch.freeze()
    assert snapshot.files == 2 * len(range(0, FILES // FOLDER_FILES, 25))
    assert count(root) == FILES - FOLDER_FILES
    assert snapshot.tree_hash == tree_hash(root)
    ws.stop()
    ws = opened()
    fork = ws.create("two", snapshot=snapshot.id)
    assert count(fork.path) == FILES - FOLDER_FILES
    assert fork.tree_hash() == snapshot.tree_hash
    assert ws.create("three", base=base_id).tree_hash() == tree_hash(base)


def test_a_directory_of_many_files(opened: Open, tmp_path: Path) -> None:
    """Made, listed, frozen, emptied: by one directory of a branch alone."""
    (tmp_path / "base").mkdir()
    ws = opened()
    branch = ws.create("one", base=ws.add_base(tmp_path / "base"))
    names = {f"name{number}" for number in range(FILES // 5)}
    folder = branch.path / "folder"
    folder.mkdir()
    for name in names:
        os.mknod(folder / name)
    assert set(os.listdir(folder)) == names
    snapshot = branch.freeze()
    assert snapshot.tree_hash == tree_hash(branch.path)
    shutil.rmtree(folder)
    assert os.listdir(branch.path) == []
    fork = ws.create("two", snapshot=snapshot.id)
    assert set(os.listdir(fork.path / "folder")) == names


def test_a_file_of_five_gigabytes(opened: Open, tmp_path: Path) -> None:
    """Offsets over 4 GiB; holes stay holes in the store and cost no time to freeze."""
    (tmp_path / "base").mkdir()
    ws = opened()
    branch = ws.create("one", base=ws.add_base(tmp_path / "base"))
    places = [0, (1 << 31) - 2, (1 << 32) - 2, LARGE_BYTES - 5]
    with (branch.path / "large").open("w+b") as file:
        file.truncate(LARGE_BYTES)
        for place in places:
            os.pwrite(file.fileno(), b"here!", place)
    snapshot = branch.freeze()
    ws.stop()
    kept = sum(path.stat().st_blocks * 512 for path in (ws.store / "layers").rglob("*"))
    assert kept < 32 << 20
    ws = opened()
    for name in ("one", "two"):
        branch = ws.branch(name) if name == "one" else ws.create(name, snapshot=snapshot.id)
        with (branch.path / "large").open("rb") as file:
            assert os.fstat(file.fileno()).st_size == LARGE_BYTES
            for place in places:
                expected = b"here!".rjust(8, b"\0") if place else b"here!\0\0\0"
                assert os.pread(file.fileno(), 8, max(0, place - 3)) == expected
        os.truncate(branch.path / "large", 10)
        assert (branch.path / "large").read_bytes() == b"here!" + bytes(5)
