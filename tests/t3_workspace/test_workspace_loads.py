"""Long loads in the manner of fsx and fsstress; samples here, full length in `make test-fs`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from branchkit.workspace import tree_hash

from . import loads
from .kit import FULL, Open, picture

pytestmark = pytest.mark.timeout(1800 if FULL else 180)

FILE_STEPS = 10_000 if FULL else 300
HANDS = 4
HAND_STEPS = 3000 if FULL else 200


@pytest.mark.parametrize("start", ["new", "of the base"])
def test_one_file_holds_what_was_put_into_it(opened: Open, tmp_path: Path, start: str) -> None:
    """fsx: writes, cuts, mappings and copies of one file, with freezes and daemons between them."""
    base = tmp_path / "base"
    base.mkdir()
    if start == "of the base":
        (base / "file").write_bytes(bytes(range(250)) * 8000)
    before = tree_hash(base)
    ws = opened()
    branch = ws.create("one", base=ws.add_base(base))
    file = loads.OneFile(branch.path / "file", seed=len(start))
    for number in range(FILE_STEPS):
        file.step()
        if number % 100 == 99:
            file.check()
            fork = ws.create(f"at{number}", snapshot=branch.freeze().id)
            assert (fork.path / "file").read_bytes() == file.model
            fork.drop()
        if number % (FILE_STEPS // 3) == 50:
            file.close()
            ws.stop()
            ws = opened()
            branch = ws.branch("one")
            file = loads.OneFile(branch.path / "file", seed=number)
    file.close()
    assert tree_hash(base) == before


def test_many_hands_leave_a_sound_tree(opened: Open, base: Path) -> None:
    """fsstress: names made, moved and removed by processes at once while the branch is frozen."""
    ws = opened()
    branch = ws.create("one", base=ws.add_base(base))
    command = [sys.executable, loads.__file__, str(branch.path)]
    hands = [subprocess.Popen([*command, str(n), str(HAND_STEPS)]) for n in range(HANDS)]
    snapshots = [branch.freeze()]
    while any(hand.poll() is None for hand in hands):
        snapshots.append(branch.freeze())
    assert [hand.returncode for hand in hands] == [0] * HANDS
    assert loads.inspect(branch.path) > 50
    for snapshot in list(dict.fromkeys(snapshots))[-5:]:
        fork = ws.create(snapshot.id, snapshot=snapshot.id)
        loads.inspect(fork.path)
        assert tree_hash(fork.path) == snapshot.tree_hash
    before, last = picture(branch.path), branch.freeze()
    assert last.tree_hash == tree_hash(branch.path)
    ws.stop()
    ws = opened()
    assert picture(branch.path) == before
    loads.inspect(branch.path)
    assert tree_hash(ws.create("again", snapshot=last.id).path) == last.tree_hash
