"""``rewind``: every turn of the sample against an independent reading of its journal (R58)."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from naive import Naive

import branchkit
from branchkit.branch.api import Run
from branchkit.errors import BlobMissing, TurnOutside
from branchkit.journal.events import Checkpoint, ModelReplied
from branchkit.workspace import Workspaces

SAMPLE = Path(__file__).resolve().parents[2] / "sample_journals" / "branch_cleanup"
NAME = "branch_cleanup.journal.jsonl"
TURNS = 26


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A store of this module's own; its daemon is stopped at the end."""
    path = tmp_path_factory.mktemp("rewind") / "store"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BRANCHKIT_STORE", str(path))
        yield path
        Workspaces.open(path).stop()


@pytest.fixture(scope="module")
def run(store: Path) -> Iterator[Run]:
    with branchkit.open(SAMPLE / NAME) as opened:
        yield opened


@pytest.fixture(scope="module")
def naive() -> Iterator[Naive]:
    reading = Naive(SAMPLE / NAME)
    yield reading
    reading.close()


@pytest.mark.parametrize("turn", range(1, TURNS + 2))
def test_the_context_of_every_turn(run: Run, naive: Naive, turn: int) -> None:
    """R9: what the model really got, and beside it what it then really did."""
    found = run.rewind(turn, workspace=False)
    expected = naive.context(turn) if turn <= TURNS else naive.end_context()
    assert found.context == expected
    assert {name: found.record.usage.get(name, 0) for name in ("model_calls", "tool_calls")} == (
        naive.counts_before(turn)
    )
    assert found.record.turn == turn - 1
    assert [one.call_id for one in found.hidden] == naive.hidden_before(turn)
    if turn > TURNS:
        assert found.recorded == {"reply": None, "authorizations": [], "results": []}
        return
    assert found.context_hash == naive.payloads("ContextBuilt", turn)[0]["context_hash"]
    assert [found.recorded["reply"]] == naive.payloads("ModelReplied", turn)
    assert found.recorded["authorizations"] == naive.payloads("ToolAuthorized", turn)
    assert found.recorded["results"] == naive.payloads("ToolResult", turn)


def test_what_the_model_did_not_see_is_known(run: Run, naive: Naive) -> None:
    """R9: the dropped text can be shown for any turn."""
    (hidden,) = run.rewind(23, workspace=False).hidden
    assert (hidden.call_id, hidden.rule) == ("t0022.1", "head:12l")
    assert hidden.full_text == naive.full_text("t0022.1")
    assert "protected by the release policy" in hidden.full_text
    assert not any(
        "protected by" in str(message["content"])
        for message in run.rewind(23, workspace=False).context
    )


@pytest.mark.parametrize("turn", [-1, 0, TURNS + 2, 99])
def test_turns_that_the_run_does_not_have(run: Run, turn: int) -> None:
    with pytest.raises(TurnOutside, match=f"turn {turn} is outside 1..{TURNS + 1} of {NAME}"):
        run.rewind(turn)


def branches(folder: Path) -> set[str]:
    command = ["git", "-c", f"safe.directory={folder}", "-C", str(folder), "branch"]
    done = subprocess.run(
        [*command, "--format=%(refname:short)"], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


# turn, branches that are there, branches that are gone, files
STATES = [
    (1, {"feature/login", "release/2.1", "main"}, set(), {"CLEANUP.md", "app.py"}),
    (6, {"feature/search", "release/2.1"}, {"feature/login"}, {"CLEANUP.md", "app.py"}),
    (23, {"release/2.1", "spike/old-parser"}, {"fix/typo-in-help"}, {"cleanup-notes.md"}),
    (24, {"release/2.2", "spike/old-parser"}, {"release/2.1"}, {"cleanup-notes.md"}),
    (27, {"release/2.2", "main"}, {"release/2.1", "spike/old-parser"}, {"cleanup-report.md"}),
]


@pytest.mark.parametrize(("turn", "there", "gone", "files"), STATES)
def test_the_workspace_is_as_the_tools_left_it(
    run: Run, turn: int, there: set[str], gone: set[str], files: set[str]
) -> None:
    """R34: at turn 23 release/2.1 still exists, at turn 24 it does not."""
    before = (SAMPLE / NAME).read_bytes()
    found = run.rewind(turn)
    assert found.branch is not None
    left = branches(found.branch.path)
    assert there <= left
    assert not gone & left
    assert files <= {path.name for path in found.branch.path.iterdir()}
    assert found.branch.tree_hash() == tree_hash(run, turn)
    assert f"turn {turn - 1}" in found.workspace_note
    assert (SAMPLE / NAME).read_bytes() == before


def tree_hash(run: Run, turn: int) -> str:
    """What the newest checkpoint before reply ``turn`` says of the files."""
    hashes = [
        event.payload.tree_hash
        for event in run.recorded.events
        if isinstance(event.payload, Checkpoint) and event.turn < turn
    ]
    return hashes[-1]


def test_looking_twice_shows_the_same_and_changes_nothing(run: Run) -> None:
    """A rewind is idempotent, also where somebody wrote into its workspace."""
    first = run.rewind(23)
    assert first.branch is not None
    (first.branch.path / "app.py").write_text("vandalised\n")
    shutil.rmtree(first.branch.path / ".git")
    second = run.rewind(23)
    assert second.branch is not None
    assert second.branch.tree_hash() == tree_hash(run, 23)
    assert second.to_json() == first.to_json()
    assert second.record == first.record


def test_no_store_is_touched_where_no_workspace_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRANCHKIT_STORE", str(tmp_path / "store"))
    with branchkit.open(SAMPLE / NAME) as run:
        found = run.rewind(23, workspace=False)
    assert found.branch is None
    assert found.to_json()["workspace"] is None
    assert list(tmp_path.iterdir()) == []


def test_a_text_that_is_nowhere_is_named_with_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the pack the hidden text is unknown, and says so; what was shown is still there."""
    monkeypatch.setenv("BRANCHKIT_STORE", str(tmp_path / "store"))
    alone = tmp_path / NAME
    shutil.copy(SAMPLE / NAME, alone)
    with branchkit.open(alone) as run:
        (hidden,) = run.rewind(23, workspace=False).hidden
        assert hidden.full_text is None
        with pytest.raises(BlobMissing, match=r"turn 22: the full text of call t0022\.1"):
            run.recorded.contexts.full_text("t0022.1")


def test_the_runs_own_words_for_itself(run: Run) -> None:
    assert (
        run.turns
        == TURNS
        == sum(isinstance(event.payload, ModelReplied) for event in run.recorded.events)
    )
    assert repr(run) == f"<Run {NAME}: {TURNS} turns, completed>"
