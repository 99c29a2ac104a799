"""Strict replay of the sample: every event once, nothing sent, the first difference named."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

import branchkit
from branchkit.errors import Diverged, JournalDamaged, UsageError
from branchkit.harness.truncation import Truncation
from branchkit.journal.chain import seal
from branchkit.journal.events import (
    Checkpoint,
    Event,
    Payload,
    StateTransition,
    TaskStarted,
    ToolProposed,
)
from branchkit.journal.file import read
from branchkit.journal.format import ZERO_HASH
from branchkit.replay.recorded import Recorded
from branchkit.replay.strict import Replayed, replay

SAMPLE = Path(__file__).resolve().parents[2] / "sample_journals" / "branch_cleanup"
JOURNAL = SAMPLE / "branch_cleanup.journal.jsonl"


@pytest.fixture(autouse=True)
def empty_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRANCHKIT_STORE", str(tmp_path / "store"))


def test_every_event_is_consumed_once_and_nothing_is_called(tmp_path: Path) -> None:
    """R55, second and fourth condition: no request to model or tool, every event exactly once."""
    before = JOURNAL.read_bytes()
    found = replay(Recorded.open(JOURNAL))
    assert found == Replayed(True, 219, 219, 0, 0, None)
    assert JOURNAL.read_bytes() == before
    assert not (tmp_path / "store").exists()


def test_the_chain_of_what_is_replayed_verifies(tmp_path: Path) -> None:
    """R55, third condition; with one byte changed the replay refuses to begin."""
    with branchkit.open(JOURNAL) as run:
        assert run.verify().ok
    damaged = tmp_path / JOURNAL.name
    damaged.write_bytes(JOURNAL.read_bytes().replace(b"release/2.1", b"release/2.7", 1))
    with pytest.raises(JournalDamaged, match="hash_mismatch"):
        branchkit.open(damaged)


@pytest.mark.parametrize("turn", [1, 13, 25])
@pytest.mark.parametrize("side", ["before_hash", "after_hash"])
def test_every_logical_state_hash_is_compared(tmp_path: Path, turn: int, side: str) -> None:
    """R55, fifth condition: a state that the journal says otherwise stops at its turn."""
    found: Any = changed(tmp_path, turn, StateTransition, **{side: ZERO_HASH})
    assert not found.ok
    assert found.divergence["step_id"] == f"t{turn:04d}"
    assert found.divergence["expected"]["payload"][side] == ZERO_HASH


# Everything by which something could leave this process. Opening the journal for reading is not.
ALONE = """
import json, os, sys
from pathlib import Path
import branchkit
from branchkit.branch.api import Run

forbidden = ("socket.", "subprocess.", "os.system", "os.exec", "os.fork", "os.posix_spawn",
             "os.spawn", "pty.", "os.mkdir", "os.rename", "os.remove", "shutil.")
met = []
def hook(name, arguments):
    if name.startswith(forbidden):
        met.append(name)
    if name == "open" and isinstance(arguments[2], int) and arguments[2] & (
            os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        if not str(arguments[0]).endswith(".pyc") and "__pycache__" not in str(arguments[0]):
            met.append(f"open {arguments[0]}")
sys.dont_write_bytecode = True
sys.addaudithook(hook)
with branchkit.open(sys.argv[1]) as run:
    found = run.replay()
print(json.dumps([found.to_json(), met]))
"""


def test_no_socket_no_process_no_file(tmp_path: Path) -> None:
    """R50, R54, R55: the interpreter itself reports every attempt, and there is none."""
    done = subprocess.run(
        [sys.executable, "-c", ALONE, str(JOURNAL)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    found, met = json.loads(done.stdout)
    assert (found["ok"], found["model_calls"], found["tool_calls"]) == (True, 0, 0)
    assert met == []


def test_the_audit_hook_would_have_told(tmp_path: Path) -> None:
    """The proof above is one only if the hook sees what it is there for."""
    probe = "import subprocess, socket\nsocket.socket().close()\nsubprocess.run(['true'])\n"
    code = ALONE.replace("with branchkit.open", probe + "with branchkit.open")
    done = subprocess.run(
        [sys.executable, "-c", code, str(JOURNAL)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert {"socket.__new__", "subprocess.Popen"} <= set(json.loads(done.stdout)[1])


def rechained(folder: Path, events: list[Event]) -> Recorded:
    """The sample with other events, chained anew, its pack beside it."""
    target, head = folder / JOURNAL.name, ZERO_HASH
    shutil.copy(SAMPLE / "branch_cleanup.pack", folder)
    lines = []
    for seq, event in enumerate(events):
        sealed = seal(
            event.payload, seq=seq, turn=event.turn, step_id=event.step_id,
            recorded_at=event.recorded_at, run_id=event.run_id, prev_event_hash=head,
        )  # fmt: skip
        head = sealed.event.event_hash
        lines.append(sealed.line)
    target.write_bytes(b"".join(lines))
    return Recorded.open(target)


def changed(folder: Path, turn: int, kind: type[Payload], **changes: Any) -> Replayed:
    """What the replay finds where one event of ``turn`` has other fields."""
    events = [
        event._replace(payload=msgspec.structs.replace(event.payload, **changes))
        if event.turn == turn and isinstance(event.payload, kind)
        else event
        for event in read(JOURNAL)[0]
    ]
    return replay(rechained(folder, events))


def test_one_changed_argument_stops_at_its_step(tmp_path: Path) -> None:
    """R55, sixth condition, with the report of R56."""
    found = changed(tmp_path, 23, ToolProposed, arguments={"name": "release/2.2"})
    assert not found.ok
    assert found.consumed < found.events
    report: Any = found.divergence
    assert report["step_id"] == "t0023.1"
    assert report["expected"]["payload"]["arguments"] == {"name": "release/2.2"}
    assert report["actual"]["payload"]["arguments"] == {"name": "release/2.1"}
    assert report["record_hash"].startswith("sha256:")


@pytest.mark.parametrize(
    ("changes", "step"),
    [
        ({"task": "Delete everything."}, "t0000"),
        ({"tools": []}, "t0001"),
        ({"budgets": {"max_turns": 12}}, "t0001"),
    ],
)
def test_another_start_stops_where_it_first_matters(
    tmp_path: Path, changes: dict[str, Any], step: str
) -> None:
    found: Any = changed(tmp_path, 0, TaskStarted, **changes)
    assert found.divergence["step_id"] == step


@pytest.mark.parametrize(
    ("component", "spec", "step"),
    [
        ("truncation", "head:11l", "t0001.1"),
        ("truncation", "none", "t0001.1"),
        ("policy", "deny:delete_branch", "t0001.1"),
        ("sampling", "slip:0.16", "t0001"),
    ],
)
def test_other_components_than_the_recorded_ones_are_found(
    tmp_path: Path, component: str, spec: str, step: str
) -> None:
    """The harness is built from the journal: what it is said to be must be what it was.

    Each delivery names its rule and each decision its policy, so the first one already tells.
    """
    started = Recorded.open(JOURNAL).started
    part = msgspec.structs.replace(started.components[component], spec=spec)
    parts = started.components | {component: part}
    found: Any = changed(tmp_path, 0, TaskStarted, components=parts)
    assert found.divergence["step_id"] == step


def test_a_changed_rule_in_the_code_stops_where_it_cuts_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R57, R63: new code over an old journal; the report names the turn, and nothing ran."""
    real = Truncation.cut

    def off_by_one(self: Truncation, text: str) -> Any:
        cut = real(self, text)
        return cut if cut.text == text else cut._replace(omitted_lines=cut.omitted_lines + 1)

    monkeypatch.setattr(Truncation, "cut", off_by_one)
    with branchkit.open(JOURNAL) as run:
        loose = run.replay(strict=False)
        with pytest.raises(Diverged) as caught:
            run.replay()
    assert not loose.ok
    assert caught.value.report["step_id"] == "t0022.1"
    assert caught.value.exit_code == 2


def test_one_deleted_event_is_found_before_the_end(tmp_path: Path) -> None:
    """R55, seventh condition; every tenth event, in a chain that does not show it.

    A Checkpoint says nothing of what the harness did, so its loss changes no behaviour: it shows in
    the chain alone (``verify --anchor``).
    """
    events = read(JOURNAL)[0]
    for gone in events[1:-1:10]:
        if isinstance(gone.payload, Checkpoint):
            continue
        left = [_moved(event, gone.seq) for event in events if event is not gone]
        folder = tmp_path / str(gone.seq)
        folder.mkdir()
        found: Any = replay(rechained(folder, left))
        assert not found.ok, gone
        assert found.consumed < len(left)


def _moved(event: Event, gone: int) -> Event:
    payload = event.payload
    if isinstance(payload, StateTransition) and payload.cause_seq > gone:
        payload = msgspec.structs.replace(payload, cause_seq=payload.cause_seq - 1)
    return event._replace(payload=payload)


def test_a_run_that_was_cut_off_is_equal_up_to_there(tmp_path: Path) -> None:
    for count in (10, 100, 218):
        folder = tmp_path / str(count)
        folder.mkdir()
        found = replay(rechained(folder, read(JOURNAL)[0][:count]))
        assert (found.ok, found.consumed) == (True, count)
        assert "cut off" in found.note


def test_a_loop_of_ones_own_is_not_replayed_by_ours(tmp_path: Path) -> None:
    path = tmp_path / "own.journal.jsonl"
    with branchkit.session(path, model=lambda request: {"role": "assistant", "content": "hi"}) as s:
        s.model([s.input({"role": "user", "content": "hello"})])
    with branchkit.open(path) as run, pytest.raises(UsageError, match="another harness") as caught:
        run.replay()
    assert "harness" in caught.value.hint
