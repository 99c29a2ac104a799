"""A live run put together and taken down: what is recorded of it, and what stays behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from branchkit.errors import BranchkitError, JournalLocked, UsageError
from branchkit.harness.components import DEFAULTS
from branchkit.harness.live import Setting, go_live
from branchkit.harness.record import record_run
from branchkit.journal.blobs import Blobs
from branchkit.journal.events import Checkpoint, Component, TaskStarted, ToolResult, logical_hash
from branchkit.journal.file import Writer, read
from branchkit.workspace import Workspaces, tree_hash

RULES = """
[[rule]]
why = "write"
unless = 'bash \\{'
call = "bash"
arguments = { command = "date > when.txt; date -u +%s; git log -1 --format=%cI 2>&1; echo $HOME" }

[[rule]]
why = "done"
say = "done"
"""
PARTS = {"model": Component(spec="rulebook:t", content=RULES), "tools": Component(spec="bash")}


@pytest.fixture(scope="module")
def workspaces(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspaces]:
    opened = Workspaces.open(tmp_path_factory.mktemp("live") / "store")
    yield opened
    opened.stop()


@pytest.fixture
def base(tmp_path: Path) -> Path:
    folder = tmp_path / "base"
    folder.mkdir()
    (folder / "README").write_text("hello\n")
    return folder


def test_a_recorded_run(workspaces: Workspaces, base: Path, tmp_path: Path) -> None:
    """R4, R30, R35: versions are facts, a checkpoint where files changed, the base untouched."""
    before, path = tree_hash(base), tmp_path / "a.journal.jsonl"
    ending = record_run(
        path, "write", base=base, workspaces=workspaces, blobs=Blobs(tmp_path / "blobs"),
        components=PARTS, seed=5, max_turns=5,
    )  # fmt: skip
    assert ending.status == "completed"
    events, damage = read(path)
    assert not damage
    started = events[0].payload
    assert isinstance(started, TaskStarted)
    assert started.versions["model.stand_in"] == "rulebook:t"
    assert {"branchkit", "python", "system", "timezone"} <= started.versions.keys()
    assert not any("/" in value for name, value in started.versions.items() if name != "timezone")
    assert started.base_hash == before == tree_hash(base)
    assert [tool["effect"] for tool in started.tools] == ["workspace"]
    assert [e.turn for e in events if isinstance(e.payload, Checkpoint)] == [0, 1]
    assert not (base / "when.txt").exists()
    (result,) = [e.payload for e in events if isinstance(e.payload, ToolResult)]
    assert result.text is not None
    assert str(Path.home()) not in result.text.splitlines()
    assert [branch.name for branch in workspaces.branches() if branch.name.startswith("run-")] == []


def test_two_recordings_have_equal_logical_hashes(workspaces: Workspaces, tmp_path: Path) -> None:
    """R7: where the tools are deterministic, other directories and times do not show."""
    rules = RULES.replace("date > when.txt; date -u +%s; ", "echo x > x; pwd; ")
    hashes = []
    for name in ("one", "another-and-longer"):
        base = tmp_path / name / "base"
        base.mkdir(parents=True)
        (base / "README").write_text("hello\n")
        path = tmp_path / name / "a.journal.jsonl"
        record_run(
            path, "write", base=base, workspaces=workspaces, blobs=Blobs(tmp_path / name / "blobs"),
            components=PARTS | {"model": Component(spec="rulebook:t", content=rules)}, seed=5,
            started_at="2026-01-01T00:00:00+00:00", max_turns=5,
        )  # fmt: skip
        hashes.append([logical_hash(event) for event in read(path)[0]])
    assert hashes[0] == hashes[1]


def setting(workspaces: Workspaces, base: Path, path: Path, **parts: Component) -> Setting:
    name = f"live-{path.parent.name}"
    branch = workspaces.create(name, base=workspaces.add_base(base))
    components = DEFAULTS | PARTS | parts
    blobs = Blobs(path.parent / "blobs")
    return Setting(path, "run", branch, blobs, components, 1, "2026-01-01T00:00:00+00:00")


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"model": Component(spec="nobody:x")}, "names no model"),
        ({"model": Component(spec="rulebook:x", content="[[rule]")}, "rulebook:x"),
        ({"tools": Component(spec="brash")}, "no tool 'brash'"),
        ({"tools": Component(spec="@t.py", content="1 +")}, "cannot be loaded"),
    ],
)
def test_what_cannot_start_leaves_nothing(
    workspaces: Workspaces, base: Path, tmp_path: Path, parts: dict[str, Component], says: str
) -> None:
    """No journal, no lock, no process (the suite's own net would find one)."""
    path = tmp_path / "a.journal.jsonl"
    given = setting(workspaces, base, path, **parts)
    with pytest.raises(UsageError, match=says), go_live(given):
        pytest.fail("it started")
    given.branch.drop()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["base"]


def test_a_journal_that_another_writes(workspaces: Workspaces, base: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.journal.jsonl"
    other = Writer(path, run_id="other", now=lambda: "2026-01-01T00:00:00Z")
    given = setting(workspaces, base, path)
    with pytest.raises(JournalLocked), go_live(given):
        pytest.fail("it started")
    other.close()
    given.branch.drop()


def test_an_exception_takes_everything_down(
    workspaces: Workspaces, base: Path, tmp_path: Path
) -> None:
    path = tmp_path / "a.journal.jsonl"
    given = setting(workspaces, base, path)
    opened = []

    def breaks() -> None:
        with go_live(given) as live:
            opened.append(live)
            assert live.check("test -f README").exit_code == 0
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        breaks()
    with pytest.raises(BranchkitError):
        opened[0].check("true")
    Writer(path, run_id="next", now=lambda: "2026-01-01T00:00:00Z").close()
    given.branch.drop()


def test_a_run_without_a_model(workspaces: Workspaces, base: Path, tmp_path: Path) -> None:
    given = setting(workspaces, base, tmp_path / "a.journal.jsonl")
    given = given._replace(components={k: v for k, v in given.components.items() if k != "model"})
    with pytest.raises(UsageError, match="names no model"), go_live(given):
        pytest.fail("it started")
    given.branch.drop()
