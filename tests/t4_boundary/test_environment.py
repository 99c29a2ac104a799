"""Clock, identifiers, entropy and listings: recorded once, given again on the tape (R52)."""

from __future__ import annotations

import shutil
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from loops import events_of, proposes, record, replay, says, scripted

from branchkit.boundary.environment import Entropy, TurnClock, git_environment
from branchkit.boundary.session import Session
from branchkit.errors import Diverged
from branchkit.journal.events import EnvironmentRead


def curious(folder: Path) -> str:
    """Never reached by replay: the folder is gone by then."""
    return ",".join(sorted(path.name for path in folder.iterdir()))


def everything(folder: Path, session: Session) -> str:
    """Every source, several times, in the context of the model and in what is returned."""
    said = []
    messages = [session.input({"role": "user", "content": f"it is {session.now().isoformat()}"})]
    for _ in range(3):
        said += [
            session.now().isoformat(),
            session.uuid4(),
            repr(session.random()),
            session.urandom(16).hex(),
            ",".join(session.listdir(str(folder))),
            session.uuid4(),
        ]
        answer = session.model([*messages, {"role": "user", "content": "\n".join(said)}])
        messages += [answer.message, *(session.tool(call) for call in answer.calls)]
    return "\n".join([*said, *(str(message["content"]) for message in messages)])


def test_a_loop_that_prints_them_all_replays_byte_identical(tmp_path: Path) -> None:
    """R52: with the listed folder gone, and the clock and the entropy of another moment."""
    folder, path = tmp_path / "folder", tmp_path / "a.journal.jsonl"
    folder.mkdir()
    for number in range(20):
        (folder / f"file-{number * 7919 % 101}").touch()

    def agent(session: Session) -> str:
        return everything(folder, session)

    def look() -> str:
        return curious(folder)

    model = scripted(proposes(("look", {})), proposes(("look", {})), says("done"))
    first = record(path, agent, model, [look])
    shutil.rmtree(folder)
    assert replay(path, agent).encode() == first.encode()
    assert replay(path, agent).encode() == first.encode()


def test_each_read_is_new_when_recording(tmp_path: Path) -> None:
    path = tmp_path / "a.journal.jsonl"

    def agent(session: Session) -> None:
        session.model([session.input({"role": "user", "content": session.uuid4()})])
        session.uuid4()
        session.urandom(8)
        session.random()

    record(path, agent, scripted(says("done")))
    values = [e.payload.value for e in events_of(path) if isinstance(e.payload, EnvironmentRead)]
    assert len(set(map(str, values))) == 4


def test_another_read_than_the_recorded_one_stops(tmp_path: Path) -> None:
    """R51: a read is matched by what was asked for, not by its place."""
    path = tmp_path / "a.journal.jsonl"

    def agent(session: Session) -> None:
        session.urandom(8)
        session.model([session.input({"role": "user", "content": "go"})])

    def greedy(session: Session) -> None:
        session.urandom(9)
        session.model([session.input({"role": "user", "content": "go"})])

    record(path, agent, scripted(says("done")))
    with pytest.raises(Diverged, match=r"step t0000.*EnvironmentRead"):
        replay(path, greedy)


@given(st.integers(0, 2**63))
def test_equal_seeds_give_equal_entropy(seed: int) -> None:
    one, two = Entropy(seed), Entropy(seed)
    assert [one.uuid4(), one.random(), one.urandom(5)] == [
        two.uuid4(),
        two.random(),
        two.urandom(5),
    ]


def test_unseeded_entropy_is_the_operating_systems() -> None:
    assert Entropy().uuid4() != Entropy().uuid4()


@given(st.integers(0, 100_000))
def test_the_turn_clock_goes_by_the_turn(turn: int) -> None:
    """Git dates follow it, so that equal behaviour gives equal commits."""
    clock = TurnClock("2026-03-02T02:00:00+01:00")
    assert clock.at(turn) == clock.at(turn)
    assert (clock.at(turn + 1) - clock.at(turn)).total_seconds() == 60
    assert clock.at(0) == datetime.fromisoformat("2026-03-02T01:00:00+00:00")
    date = git_environment(clock, turn)["GIT_COMMITTER_DATE"]
    assert datetime.strptime(date, "%Y-%m-%dT%H:%M:%S%z") == clock.at(turn)
