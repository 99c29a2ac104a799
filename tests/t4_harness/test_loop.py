"""The loop in record and replay mode: how runs end, and what they leave in the journal."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from branchkit.boundary.model import ModelReply, ModelRequest
from branchkit.boundary.recording import Recording, SnapshotFacts
from branchkit.boundary.replaying import Replaying
from branchkit.boundary.session import Session
from branchkit.boundary.settlement import Observation, Tools
from branchkit.errors import Diverged, ModelError
from branchkit.harness import loop
from branchkit.harness.components import DEFAULTS, build
from branchkit.journal.blobs import Blobs
from branchkit.journal.events import Checkpoint, Component, Event, Message, TaskStarted
from branchkit.journal.file import Writer, read
from branchkit.record.context import Contexts
from branchkit.record.fold import fold


def calls(*names: str) -> Message:
    wanted = [
        {"id": "c", "type": "function", "function": {"name": name, "arguments": "{}"}}
        for name in names
    ]
    return {"role": "assistant", "content": "", "tool_calls": wanted}


DONE: Message = {"role": "assistant", "content": "done"}


class Scripted:
    """A model that gives its replies in turn, and fails when they are used up."""

    spec = "scripted:test"

    def __init__(self, *replies: Message) -> None:
        self._replies = list(replies)
        self.seeds: list[int] = []

    def describe(self) -> dict[str, Any]:
        return {}

    def reply(self, request: ModelRequest) -> ModelReply:
        self.seeds.append(request.seed)
        if not self._replies:
            raise ModelError("the model has gone", hint="ask another")
        message = self._replies.pop(0)
        return ModelReply(message=message, finish_reason="", usage={}, served_model=self.spec)

    def close(self) -> None:
        """Nothing is held."""


class Ran(NamedTuple):
    ending: loop.Ending
    events: list[Event]
    blobs: Blobs
    ran: list[str]


def record(
    folder: Path,
    model: Scripted,
    *,
    max_turns: int = 20,
    max_calls: int | None = None,
    snapshots: list[str] | None = None,
    **parts: str,
) -> Ran:
    """A run of the loop on ``model``; ``snapshots`` are the ids that freezing gives in turn."""
    ran: list[str] = []
    blobs = Blobs(folder / "blobs")
    path = folder / "a.journal.jsonl"
    writer = Writer(path, run_id="run", now=lambda: "2026-01-01T00:00:00Z")
    left = list(snapshots or [])

    def act(name: str, arguments: object, turn: int, key: str) -> Observation:
        ran.append(name)
        return Observation("completed", f"{name}\n" * 20)

    def freeze() -> SnapshotFacts:
        return SnapshotFacts(left.pop(0), "sha256:" + "0" * 64, 1, 1)

    mode = Recording(
        writer, blobs, model=model, tools=Tools(act), clock=lambda turn: "",
        snapshot=freeze if snapshots else None, max_calls=max_calls,
    )  # fmt: skip
    components = DEFAULTS | {name: Component(spec=spec) for name, spec in parts.items()}
    components["model"] = Component(spec=model.spec)
    started = TaskStarted(
        task="try", harness="branchkit", components=components, tools=[],
        budgets={"max_turns": max_turns}, seed=4, started_at="2026-01-01T00:00:00+00:00",
        versions={},
    )  # fmt: skip
    ending = drive(Session(mode, seed=4), started)
    writer.close()
    events, damage = read(path)
    assert not damage
    return Ran(ending, events, blobs, ran)


def drive(session: Session, started: TaskStarted) -> loop.Ending:
    harness = build(started.components)
    session.begin(started)
    context = loop.opening(session, harness, started.task)
    return loop.run(session, harness, context, max_turns=started.budgets["max_turns"])


def replayed(ran: Ran) -> loop.Ending:
    """The ending on the tape, every event consumed."""
    mode = Replaying(ran.events, Contexts(ran.events, ran.blobs.get))
    started = ran.events[0].payload
    assert isinstance(started, TaskStarted)
    ending = drive(Session(mode, seed=started.seed), started)
    assert mode.consumed == len(ran.events)
    return ending


def test_a_run_that_completes(tmp_path: Path) -> None:
    ran = record(tmp_path, Scripted(calls("a", "b"), calls("c"), DONE))
    assert ran.ending == loop.Ending("completed", "", 3)
    assert ran.ran == ["a", "b", "c"]
    assert replayed(ran) == ran.ending


def test_the_last_turn_allowed(tmp_path: Path) -> None:
    ran = record(tmp_path, Scripted(*[calls("a")] * 9), max_turns=2)
    assert (ran.ending.status, ran.ending.turns) == ("max_turns", 2)
    assert replayed(ran) == ran.ending


def test_a_model_that_fails_ends_the_run_with_its_words(tmp_path: Path) -> None:
    """R53: the failure is in the journal, and is had again on the tape."""
    ran = record(tmp_path, Scripted(calls("a")))
    assert (ran.ending.status, ran.ending.reason) == ("failed", "the model has gone")
    assert [event.kind for event in ran.events][-2:] == ["StateTransition", "TaskFinished"] or (
        "ModelFailed" in [event.kind for event in ran.events]
    )
    assert fold(None, ran.events).usage["model_failures"] == 1
    assert replayed(ran) == ran.ending


def test_a_spent_budget_of_calls(tmp_path: Path) -> None:
    model = Scripted(calls("a"), calls("b"), DONE)
    ran = record(tmp_path, model, max_calls=2)
    assert ran.ending.status == "max_calls"
    assert len(model.seeds) == 2


def test_a_held_call_leaves_the_run_waiting(tmp_path: Path) -> None:
    ran = record(tmp_path, Scripted(calls("a", "pay", "b")), policy="hold:pay")
    assert ran.ending.status == "waiting"
    assert "pay (t0001.2) waits for approval" in ran.ending.reason
    assert ran.ran == ["a"]
    record_ = fold(None, ran.events)
    assert record_.pending_approvals == ["t0001.2"]
    assert replayed(ran) == ran.ending


def test_a_denied_call_is_told_and_the_run_goes_on(tmp_path: Path) -> None:
    ran = record(tmp_path, Scripted(calls("pay", "look"), DONE), policy="deny:pay")
    assert (ran.ending.status, ran.ran) == ("completed", ["look"])
    assert replayed(ran) == ran.ending


def test_a_truncated_result_is_what_the_model_is_given(tmp_path: Path) -> None:
    ran = record(tmp_path, Scripted(calls("a"), DONE), truncation="head:2l")
    context = Contexts(ran.events, ran.blobs.get).at_turn(2)
    assert context[-1].message["content"].startswith("a\na\n[")
    assert replayed(ran) == ran.ending


def test_a_fenced_command_is_answered_by_a_user_message(tmp_path: Path) -> None:
    fenced: Message = {"role": "assistant", "content": "```bash\nls\n```"}
    ran = record(tmp_path, Scripted(fenced, DONE), parser="fenced:bash")
    context = [item.message for item in Contexts(ran.events, ran.blobs.get).at_turn(2)]
    assert [message["role"] for message in context] == ["system", "user", "assistant", "user"]
    assert context[-1] == {"role": "user", "content": "bash\n" * 20}
    assert replayed(ran) == ran.ending


def test_a_turn_that_left_the_workspace_clean_costs_no_checkpoint(tmp_path: Path) -> None:
    """R35, R30: a checkpoint where something changed, bound to its place in the journal."""
    model = Scripted(calls("a"), calls("b"), calls("c"), DONE)
    # Asked at the start, before each call (none of these tools says that it stays inside), and
    # after each turn.
    frozen = ["s0", "s0", "s1", "s1", "s1", "s1", "s2", "s2"]
    ran = record(tmp_path, model, snapshots=frozen)
    taken = [(e.turn, e.payload.snapshot) for e in ran.events if isinstance(e.payload, Checkpoint)]
    assert taken == [(0, "s0"), (1, "s1"), (3, "s2")]
    at = fold(None, ran.events).snapshot_at
    assert [snapshot.id for turn in range(5) if (snapshot := at(turn))] == [
        "s0", "s1", "s1", "s2", "s2",
    ]  # fmt: skip
    assert replayed(ran) == ran.ending


def test_seeds_of_requests_are_the_runs_own(tmp_path: Path) -> None:
    """Equal runs ask with equal seeds, turn by turn; neighbours are unrelated."""
    seeds = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        model = Scripted(calls("a"), calls("a"), DONE)
        record(tmp_path / name, model)
        seeds.append(model.seeds)
    assert seeds[0] == seeds[1]
    assert len(set(seeds[0])) == 3


def test_another_loop_than_the_recorded_one_is_found(tmp_path: Path) -> None:
    """R63: code that stops one turn earlier over an old journal."""
    ran = record(tmp_path, Scripted(calls("a"), calls("b"), DONE))
    mode = Replaying(ran.events, Contexts(ran.events, ran.blobs.get))
    started = ran.events[0].payload
    assert isinstance(started, TaskStarted)
    session = Session(mode, seed=4)
    session.begin(started)
    harness = build(started.components)
    with pytest.raises(Diverged, match=r"TaskFinished"):
        loop.run(session, harness, loop.opening(session, harness, "try"), max_turns=2)
