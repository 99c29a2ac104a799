"""``resume`` of branchkit's own loop: files from the checkpoint, calls undone with them redone."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from branchkit import disk
from branchkit.branch.point import fork_point
from branchkit.durable.answers import approve, settle
from branchkit.durable.resume import Resumption, resume
from branchkit.durable.states import calls
from branchkit.errors import ContextDrift, JournalLocked, UsageError
from branchkit.harness import loop
from branchkit.harness.record import record_run
from branchkit.journal.blobs import Blobs
from branchkit.journal.events import Checkpoint, Component, Event
from branchkit.journal.file import Writer, read
from branchkit.record.fold import fold
from branchkit.replay.recorded import Recorded
from branchkit.replay.strict import replay
from branchkit.testing.crash import arm, in_child
from branchkit.testing.model_server import Answer, ModelServer, say
from branchkit.testing.model_server import calls as answer_calls
from branchkit.workspace import Workspaces

# `note` changes files, `pay` reaches elsewhere; both may kill the process they run in's parent.
TOOLS = '''
import os, signal
from pathlib import Path
from branchkit.harness.tools import Key, ProbeAnswer, tool

def count(name):
    with (Path("OUTSIDE") / name).open("a") as stream:
        stream.write("x")

@tool(effect="workspace")
def note(text: str) -> str:
    """Write a line."""
    count("notes")
    with open("notes.txt", "a") as stream:
        stream.write(text + "\\n")
    return open("notes.txt").read()

@tool(effect="external", key=True)
def pay(amount: int, key: Key) -> str:
    """Pay once for each key."""
    receipt = Path("OUTSIDE") / f"receipt-{key}"
    if not receipt.exists():
        receipt.write_text(str(amount))
        count("payments")
    return f"paid {amount}"

@tool(effect="external")
def mail(to: str) -> str:
    """Send a mail."""
    count("mails")
    return f"sent to {to}"
'''
RULES = r"""
[[rule]]
why = "a first note"
unless = 'note \{'
call = "note"
arguments = { text = "one" }

[[rule]]
why = "pay"
unless = 'pay \{'
call = "pay"
arguments = { amount = 5 }

[[rule]]
why = "a second note"
unless = 'note .*"two"'
call = "note"
arguments = { text = "two" }

[[rule]]
why = "done"
say = "done"
"""


class Place:
    """Where a run is recorded, with the world outside it beside."""

    def __init__(self, folder: Path, workspaces: Workspaces) -> None:
        self.folder, self.workspaces = folder, workspaces
        self.base = folder / "base"
        self.base.mkdir()
        (self.base / "README").write_text("hello\n")
        # One for all: the tools name it, and their text is part of the record.
        self.outside = workspaces.store.parent / "outside"
        self.outside.mkdir(exist_ok=True)
        for path in self.outside.iterdir():
            path.unlink()
        self.journal = folder / "a.journal.jsonl"

    def parts(self, rules: str = RULES, policy: str = "allow") -> dict[str, Component]:
        tools = TOOLS.replace("OUTSIDE", str(self.outside))
        return {
            "model": Component(spec="rulebook:t", content=rules),
            "tools": Component(spec="@t.py", content=tools),
            "policy": Component(spec=policy),
        }

    def record(self, parts: dict[str, Component], at: str = "", turn: int = 0) -> str:
        """The status of a whole run; killed at ``at`` after ``turn``."""

        def after(done: int) -> None:
            if done == turn and at:
                arm(at)

        with Workspaces.open(self.workspaces.store) as workspaces:
            if at and turn == 0:
                arm(at)
            return record_run(
                self.journal, "go", base=self.base, workspaces=workspaces, seed=3,
                blobs=Blobs(self.workspaces.store / "blobs"), components=parts, max_turns=9,
                isolated=False, started_at="2026-01-01T00:00:00+00:00", after_turn=after,
            ).status  # fmt: skip

    def resume(self) -> Resumption:
        with Workspaces.open(self.workspaces.store) as workspaces:
            return resume(self.journal, workspaces=workspaces, isolated=False)

    def count(self, name: str) -> int:
        path = self.outside / name
        return len(path.read_text()) if path.exists() else 0

    @property
    def events(self) -> list[Event]:
        return read(self.journal)[0]

    def tree(self) -> str | None:
        """The hash of the files at the end."""
        taken = [e.payload for e in self.events if isinstance(e.payload, Checkpoint)]
        return taken[-1].tree_hash if taken else None


@pytest.fixture(scope="module")
def workspaces(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspaces]:
    opened = Workspaces.open(tmp_path_factory.mktemp("resume") / "store")
    yield opened
    opened.stop()


@pytest.fixture
def place(tmp_path: Path, workspaces: Workspaces) -> Place:
    return Place(tmp_path, workspaces)


class End(NamedTuple):
    """How the run ends where nothing interrupts it."""

    logical: str
    tree: str | None


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory, workspaces: Workspaces) -> End:
    place = Place(tmp_path_factory.mktemp("whole"), workspaces)
    assert place.record(place.parts()) == "completed"
    return End(fold(None, place.events).logical, place.tree())


@pytest.mark.parametrize(
    ("at", "turn"),
    [
        ("commit.after_sync", 0),
        ("effect_done", 0),
        ("call.observed", 0),
        ("call.delivered", 0),
        ("context_durable", 1),
        ("checkpoint.snapshot_durable", 1),
        ("checkpoint.written", 1),
        ("effect_done", 1),
        ("call.delivered", 1),
        ("intent_durable", 2),
        ("effect_done", 2),
        ("checkpoint.before_snapshot", 3),
        ("checkpoint.written", 3),
        ("commit.before_write", 3),
    ],
)
def test_a_killed_run_ends_like_one_that_was_not(
    place: Place, at: str, turn: int, uninterrupted: End
) -> None:
    """R30, R40, G02, G05, F03: same files, same record, and what reaches elsewhere done once."""
    assert in_child(place.record, place.parts(), at, turn).killed
    ended = place.resume()
    assert (ended.status, ended.turns) == ("completed", 4)
    assert place.count("payments") == 1
    assert place.events[-1].kind == "TaskFinished"
    found = replay(Recorded.open(place.journal))
    assert (found.ok, found.events) == (True, found.consumed)
    notes = Recorded.open(place.journal).contexts.full_text("t0003.1")
    assert notes == "one\ntwo\n"  # nothing was written twice into the files it goes on with
    assert {row.state for row in calls(place.journal)} == {"completed"}
    assert End(fold(None, place.events).logical, place.tree()) == uninterrupted


# ---- waiting for a person ----


def test_an_approval_in_another_process(place: Place) -> None:
    """R33, R43, G10, F15: checkpoint, question, end of the process; then an answer, and on."""
    held = in_child(place.record, place.parts(policy="hold:pay"))
    assert held.result() == "waiting"
    kinds = [event.kind for event in place.events]
    at = kinds.index("ApprovalRequested")
    assert "Checkpoint" in kinds[kinds.index("Delivered") : at]
    before = place.journal.read_bytes()
    waiting = place.resume()
    assert (waiting.status, [row.waits_for for row in waiting.waits_for]) == (
        "waiting", ["is it allowed?"],
    )  # fmt: skip
    assert place.journal.read_bytes() == before
    with pytest.raises(UsageError, match="does not wait"):
        approve(place.journal, "t0001.1", by="me")
    approve(place.journal, "t0002.1", by="me", reason="it is due")
    assert place.count("payments") == 0
    assert place.resume().status == "completed"
    assert place.count("payments") == 1
    assert replay(Recorded.open(place.journal)).ok
    with pytest.raises(UsageError, match="does not wait"):
        approve(place.journal, "t0002.1", by="me")


def test_an_approval_that_is_refused(place: Place) -> None:
    """R43: the model is told, nothing is sent."""
    assert in_child(place.record, place.parts(policy="hold:pay")).result() == "waiting"
    approve(place.journal, "t0002.1", "deny", by="me", reason="not this month")
    assert place.resume().status == "completed"
    assert place.count("payments") == 0
    recorded = Recorded.open(place.journal)
    assert "me: not this month" in recorded.contexts.full_text("t0002.1")
    (row,) = [row for row in calls(place.journal) if row.name == "pay"]
    assert (row.state, row.could_have_left, row.acted) == ("not sent", False, False)
    assert replay(recorded).ok


@pytest.mark.parametrize("outcome", ["completed", "not sent", "unknown"])
def test_a_call_that_only_a_person_can_settle(place: Place, outcome: Any) -> None:
    """R22, R27, D10: plain contract and no probe: asked, not sent; the three answers."""
    parts = place.parts(RULES.replace("pay", "mail").replace("amount = 5", 'to = "me"'))
    assert in_child(place.record, parts, "effect_done", 1).killed
    waiting = place.resume()
    assert (waiting.status, place.count("mails")) == ("waiting", 1)
    assert [row.state for row in waiting.waits_for] == ["in doubt"]
    assert "Was mail (t0002.1) done?" in waiting.reason
    settle(place.journal, "t0002.1", outcome, result="it arrived", by="me",
           blobs=Blobs(place.workspaces.store / "blobs"))  # fmt: skip
    assert place.count("mails") == 1
    assert place.resume().status == "completed"
    assert place.count("mails") == (2 if outcome == "not sent" else 1)
    recorded = Recorded.open(place.journal)
    said = recorded.contexts.full_text("t0002.1")
    assert said == ("sent to me" if outcome == "not sent" else "it arrived")
    (row,) = [row for row in calls(place.journal) if row.name == "mail"]
    assert row.state == ("in doubt" if outcome == "unknown" else "completed")
    assert replay(recorded).ok


def test_a_run_that_has_ended_is_left_alone(place: Place) -> None:
    """R66: resume is no way to a rerun."""
    assert place.record(place.parts()) == "completed"
    before = place.journal.read_bytes()
    again = place.resume()
    assert (again.status, again.reason) == ("completed", "it had ended: completed")
    assert (place.journal.read_bytes(), place.count("payments")) == (before, 1)


def test_two_at_once(place: Place) -> None:
    """G01, N17: whoever is at work on a run is named; the second sends nothing."""
    assert in_child(place.record, place.parts(), "effect_done", 1).killed
    writer = Writer(place.journal, run_id=place.events[0].run_id, now=lambda: "")
    with pytest.raises(JournalLocked, match=str(os.getpid())):
        place.resume()
    writer.close()
    assert place.resume().status == "completed"


def test_code_that_assembles_another_context(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """R42, G07: drift, not recovery; nothing is sent."""
    assert in_child(place.record, place.parts(), "effect_done", 2).killed
    monkeypatch.setattr(loop, "opening", lambda session, harness, task: [
        {"role": "system", "content": "another template"},
        session.input({"role": "user", "content": task}),
    ])  # fmt: skip
    done = (place.count("payments"), place.count("notes"))
    with pytest.raises(ContextDrift, match="ContextBuilt"):
        place.resume()
    assert (place.count("payments"), place.count("notes")) == done
    monkeypatch.undo()
    assert place.resume().status == "completed"


# ---- several calls in a turn ----


def test_a_turn_of_several_calls_cut_here_and_there(place: Place) -> None:
    """R34, F09: what was done to files is done again from the checkpoint on, the payment is not."""
    turn = [("note", {"text": "one"}), ("pay", {"amount": 5}),
            ("note", {"text": "two"}), ("note", {"text": "three"})]  # fmt: skip
    first_reply = answer_calls(*((name, json.dumps(given)) for name, given in turn))

    def script(request: Any) -> Answer:
        return say("done") if request["messages"][-1]["role"] == "tool" else first_reply

    with ModelServer(script) as server:
        parts = place.parts() | {"model": Component(spec=f"openai:m@{server.url}")}
        assert place.record(parts) == "completed"
        lines = place.journal.read_bytes().splitlines(keepends=True)
        whole = End(fold(None, place.events).logical, place.tree())
        steps = [(event.kind, event.step_id) for event in place.events]
        # R33, F15: the files are kept before a call that no restored file takes back.
        assert steps.index(("Checkpoint", "t0001.2")) < steps.index(("ToolIntent", "t0001.2"))
        first = [event.kind for event in place.events].index("ModelReplied")
        for cut in range(first + 1, len(lines), 4):
            place.journal.write_bytes(b"".join(lines[:cut]))
            _check_branch_of(place.journal)
            ended = place.resume()
            assert ended.status == "completed", cut
            assert End(fold(None, place.events).logical, place.tree()) == whole, cut
            assert place.count("payments") == 1
            assert replay(Recorded.open(place.journal)).ok


def _check_branch_of(journal: Path) -> None:
    """A branch of a run that was cut off begins with a context that a provider takes (R15)."""
    context = fork_point(Recorded.open(journal), 1, None).context
    asked = [call["id"] for message in context for call in message.get("tool_calls") or []]
    answers = [message for message in context if message["role"] == "tool"]
    assert [message["tool_call_id"] for message in answers] == asked
    assert context[0]["role"] == "system"


def test_the_tools_of_a_killed_process_are_waited_for(place: Place) -> None:
    """R28: what was about to be sent may still be sent; nothing is settled before it is gone."""
    assert in_child(place.record, place.parts(), "intent_durable", 1).killed
    held = place.journal.with_name(f"{place.journal.name}.tools")
    fd = disk.lock_when_free(held)  # as a tool of the killed process would hold it
    assert in_child(place.resume, kill_after_s=1.0).killed
    assert place.count("payments") == 0
    assert [event.kind for event in place.events][-1] == "ToolIntent"
    disk.unlock(fd, held)
    assert place.resume().status == "completed"
    assert place.count("payments") == 1
    assert not held.exists()
