"""Nothing gets out of a replay: twenty-nine ways, with somebody at the other end who counts."""

from __future__ import annotations

import json
import os
import selectors
import socket
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import probes
import pytest

import branchkit
from branchkit.process import Workers
from branchkit.replay.isolate import replay_alone, replay_behind_walls
from branchkit.replay.regress import outcome_of
from branchkit.replay.strict import Replayed

# One needs a name server to be counted, the other a raw socket.
NOT_COUNTED = {"name", "raw"}


class Listeners:
    """Sockets of every family, and what arrived at them."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._selector = stack.enter_context(selectors.DefaultSelector())
        folder.mkdir()
        (folder / "kept").write_text("kept")
        self.folder = folder
        stream, datagram = socket.SOCK_STREAM, socket.SOCK_DGRAM
        abstract = f"branchkit-probe-{os.getpid()}"
        places = [
            self._open(stack, socket.AF_INET, stream, ("127.0.0.1", 0)),
            self._open(stack, socket.AF_INET6, stream, ("::1", 0)),
            self._open(stack, socket.AF_INET, datagram, ("127.0.0.1", 0)),
        ]
        self._open(stack, socket.AF_UNIX, stream, str(folder / "socket"))
        self._open(stack, socket.AF_UNIX, stream, "\0" + abstract)
        ports = [place[1] for place in places]
        self.targets = json.dumps([*ports, str(folder / "socket"), abstract, str(folder)])

    def _open(self, stack: ExitStack, family: int, kind: int, at: Any) -> tuple[Any, ...]:
        one = stack.enter_context(socket.socket(family, kind))
        one.bind(at)
        if kind == socket.SOCK_STREAM:
            one.listen(16)
        self._selector.register(one, selectors.EVENT_READ)
        return tuple(one.getsockname())

    def arrived(self) -> int:
        """How many have come since the last call; what is sent over loopback is there at once."""
        count = 0
        while ready := self._selector.select(0):
            for key, _ in ready:
                one = key.fileobj
                assert isinstance(one, socket.socket)
                if one.type == socket.SOCK_STREAM:
                    one.accept()[0].close()
                else:
                    one.recv(100)
                count += 1
        return count

    def restore(self) -> None:
        """The folder as it was."""
        (self.folder / "effect").unlink(missing_ok=True)
        (self.folder / "kept").write_text("kept")

    def changed(self) -> list[str]:
        """What is in the folder and was not, or no longer is."""
        return sorted({path.name for path in self.folder.iterdir()} ^ {"kept", "socket"})


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("isolate") / "run.journal.jsonl"
    with branchkit.session(path, model=lambda _: {"role": "assistant", "content": "hi"}) as session:
        probes.recorded(session)
    return path


@pytest.fixture(scope="module")
def listeners(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listeners]:
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        found = Listeners(tmp_path_factory.mktemp("out") / "out", stack)
        patch.setenv("PROBE_TARGETS", found.targets)
        yield found


@pytest.fixture(scope="module")
def played(journal: Path, listeners: Listeners) -> Iterator[dict[str, Future[Replayed]]]:
    """Every probe, one after the other in one walled-in process."""
    with Workers(1) as worker:
        yield {
            name: worker.submit(replay_behind_walls, str(journal), f"probes:try_{name}")
            for name in probes.PROBES
        }


def test_there_are_enough_ways() -> None:
    """R54 asks for twenty."""
    assert len(probes.PROBES) >= 20


@pytest.mark.parametrize("name", probes.PROBES)
def test_nothing_gets_out(
    name: str, played: dict[str, Future[Replayed]], listeners: Listeners
) -> None:
    """R54, M13, H07: nobody is reached, nothing is changed, and the attempt stops the replay."""
    found = played[name].result()
    assert (listeners.arrived(), listeners.changed()) == (0, [])
    assert found.isolation == ("network namespace", "seccomp", "audit hook")
    if name in probes.BEHIND_THE_INTERPRETER:
        return
    assert not found.ok
    assert found.divergence is not None
    assert found.divergence["step_id"] == "t0000"
    actual = found.divergence["actual"]
    assert isinstance(actual, dict)
    assert actual["kind"] == "beside the session"


def test_each_way_is_one(listeners: Listeners) -> None:
    """The same attempts without walls do arrive: whoever counts could have told."""
    with Workers(1) as worker:
        for name in sorted(probes.PROBES.keys() - NOT_COUNTED):
            worker.submit(probes.attempt, name).result()
            assert listeners.arrived() + len(listeners.changed()) >= 1, name
            listeners.restore()


def test_a_replay_that_tries_nothing_is_equal(journal: Path) -> None:
    """R55, first and second condition: the network is off, and it is not missed."""
    found = replay_alone(journal, "probes:recorded")
    assert found.ok, found.divergence
    assert found.consumed == found.events
    assert "network namespace" in found.isolation


def test_archives_are_replayed_behind_walls_too(journal: Path, listeners: Listeners) -> None:
    """R63: one journal's attempt is that journal's difference, not the next one's."""
    with Workers(1) as worker:
        tried = worker.submit(outcome_of, str(journal), "probes:try_swallowed", True).result()
        clean = worker.submit(outcome_of, str(journal), "probes:recorded", True).result()
    assert (tried.ok, clean.ok) == (False, True)
    assert "socket." in tried.told()
    assert "probes.py:" in tried.told()
    assert listeners.arrived() == 0
