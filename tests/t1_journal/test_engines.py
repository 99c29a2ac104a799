"""One contract for every engine, and a way from each to each with every hash as it was (R70)."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from journals import RUN_ID, child, now, replied, run_steps, sealed_lines

from branchkit.errors import ForkDetected, JournalDamaged, JournalLocked
from branchkit.journal.engines import EMPTY, Batch, Engine, Head, Host, JsonlEngine, copy_run
from branchkit.journal.rocks import RocksEngine
from branchkit.journal.scan import scan_lines

OPEN: dict[str, Callable[[Path], Engine]] = {"jsonl": JsonlEngine, "rocksdb": RocksEngine}
LINES = sealed_lines(run_steps(3))


@pytest.fixture(params=sorted(OPEN))
def opened(request: pytest.FixtureRequest) -> Callable[[Path], Engine]:
    return OPEN[request.param]


@pytest.fixture
def engine(opened: Callable[[Path], Engine], tmp_path: Path) -> Iterator[Engine]:
    with closing(opened(tmp_path / "runs")) as found:
        yield found


def test_what_was_written_is_there(engine: Engine) -> None:
    """R70: lines, head and names of several runs, written together and in parts."""
    other = sealed_lines(run_steps(1))
    engine.write([Batch(RUN_ID, LINES[:4]), Batch("other", other), Batch(RUN_ID, LINES[4:9])])
    engine.write([Batch(RUN_ID, LINES[9:])])
    assert engine.runs() == ["other", RUN_ID]
    assert list(engine.lines(RUN_ID)) == LINES
    assert list(engine.lines("other")) == other
    assert engine.head(RUN_ID) == Head(len(LINES), list(scan_lines(LINES))[-1].event_hash)  # type: ignore[union-attr]
    assert engine.head("nobody") == EMPTY
    assert list(engine.lines("nobody")) == []


def test_it_is_there_for_the_next_one(opened: Callable[[Path], Engine], tmp_path: Path) -> None:
    """J02: closed and opened again, the run goes on where it ended."""
    for begin, end in ((0, 5), (5, 6), (6, None)):
        with closing(opened(tmp_path / "runs")) as engine:
            assert engine.head(RUN_ID).events == begin
            engine.write([Batch(RUN_ID, LINES[begin:end])])
    with closing(opened(tmp_path / "runs")) as engine:
        assert list(engine.lines(RUN_ID)) == LINES


def test_what_does_not_follow_is_refused(engine: Engine) -> None:
    """ENGINE 2.2: a gap, a copy, another branch of history; nothing of it is kept."""
    engine.write([Batch(RUN_ID, LINES[:4])])
    stranger = sealed_lines(run_steps(1), first_seq=4)
    for lines in (LINES[5:], LINES[3:], stranger, [LINES[4], LINES[6]]):
        with pytest.raises(ForkDetected):
            engine.write([Batch(RUN_ID, lines)])
    assert list(engine.lines(RUN_ID)) == LINES[:4]
    engine.write([Batch(RUN_ID, LINES[4:])])


@pytest.mark.parametrize("way", [("jsonl", "rocksdb"), ("rocksdb", "jsonl")])
def test_a_run_goes_there_and_back_unchanged(tmp_path: Path, way: tuple[str, str]) -> None:
    """R70: byte for byte; what is there already stays, and another history is refused."""
    one, two = OPEN[way[0]](tmp_path / "1"), OPEN[way[1]](tmp_path / "2")
    back = OPEN[way[0]](tmp_path / "3")
    one.write([Batch(RUN_ID, LINES[:7])])
    copy_run(RUN_ID, one, two)
    one.write([Batch(RUN_ID, LINES[7:])])
    head = copy_run(RUN_ID, one, two)
    assert head == copy_run(RUN_ID, two, back) == one.head(RUN_ID) == back.head(RUN_ID)
    assert list(two.lines(RUN_ID)) == list(back.lines(RUN_ID)) == LINES
    two.write([Batch("forked", sealed_lines(run_steps(1)))])
    one.write([Batch("forked", sealed_lines(iter([*run_steps(2)][1:8])))])
    with pytest.raises(ForkDetected):
        copy_run("forked", one, two)
    for engine in (one, two, back):
        engine.close()


def test_runs_of_a_host_share_barriers(opened: Callable[[Path], Engine], tmp_path: Path) -> None:
    """R23, R70: ten threads, a run each; every chain is whole, in fewer barriers than commits."""
    host = Host(opened(tmp_path / "runs"))

    def produce(name: int) -> None:
        writer = host.writer(f"run-{name}", now=now)
        for turn in range(20):
            writer.append(replied(turn), turn=turn, step_id="s")
            writer.commit()
        writer.close()

    threads = [threading.Thread(target=produce, args=(name,)) for name in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [host.engine.head(f"run-{name}").events for name in range(10)] == [20] * 10
    assert host.counts.barriers <= host.counts.items == 200
    host.close()


HOLD = """
import os, sys
from pathlib import Path
from branchkit.journal.engines import Batch
from branchkit.journal.rocks import RocksEngine
from journals import RUN_ID, run_steps, sealed_lines
engine = RocksEngine(Path(sys.argv[1]))
for number, line in enumerate(sealed_lines(run_steps(200))):
    engine.write([Batch(RUN_ID, [line])])
    os.write(1, f"{number}\\n".encode())
"""


def test_a_killed_process_loses_nothing_and_lets_the_lock_go(tmp_path: Path) -> None:
    """R70, R21: a second process is refused while it lives; then every word it gave is kept."""
    with child(HOLD, tmp_path / "runs") as process:
        assert process.stdout is not None
        told = [process.stdout.readline() for _ in range(40)]
        with pytest.raises(JournalLocked):
            RocksEngine(tmp_path / "runs")
        process.kill()
        told += process.stdout.read().splitlines(keepends=True)
    whole = [line for line in told if line.endswith("\n")]
    with closing(RocksEngine(tmp_path / "runs")) as engine:
        assert engine.head(RUN_ID).events >= len(whole)


def test_a_log_that_was_shortened_is_noticed(tmp_path: Path) -> None:
    """ENGINE 2.1: RocksDB opens an older state without a word; what is kept beside it tells."""
    folder = tmp_path / "runs"
    for number, line in enumerate(LINES[:6]):
        with closing(RocksEngine(folder)) as engine:
            engine.write([Batch(RUN_ID, [line])])
        if number == 2:
            shutil.copytree(folder / "db", tmp_path / "older")
    shutil.rmtree(folder / "db")
    shutil.copytree(tmp_path / "older", folder / "db")
    with pytest.raises(JournalDamaged, match="has 3 batches and had 6"):
        RocksEngine(folder)
