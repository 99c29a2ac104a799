"""Real SIGKILLs at every named step of a call, and of the recovery from it (R21, R22, R25, R28).

After each, processes resume until the run has ended; where one says that only a person can tell,
the person looks at the world and says what is there. Counted is what the world itself says.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from loops import events_of, plain_loop, proposes, replay, says
from world import KINDS, Kind, World

import branchkit
from branchkit.boundary.model import ModelRequest
from branchkit.boundary.settlement import Waiting
from branchkit.durable.answers import settle
from branchkit.durable.states import calls
from branchkit.journal.events import Message, Settled
from branchkit.journal.file import read, verify
from branchkit.record.fold import fold
from branchkit.testing.crash import Ended, arm, in_child

# Of the first call, in order; armed when the model proposes it.
STEPS = [
    "model_answered", "call.proposed", "call.authorized", "call.intended", "commit.before_write",
    "commit.after_write", "commit.after_sync", "intent_durable", "effect_done", "call.observed",
    "call.delivered",
]  # fmt: skip
# Of the resume after the effect was done and its result was not written, by kinds that get there.
EVERY: tuple[Kind, ...] = ("pure", "keyed")
SETTLED: tuple[Kind, ...] = ("keyed", "probed", "plain")
RECOVERY: list[tuple[str, Kind]] = [
    *product(("resume.locked", "resume.written", "resume.durable", "resume.live"), EVERY),
    *product(("settle.begin", "settle.found"), SETTLED),
    *product(("commit.before_write", "commit.after_write"), SETTLED),
    ("settle.durable", "keyed"), ("settle.durable", "probed"), ("escalated", "plain"),
    ("intent_durable", "keyed"), ("effect_done", "keyed"),
]  # fmt: skip


class Told(NamedTuple):
    """How a process's part in a run ended: with what the loop returned, or with a question."""

    answer: str | None
    question: str = ""


def checked(request: ModelRequest) -> None:
    """Every call in what the model is sent is answered, and no answer is without its call."""
    calls_open: list[str] = []
    for message in request.messages:
        if message["role"] == "tool":
            calls_open.remove(message["tool_call_id"])
        else:
            assert not calls_open
            calls_open = [call["id"] for call in message.get("tool_calls") or []]
    assert not calls_open


def live(folder: Path, kind: Kind, mode: Any, at: str | None) -> Told:
    """A run of two calls, the second a look around; killed at ``at``, counted from the first."""
    world = World(folder)

    def model(request: ModelRequest) -> Message:
        checked(request)
        world.do(f"asked-{request.turn}")
        if request.turn == 1 and at is not None:
            arm(at)
        replies = [proposes(("act", {})), proposes(("look", {})), says("done")]
        return replies[request.turn - 1]

    tools = [world.tool(kind), world.tool("pure", "look")]
    try:
        with branchkit.session(folder / "a.journal.jsonl", mode, model=model, tools=tools) as s:
            return Told(plain_loop(s))
    except Waiting as waiting:
        return Told(None, str(waiting))


def ended(folder: Path, kind: Kind) -> None:
    """Resume, as often as it takes, with a person who looks at the world when asked."""
    told = in_child(live, folder, kind, "resume", None).result()
    if told.answer is None:
        assert kind == "plain"
        again = in_child(live, folder, kind, "resume", None).result()
        assert again == told  # a question that was asked stays the same question
        done = World(folder).count("act") == 1
        outcome: Any = "completed" if done else "not sent"
        settle(folder / "a.journal.jsonl", "t0001.1", outcome, result="act done", by="me")
        told = in_child(live, folder, kind, "resume", None).result()
    assert told == Told("done")


def check_end(folder: Path, kind: Kind) -> None:
    path, world = folder / "a.journal.jsonl", World(folder)
    assert world.count("act") == 1 or kind == "pure"
    assert world.count("look") == 1
    assert [(row.state, row.acted) for row in calls(path)] == [("completed", True)] * 2
    assert verify(path).ok
    before = path.read_bytes()
    assert replay(path, plain_loop) == "done"  # R50: recovered runs replay like any other
    assert path.read_bytes() == before
    assert (world.count("act"), world.count("asked-3")) == (
        1 if kind != "pure" else world.count("act"),
        1,
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("step", STEPS)
def test_killed_at_every_step_of_a_call(tmp_path: Path, step: str, kind: Kind) -> None:
    """R21, R22, R28, D08-D12: done once, whatever was lost; and nothing is lost in silence."""
    killed = in_child(live, tmp_path, kind, "record", step)
    assert killed.killed, killed
    if World(tmp_path).count("act"):  # R28: an effect that the journal knows of
        (row,) = calls(tmp_path / "a.journal.jsonl")
        assert (row.state != "not sent", row.could_have_left) == (True, True)
    ended(tmp_path, kind)
    check_end(tmp_path, kind)


def crashed_resume(folder: Path, kind: Kind, step: str) -> Ended:
    return in_child(live, folder, kind, "resume", None, crash_at=step)


@pytest.mark.parametrize(("step", "kind"), RECOVERY)
def test_killed_again_during_the_recovery(tmp_path: Path, step: str, kind: Kind) -> None:
    """R21: a recovery that is cut off is a crash like any other, and so is the next one."""
    assert in_child(live, tmp_path, kind, "record", "effect_done").killed
    assert crashed_resume(tmp_path, kind, step).killed
    assert World(tmp_path).count("act") == 1
    crashed_resume(tmp_path, kind, step)
    if not _has_ended(tmp_path):
        ended(tmp_path, kind)
    check_end(tmp_path, kind)


def _has_ended(folder: Path) -> bool:
    return fold(None, read(folder / "a.journal.jsonl")[0]).status == "completed"


@pytest.mark.parametrize(
    ("kind", "by"), [("keyed", "key"), ("probed", "probe"), ("plain", "person")]
)
def test_who_settled_it(tmp_path: Path, kind: Kind, by: str) -> None:
    """R22, D12: settled before the run goes on, and the journal says by whom."""
    assert in_child(live, tmp_path, kind, "record", "effect_done").killed
    ended(tmp_path, kind)
    events = events_of(tmp_path / "a.journal.jsonl")
    (settled,) = [e for e in events if isinstance(e.payload, Settled)]
    assert isinstance(settled.payload, Settled)
    assert (settled.payload.by, settled.payload.outcome) == (by, "completed")
    kinds = [event.kind for event in events]
    resumed = len(kinds) - 1 - kinds[::-1].index("Resumed")
    assert settled.seq < resumed < kinds.index("Delivered")
