"""Forks of the tiny run, live: real workers, real sandboxes, real FUSE (R59, R60, R61, R67)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tiny import CHECK, Tiny

import branchkit
from branchkit.branch.comparison import Comparison
from branchkit.branch.fork import Options, fork
from branchkit.branch.run import Result
from branchkit.branch.text import comparison_text
from branchkit.divergence.vectors import vector
from branchkit.errors import InputRefused
from branchkit.journal.events import Event, Forked, ToolProposed, ToolResult
from branchkit.journal.file import read, verify
from branchkit.replay.recorded import Recorded
from branchkit.workspace import Workspaces, tree_hash

SIZE = 2


def decision(name: str, **arguments: Any) -> str:
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return json.dumps({"role": "assistant", "content": "", "tool_calls": [call]})


class Tried(NamedTuple):
    """A fork of five arms, and what the parent was before it."""

    found: Comparison
    parent_before: bytes
    files: Path

    def views(self, arm: str) -> list[Any]:
        return [view for view in self.found.branches if view.row.arm.startswith(arm)]

    def events(self, arm: str) -> list[Event]:
        return events(self.views(arm)[0].result)


def events(result: Result) -> list[Event]:
    found, damage = read(Path(result.journal))
    assert not damage
    return found


def notes(found: list[Event]) -> list[str]:
    """What a branch noted, in order."""
    return [
        str(event.payload.arguments["text"])
        for event in found
        if isinstance(event.payload, ToolProposed)
        and event.payload.name == "note"
        and event.payload.arguments
    ]


@pytest.fixture(scope="module")
def forked(tiny: Tiny, store: Path, tmp_path_factory: pytest.TempPathFactory) -> Tried:
    """One fork for many tests: a swap, two what-ifs, a killed tool server, and the control arm."""
    files = tmp_path_factory.mktemp("whatif")
    (files / "shown.txt").write_text("SECRET keep\n")
    (files / "dictated.json").write_text(decision("note", text="dictated"))
    (files / "killer.json").write_text(decision("kill_server"))
    swaps = [
        "truncation=none",
        f"observation=t0001.1:@{files / 'shown.txt'}",
        f"decision=@{files / 'dictated.json'}",
        f"decision=@{files / 'killer.json'}",
    ]
    before = tiny.journal.read_bytes()
    with branchkit.open(tiny.journal) as run:
        found = run.fork(1, swap=swaps, n=SIZE, check=CHECK)
    return Tried(found, before, files)


def test_every_branch_ends_and_the_parent_is_as_it_was(forked: Tried, tiny: Tiny) -> None:
    """R59, R60: bytes of the parent and files of the base unchanged, no call for the prefix."""
    assert [view.result.error for view in forked.found.branches] == [None] * 5 * SIZE
    assert {view.result.status for view in forked.found.branches} == {"completed"}
    assert forked.found.parent_unchanged
    assert not forked.found.partial
    assert tiny.journal.read_bytes() == forked.parent_before
    assert tree_hash(tiny.base) == tiny.base_hash
    assert forked.found.prefix_model_calls == 0
    for view in forked.found.branches:
        assert min(e.turn for e in events(view.result)[1:] if e.kind == "ModelReplied") == 2


def test_a_branch_begins_with_what_is_different(forked: Tried, tiny: Tiny) -> None:
    parent = tiny.open()
    for view in forked.found.branches:
        first = events(view.result)[0].payload
        assert isinstance(first, Forked)
        assert (first.turn, first.arm, first.seed) == (1, view.result.arm, view.result.seed)
        assert first.parent_run_id == parent.record.run_id
        assert first.parent_event_hash == parent.events[first.parent_seq].event_hash
        assert (first.swap is None) == (view.result.arm == "control")
        assert verify(Path(view.result.journal)).ok
    assert len({view.result.seed for view in forked.found.branches}) == SIZE, "common to the arms"


def test_the_control_of_a_run_without_slip_does_as_the_record(forked: Tried) -> None:
    """The law of equal hashes: every t_div null, every vector the record's own."""
    for view in forked.views("control"):
        assert (view.t_div, view.cause) == (None, None)
        assert view.row.vector == forked.found.record_vector[1:]
        assert view.result.ok is False
    assert forked.found.facts.record_ok is False, "the record's own end is checked too"


def test_one_swap_makes_the_difference_it_was_about(forked: Tried) -> None:
    """R62: from the turn at which the shown line matters, and because of the swap."""
    for view in forked.views("truncation"):
        assert (view.t_div, view.cause, view.result.ok) == (3, "swap", True)
        assert notes(events(view.result)) == ["first", "kept", "second"]


def test_the_what_if_of_another_observation(forked: Tried) -> None:
    for view in forked.views("observation"):
        assert (view.t_div, view.cause, view.result.ok) == (3, "swap", True)
        assert notes(events(view.result)) == ["first", "kept", "second"]


def test_the_what_if_of_another_decision(forked: Tried) -> None:
    """Reply t+1 is dictated once; then the run's own model goes on from it."""
    (view, *_) = forked.views("decision=@dictated")
    assert (view.t_div, view.cause, view.result.ok) == (2, "swap", False)
    assert notes(events(view.result)) == ["dictated", "second"]
    replies = [e.payload for e in events(view.result) if e.kind == "ModelReplied"]
    served = [getattr(reply, "served_model", "") for reply in replies]
    assert "dictated" in served[0]
    assert "stand-in" in served[1]


def test_a_killed_tool_server_costs_its_own_call(forked: Tried) -> None:
    """The call is aborted, which the model is told; the branch goes on in a new server."""
    for view in forked.views("decision=@killer"):
        results = [e.payload for e in events(view.result) if isinstance(e.payload, ToolResult)]
        assert [result.status for result in results] == ["aborted", "completed", "completed"]
        assert view.result.error is None
        assert notes(events(view.result)) == ["first", "second"]


def test_equal_ends_are_counted_together(forked: Tried) -> None:
    """R67: the hidden line's two arms end alike, and so do the others by what they did."""
    groups = {group.count: group.ok for group in forked.found.outcomes()}
    assert sum(group.count for group in forked.found.outcomes()) == 5 * SIZE
    assert groups[2 * SIZE] is True
    assert all(group.example for group in forked.found.outcomes())
    for arm in ("control", "truncation", "observation", "decision=@dictated", "decision=@killer"):
        rows = [view.row.vector for view in forked.views(arm)]
        assert len(set(rows)) == 1, f"equal seeds and no slip: {arm}"


def test_a_comparison_is_read_off_its_directory_again(forked: Tried) -> None:
    assert forked.found.directory is not None
    again = branchkit.compare(forked.found.directory)
    assert again.to_json() == forked.found.to_json()
    assert comparison_text(again) == comparison_text(forked.found)
    assert again.record_vector == forked.found.record_vector
    json.dumps(again.to_json())


def test_a_directory_that_holds_no_fork(tmp_path: Path) -> None:
    with pytest.raises(InputRefused, match="holds no finished fork"):
        branchkit.compare(tmp_path)
    (tmp_path / "fork.json").write_text("{}")
    (tmp_path / "results.jsonl").write_text("")
    with pytest.raises(InputRefused, match="holds no finished fork"):
        branchkit.compare(tmp_path)


def test_a_branch_is_a_run(forked: Tried, tiny: Tiny) -> None:
    """It finds its parent, rewinds into the prefix and into its own live turns, files and all."""
    path = forked.views("truncation")[0].result.journal
    with branchkit.open(path) as run:
        parent = run.recorded.parent
        assert parent is not None
        assert parent.path == tiny.journal
        assert run.turns == 5
        assert run.rewind(1, workspace=False).context == branchkit_context(tiny, 1)
        assert run.rewind(2, workspace=False).recorded["reply"] is not None
        live = run.rewind(4)
        assert "SECRET keep" in str(live.context)
        assert live.hidden == [], "what the record hid, this arm was shown"
        assert [one.call_id for one in run.rewind(1, workspace=False).hidden] == []
        assert live.record.turn == 3
        assert live.branch is not None
        assert (live.branch.path / "notes.txt").read_text() == "first\nkept\n"
        assert vector(run.recorded.events, first_turn=2) == forked.views("truncation")[0].row.vector


def branchkit_context(tiny: Tiny, turn: int) -> list[Any]:
    with branchkit.open(tiny.journal) as run:
        return list(run.rewind(turn, workspace=False).context)


def test_a_branch_can_be_forked_again(forked: Tried, store: Path) -> None:
    """From one of its live turns, with what an earlier fork showed hidden again."""
    path = forked.views("truncation")[0].result.journal
    with branchkit.open(path) as run:
        found = run.fork(2, swap="truncation=head:3l", check=CHECK)
        assert found.parent_unchanged
        ok = {view.result.arm: view.result.ok for view in found.branches}
        assert ok == {"control": True, "truncation=head:3l": False}
        (control, hidden) = found.branches
        assert control.t_div is None
        assert notes(events(hidden.result)) == ["second"]
        # A turn of the prefix belongs to the parent: forking there is forking the parent.
        early = run.fork(0, n=1, max_turns=1)
        assert early.recorded.path == run.recorded.parent.path  # type: ignore[union-attr]
        assert [view.result.error for view in early.branches] == [None]
    with branchkit.open(hidden.result.journal) as grandchild:
        assert grandchild.turns == 4
        cut = grandchild.rewind(4, workspace=False)
        assert "line 20" not in str(cut.context)
        assert [(one.call_id, one.rule, one.omitted_lines) for one in cut.hidden] == [
            ("t0001.1", "head:3l", 27)
        ]
        assert cut.hidden[0].full_text is not None
        again = grandchild.fork(3, swap="truncation=none", control=False)
    with branchkit.open(again.results[0].journal) as fourth:
        shown = fourth.rewind(4, workspace=False)
        assert "SECRET keep" in str(shown.context), "from the full text, three generations up"
        assert shown.hidden == []


def test_what_branches_leave(forked: Tried, store: Path) -> None:
    """Their journals and their end; no workspace, no lock, no sandbox."""
    with Workspaces.open(store) as workspaces:
        left = [branch.name for branch in workspaces.branches()]
    assert not [name for name in left if "control" in name or "decision" in name]
    assert forked.found.directory is not None
    names = {path.suffix for path in forked.found.directory.iterdir()}
    assert names == {".json", ".jsonl", ".head"}


def test_a_killed_worker_loses_its_branch_alone(
    tiny: Tiny, forked: Tried, tmp_path: Path, store: Path
) -> None:
    """SIGKILL in the middle of a call: the others, the parent and the results are sound."""
    (tmp_path / "kill.json").write_text(decision("kill_worker"))
    swap = f"decision=@{tmp_path / 'kill.json'}"
    with branchkit.open(tiny.journal) as run:
        found = run.fork(1, swap=swap, n=SIZE, check=CHECK, isolated=False)
    control = [view for view in found.branches if view.result.arm == "control"]
    killed = [view for view in found.branches if view.result.arm != "control"]
    assert [view.result.ok for view in control] == [False] * SIZE
    # Without a sandbox the same tools give the same hashes.
    assert {view.row.vector for view in control} == {
        view.row.vector for view in forked.views("control")
    }
    for view in killed:
        assert view.result.error is not None
        assert "was killed by signal 9" in view.result.error
        assert (view.result.status, view.result.ok, view.t_div) == (None, None, None)
        call = Recorded.open(view.result.journal).record.calls["t0002.1"]
        assert (call.name, call.word) == ("kill_worker", "in doubt")
    assert found.parent_unchanged
    assert tiny.journal.read_bytes() == forked.parent_before
    summary = next(one for one in found.summaries if one.swapped is not None)
    assert (summary.success.n, summary.success.none) == (0, SIZE)
    assert "was killed by signal 9" in comparison_text(found)
    with Workspaces.open(store) as workspaces:
        assert not [b.name for b in workspaces.branches() if "decision" in b.name]
    assert found.directory is not None
    assert branchkit.compare(found.directory).to_json() == found.to_json()


def test_an_interrupt_gives_what_is_finished(tiny: Tiny, store: Path) -> None:
    """Ctrl-C while branches run: partial, said so, and nothing is left running."""

    def ctrl_c(done: int, total: int, what: str) -> None:
        if done == 1:
            raise KeyboardInterrupt

    options = Options(n=3, jobs=1)
    found = fork(tiny.open(), 1, ["truncation=none"], options=options, progress=ctrl_c)
    assert found.partial
    assert len(found.results) == 1
    assert found.parent_unchanged
    assert "(interrupted: partial)" in comparison_text(found)
    assert found.directory is not None
    assert branchkit.compare(found.directory).partial
    with Workspaces.open(store) as workspaces:
        assert not [b.name for b in workspaces.branches() if found.directory.name in b.name]


def test_without_fuse_the_same_hashes_and_outcomes(
    tiny: Tiny, forked: Tried, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a container without /dev/fuse: by copies, said so, and equal in everything."""
    monkeypatch.setenv("BRANCHKIT_NO_FUSE", "1")
    monkeypatch.setenv("BRANCHKIT_STORE", str(tmp_path / "store"))
    with branchkit.open(tiny.journal) as run:
        found = run.fork(1, swap="truncation=none", n=1, check=CHECK)
    assert "BRANCHKIT_NO_FUSE" in found.facts.workspace_note
    for view in found.branches:
        (twin, *_) = forked.views(view.result.arm)
        assert view.row.vector == twin.row.vector
        assert (view.result.ok, view.t_div, view.cause) == (twin.result.ok, twin.t_div, twin.cause)
        assert view.row.workspace == twin.row.workspace
    assert found.record_vector == forked.found.record_vector
    assert found.facts.record_ok == forked.found.facts.record_ok
