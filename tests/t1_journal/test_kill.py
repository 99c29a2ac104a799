"""SIGKILL while a process writes: what it said it had written is there (R20, R21, B01, N02)."""

from __future__ import annotations

import random
import signal
from contextlib import closing
from pathlib import Path

import pytest
from journals import append, child, open_writer

from branchkit.journal.file import Verdict, read, verify

WRITE = """
import sys
from pathlib import Path
from branchkit.journal.file import Writer
from journals import now, replied
writer = Writer(Path(sys.argv[1]), run_id="run-1", now=now)
batch = int(sys.argv[2])
while writer.seq < 100_000:
    for _ in range(batch):
        event = writer.append(replied(writer.seq, "x" * 700), turn=writer.seq, step_id="s")
    writer.commit()
    sys.stdout.write(f"{event.seq} {event.event_hash}\\n")
    sys.stdout.flush()
"""


def kill_after(path: Path, batch: int, acks: int) -> list[tuple[int, str]]:
    """What a writing process acknowledged before it was killed, some time after ``acks`` of it."""
    with child(WRITE, path, batch) as writer:
        assert writer.stdout is not None
        lines = [writer.stdout.readline() for _ in range(acks)]
        writer.send_signal(signal.SIGKILL)
        # What is in the pipe was acknowledged too, before the kernel took the process away.
        lines += writer.stdout.read().splitlines(keepends=True)
    assert writer.returncode == -signal.SIGKILL
    whole = [line.split() for line in lines if line.endswith("\n")]
    return [(int(seq), event_hash) for seq, event_hash in whole]


def check(path: Path, acknowledged: list[tuple[int, str]]) -> Verdict:
    """The file is an intact chain, but for a torn tail, and holds everything acknowledged."""
    verdict = verify(path)
    assert [damage.code for damage in verdict.damage] in ([], ["torn_line"], ["lost_newline"])
    events, _ = read(path)
    for seq, event_hash in acknowledged:
        assert events[seq].event_hash == event_hash
    return verdict


@pytest.mark.parametrize("batch", [1, 7, 300])
def test_every_acknowledged_event_survives_a_kill(tmp_path: Path, batch: int) -> None:
    """R21: three kills of one journal at random moments, each time by a new process."""
    path = tmp_path / "run.journal.jsonl"
    moments = random.Random(batch)
    last = -1
    for _ in range(3):
        acknowledged = kill_after(path, batch, moments.randint(1, max(2, 100 // batch)))
        check(path, acknowledged)
        assert acknowledged[0][0] > last
        last = acknowledged[-1][0]
    with closing(open_writer(path)) as writer:
        assert writer.seq > last
        append(writer, writer.seq)
    assert verify(path).ok


SHARE = """
import os, sys, threading
from pathlib import Path
from branchkit.journal.commit import SharedWriter
from branchkit.journal.file import Writer
from journals import now, replied
writer = SharedWriter(Writer(Path(sys.argv[1]), run_id="run-1", now=now))
def produce(name):
    for number in range(100_000):
        event = writer.append(replied(name, "x" * 300), turn=number, step_id=f"p{name}")
        os.write(1, f"{name} {number} {event.seq} {event.event_hash}\\n".encode())
for name in range(8):
    threading.Thread(target=produce, args=(name,)).start()
"""


@pytest.mark.parametrize("seed", range(3))
def test_a_kill_loses_nothing_that_any_producer_was_told(tmp_path: Path, seed: int) -> None:
    """E06, R21: eight threads; every word is kept, and each producer's events are a prefix."""
    path = tmp_path / "run.journal.jsonl"
    with child(SHARE, path) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(random.Random(seed).randint(10, 150))]
        process.kill()
        lines += process.stdout.read().splitlines(keepends=True)
    events, damage = read(path)
    assert [one.code for one in damage] in ([], ["torn_line"], ["lost_newline"])
    for line in lines:
        if line.endswith("\n"):
            name, number, seq, event_hash = line.split()
            event = events[int(seq)]
            assert (event.event_hash, event.step_id, event.turn) == (
                event_hash, f"p{name}", int(number),
            )  # fmt: skip
    for producer in range(8):
        turns = [event.turn for event in events if event.step_id == f"p{producer}"]
        assert turns == list(range(len(turns)))


COMMIT = """
import os, sys
from pathlib import Path
from branchkit.journal.file import Writer
from journals import now, replied
writer = Writer(Path(sys.argv[1]), run_id="run-1", now=now)
writer.append(replied(0), turn=0, step_id="s")
writer.commit()
writer.append(replied(1), turn=1, step_id="s")
os.environ["BRANCHKIT_CRASH_AT"] = sys.argv[2]
writer.commit()
print("not killed")
"""


@pytest.mark.parametrize(
    ("point", "events"),
    [("commit.before_write", 1), ("commit.after_write", 2), ("commit.after_sync", 2)],
)
def test_the_named_crash_points_of_a_commit(tmp_path: Path, point: str, events: int) -> None:
    """STYLE 9: a process that dies there leaves a chain that goes on."""
    path = tmp_path / "run.journal.jsonl"
    with child(COMMIT, path, point) as process:
        assert process.stdout is not None
        assert process.stdout.read() == ""
    assert process.returncode == -signal.SIGKILL
    assert verify(path)[:2] == (True, events)
    with closing(open_writer(path)) as writer:
        assert writer.seq == events
