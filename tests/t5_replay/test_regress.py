"""Journals as regression tests: an archive through today's code, each stopped at its difference."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from branchkit.durable.own_loop import session
from branchkit.errors import UsageError
from branchkit.journal.chain import seal
from branchkit.journal.events import ToolProposed
from branchkit.journal.file import read
from branchkit.journal.format import ZERO_HASH
from branchkit.replay.regress import regress

ROOT = Path(__file__).resolve().parent.parent.parent
SAMPLE = ROOT / "sample_journals/branch_cleanup/branch_cleanup.journal.jsonl"
LOOP = """
def agent(s):
    messages = [s.input({"role": "user", "content": "%s"})]
    while (reply := s.model(messages)).calls:
        messages += [reply.message, *(s.tool(call) for call in reply.calls)]
"""


def copy_sample(folder: Path, name: str) -> Path:
    shutil.copy(SAMPLE.with_name("branch_cleanup.pack"), folder / f"{name}.pack")
    return Path(shutil.copy(SAMPLE, folder / f"{name}.journal.jsonl"))


def with_other_argument(journal: Path) -> None:
    """One argument of turn 14 changed, the chain sealed anew: as if a parser had changed."""
    events, _ = read(journal)
    prev, lines = ZERO_HASH, []
    for event in events:
        payload = event.payload
        if event.turn == 14 and isinstance(payload, ToolProposed):
            payload = ToolProposed(
                call_id=payload.call_id, name=payload.name, arguments={"name": "main"}
            )
        sealed = seal(
            payload, seq=event.seq, turn=event.turn, step_id=event.step_id,
            recorded_at=event.recorded_at, run_id=event.run_id, prev_event_hash=prev,
        )  # fmt: skip
        prev = sealed.event.event_hash
        lines.append(sealed.line)
    journal.write_bytes(b"".join(lines))


def test_an_archive_stops_at_the_turn_that_is_read_differently(tmp_path: Path) -> None:
    """R63, H12: turn 14, with both readings; the others are equal."""
    for name in ("a", "b", "c"):
        copy_sample(tmp_path, name)
    with_other_argument(tmp_path / "b.journal.jsonl")
    found = regress([tmp_path], jobs=2)
    assert [outcome.ok for outcome in found.outcomes] == [True, False, True]
    report = found.outcomes[1].divergence
    assert report is not None
    assert report["step_id"] == "t0014.1"
    told = found.outcomes[1].told()
    assert '"name": "main"' in told
    assert '"name": "feature/audit"' in told


def test_what_cannot_be_replayed_is_no_success(tmp_path: Path) -> None:
    (tmp_path / "broken.journal.jsonl").write_text("nothing\n")
    [outcome] = regress([tmp_path]).outcomes
    assert not outcome.ok
    assert "line 1" in str(outcome.error)


def test_no_journal_and_no_such_loop_are_usage_errors(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no journal"):
        regress([tmp_path])
    copy_sample(tmp_path, "a")
    with pytest.raises(UsageError, match="names no function"):
        regress([tmp_path], harness="nowhere:agent")


def pytest_on(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


def test_pytest_collects_journals_of_a_loop_of_your_own(tmp_path: Path) -> None:
    """The fourth question: never again, in CI, without a model."""
    (tmp_path / "mine.py").write_text(LOOP % "Say hello")
    names: dict[str, object] = {}
    exec(LOOP % "Say hello", names)
    journal = tmp_path / "hello.journal.jsonl"
    with session(journal, model=lambda _: {"role": "assistant", "content": "hello"}) as s:
        names["agent"](s)  # type: ignore[operator]
    asked = ("--branchkit", "--branchkit-harness", "mine:agent")
    passed = pytest_on(tmp_path, *asked)
    assert passed.returncode == 0, passed.stdout
    assert "1 passed" in passed.stdout
    assert pytest_on(tmp_path).returncode == 5, "without the flag nothing is collected"
    (tmp_path / "mine.py").write_text(LOOP % "Say goodbye")
    failed = pytest_on(tmp_path, *asked)
    assert failed.returncode == 1
    assert "Say goodbye" in failed.stdout
    assert "Say hello" in failed.stdout
    assert "Traceback" not in failed.stdout


def test_the_command_line_says_how_many_are_equal(tmp_path: Path) -> None:
    copy_sample(tmp_path, "a")
    command = [sys.executable, "-m", "branchkit.cli", "regress", str(tmp_path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ok"] is True
    with_other_argument(tmp_path / "a.journal.jsonl")
    assert subprocess.run(command, capture_output=True, timeout=120).returncode == 2
