"""Two recordings of the same thing, whose tool says something else every time (R7, R62)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import branchkit
from branchkit.cli import main
from branchkit.errors import InputRefused
from branchkit.harness.components import component
from branchkit.harness.record import record_run
from branchkit.journal.blobs import Blobs
from branchkit.journal.events import Component
from branchkit.notebook.session import Session
from branchkit.workspace import Workspaces

TOOLS = '''
from pathlib import Path
from branchkit.harness.tools import tool

@tool(effect="pure")
def look() -> str:
    """Look around."""
    return "id " + Path("/proc/sys/kernel/random/uuid").read_text().strip() + "\\nfiles 3"
'''
RULES = """
[[rule]]
why = "look twice"
unless = '(?s)look.*look'
call = "look"
arguments = {}

[[rule]]
why = "nothing is left"
say = "done"
"""


@pytest.fixture(scope="module")
def twice(store: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same run recorded twice."""
    folder = tmp_path_factory.mktemp("twice")
    (folder / "base").mkdir()
    (folder / "base" / "README").write_text("x\n")
    (folder / "tools.py").write_text(TOOLS)
    parts = {
        "model": Component(spec="rulebook:twice", content=RULES),
        "sampling": Component(spec="slip:0"),
        "tools": component("tools", f"@{folder / 'tools.py'}"),
    }
    paths = folder / "a.journal.jsonl", folder / "b.journal.jsonl"
    with Workspaces.open(store) as workspaces:
        for path in paths:
            record_run(
                path, "look", base=folder / "base", workspaces=workspaces,
                blobs=Blobs(store / "blobs"), components=parts, seed=3,
                started_at="2026-01-01T00:00:00+00:00", max_turns=9,
            )  # fmt: skip
    return paths


def test_what_varies_is_learned_and_then_left_out(twice: tuple[Path, Path], tmp_path: Path) -> None:
    """Branches that only read another id are one behaviour, and the list is printed with them."""
    masks = tmp_path / "masks.json"
    found = branchkit.calibrate(*twice, out=masks)
    assert (found.until, found.workspace, found.learned.left) == (None, None, ())
    assert found.calls == len(found.learned.differing) >= 1
    assert [mask.tool for mask in found.learned.masks] == ["look"]
    assert json.loads(masks.read_text()) == found.to_json()
    assert "of them with another result" in repr(found)
    with branchkit.open(twice[0]) as run:
        forked = run.fork(0, n=3)
    assert forked.directory is not None
    plain, without = (
        branchkit.compare(forked.directory),
        branchkit.compare(forked.directory, volatile=masks),
    )
    assert [one.distinct for one in plain.summaries] == [3]
    assert [one.distinct for one in without.summaries] == [1]
    assert without.branches[0].row.vector == without.record_vector
    assert any(text.startswith("look: id") for text in without.facts.volatile)


def test_calibrate_on_the_command_line(
    twice: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "masks.json"
    assert main(["calibrate", *map(str, twice), "-o", str(out), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said == json.loads(out.read_text())
    assert said["left"] == []


def test_a_file_that_holds_no_masks_is_refused(tmp_path: Path) -> None:
    (tmp_path / "no.json").write_text("[]")
    with pytest.raises(InputRefused, match="holds no masks"):
        branchkit.compare(tmp_path, volatile=tmp_path / "no.json")


def test_the_last_comparison_of_a_session_is_read_again_with_masks(
    twice: tuple[Path, Path], tmp_path: Path
) -> None:
    masks = tmp_path / "masks.json"
    branchkit.calibrate(*twice, out=masks)
    session = Session()
    session.journal(twice[0])
    session.fork(0, n=2)
    assert [one.distinct for one in session.compare().summaries] == [2]
    assert [one.distinct for one in session.compare(volatile=masks).summaries] == [1]
    assert session.comparison.masks
    session.run.close()
