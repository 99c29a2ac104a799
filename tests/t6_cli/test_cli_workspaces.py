"""The verbs on workspaces, as typed: mount, diff, export, apply, drop, gc, umount."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
SAMPLE = ROOT / "sample_journals/branch_cleanup/branch_cleanup.journal.jsonl"


def branchkit(*arguments: object, store: Path, code: int = 0) -> str:
    command = [sys.executable, "-m", "branchkit", *map(str, arguments)]
    env = {**os.environ, "BRANCHKIT_STORE": str(store)}
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=170)
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


@pytest.fixture
def base(tmp_path: Path) -> Path:
    root = tmp_path / "base"
    root.mkdir()
    (root / "kept").write_text("kept\n")
    (root / "edited").write_text("before\n")
    return root


def test_the_life_of_a_branch(tmp_path: Path, base: Path) -> None:
    """What it changed is listed, printed, committed, applied; then it goes and frees its space."""

    def json_of(*arguments: object) -> Any:
        return json.loads(branchkit(*arguments, "--json", store=tmp_path / "store"))

    try:
        at = Path(json_of("mount", base)["workspace"])
        (at / "edited").write_text("after\n")
        assert json_of("diff", "main")["changes"] == [{"path": "edited", "what": "changed"}]
        patch = branchkit("diff", "main", "--patch", store=tmp_path / "store")
        assert "-before\n+after\n" in patch
        made = json_of("export", "--branch", "main", "--to", tmp_path / "out.git")
        assert (made["ref"], made["files"]) == ("refs/heads/branchkit/main", 2)
        other = tmp_path / "other"
        shutil.copytree(base, other)
        assert json_of("apply", "main", "--to", other)["changes"][0]["path"] == "edited"
        assert (other / "edited").read_text() == "after\n"
        assert (base / "edited").read_text() == "before\n"
        json_of("drop", "main")
        assert json_of("gc", "--keep", SAMPLE)["bytes"] > 0
    finally:
        branchkit("umount", store=tmp_path / "store")


def test_a_turn_becomes_a_commit(tmp_path: Path) -> None:
    """The sample's release branch is in the export of turn 23, and gone in that of turn 24."""
    store, to = tmp_path / "store", tmp_path / "out.git"
    try:
        for turn in (23, 24):
            branchkit("export", SAMPLE, turn, "--to", to, store=store)
        log = ["git", "-C", str(to), "log", "--format=%s", "--all"]
        said = subprocess.run(log, capture_output=True, text=True, check=True).stdout
        assert [line.split()[2] for line in said.splitlines()] == ["24", "23"]
    finally:
        branchkit("umount", store=store)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("diff", "nobody"), 64, "no branch 'nobody'"),
        (("export", SAMPLE, "--to", "x.git"), 64, "FILE and TURN"),
        (("gc", "--keep", "."), 64, "holds no journal"),
        (("apply", "nobody"), 64, "no branch 'nobody'"),
    ],
)
def test_mistakes_are_named(
    tmp_path: Path, arguments: tuple[object, ...], code: int, said: str
) -> None:
    """Each with its exit code, and with nothing done."""
    empty = tmp_path / "empty"
    empty.mkdir()
    chosen = [empty if each == "." else each for each in arguments]
    assert said in branchkit(*chosen, store=tmp_path / "store", code=code)
    branchkit("umount", store=tmp_path / "store")
