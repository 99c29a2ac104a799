"""Workers: an Executor whose processes die alone, are replaced, and leave nothing behind."""

from __future__ import annotations

import concurrent.futures
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import worker_tasks
from living import all_end, marked

from branchkit.errors import BranchkitError, UsageError
from branchkit.process import WorkerDied, Workers
from branchkit.supervise import descendants


@pytest.fixture
def fifo(tmp_path: Path) -> str:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    return str(path)


@pytest.fixture
def marker() -> Iterator[str]:
    name = f"{40000 + uuid.uuid4().int % 10000}.{uuid.uuid4().int % 10**9}"
    yield name
    left = marked(name)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []


def read_pid(fifo: str) -> int:
    return int(Path(fifo).read_text())


def test_results_come_back_from_other_processes() -> None:
    with Workers(2) as workers:
        assert list(workers.map(abs, range(-5, 5))) == [abs(n) for n in range(-5, 5)]
        pids = {workers.submit(worker_tasks.my_pid).result() for _ in range(4)}
        assert os.getpid() not in pids
        assert len(pids) <= 2  # they are kept, not started for each task
    assert all_end(pids)


def test_an_error_comes_back_as_itself_with_the_workers_traceback() -> None:
    with Workers(1) as workers:
        with pytest.raises(UsageError) as caught:
            workers.submit(worker_tasks.refuse).result()
        assert caught.value.hint == "pick another"
        assert "in refuse" in caught.value.__notes__[0]
        with pytest.raises(BranchkitError, match="Local: no pickle for me"):
            workers.submit(worker_tasks.raise_untravelling).result()


def test_what_cannot_be_pickled_fails_its_own_future() -> None:
    with Workers(1) as workers:
        with pytest.raises((AttributeError, TypeError, Exception), match=r"pickle|local"):
            workers.submit(lambda: None).result()
        assert workers.submit(abs, -1).result() == 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_a_killed_worker_fails_only_its_own_future_and_is_replaced(
    fifo: str, marker: str, number: signal.Signals
) -> None:
    """N02: a real SIGKILL in the middle of a task."""
    with Workers(2) as workers:
        doomed = workers.submit(worker_tasks.announce_and_hang, fifo, marker)
        others = [workers.submit(worker_tasks.my_pid) for _ in range(5)]
        pid = read_pid(fifo)
        os.kill(pid, number)
        with pytest.raises(WorkerDied, match=f"worker process {pid} ") as caught:
            doomed.result(20)
        assert caught.value.exit_code == 82
        assert pid not in {each.result(20) for each in others}
        after = {workers.submit(worker_tasks.my_pid).result(20) for _ in range(4)}
        assert pid not in after
    assert marked(marker) == []  # its grandchild in another session went with it


def test_leaving_by_an_interrupt_stops_all_and_lets_them_clean_up(
    fifo: str, marker: str, tmp_path: Path
) -> None:
    trace = tmp_path / "trace"
    with pytest.raises(KeyboardInterrupt), Workers(1) as workers:  # noqa: PT012
        running = workers.submit(worker_tasks.hang_with_cleanup, fifo, str(trace))
        waiting = workers.submit(worker_tasks.announce_and_hang, fifo, marker)
        pid = read_pid(fifo)
        signal.raise_signal(signal.SIGINT)
    assert trace.read_text() == "cleaned up"
    assert waiting.cancelled()
    assert isinstance(running.exception(), WorkerDied)
    assert all_end([pid])
    with pytest.raises(RuntimeError, match="after shutdown"):
        workers.submit(abs, 1)


def test_shutdown_can_cancel_what_waits() -> None:
    workers = Workers(1)
    futures = [workers.submit(abs, n) for n in range(50)]
    workers.shutdown(cancel_futures=True)
    assert all(each.done() for each in futures)
    assert len(concurrent.futures.wait(futures).done) == 50


def test_a_workers_print_does_not_reach_our_stdout() -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import worker_tasks\n"
        "from branchkit.process import Workers\n"
        "with Workers(1) as w: print(w.submit(worker_tasks.print_something).result())"
    )
    here = str(Path(__file__).parent)
    done = subprocess.run(
        [sys.executable, "-c", code, here], capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "returned\n", done.stderr
    assert "a print of the worker" in done.stderr


PARENT = """
import sys; sys.path.insert(0, sys.argv[1])
import worker_tasks
from branchkit.process import Workers
workers = Workers(2)
marker, *fifos = sys.argv[2:]
futures = [workers.submit(worker_tasks.announce_and_hang, fifo, marker) for fifo in fifos]
print("up", flush=True)
futures[0].result()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_no_worker_and_no_grandchild_outlives_a_killed_parent(
    tmp_path: Path, marker: str, number: signal.Signals
) -> None:
    """N02: SIGKILL of the process that holds the workers."""
    fifos = [str(tmp_path / name) for name in ("first", "second")]
    for each in fifos:
        os.mkfifo(each)
    argv = [sys.executable, "-c", PARENT, str(Path(__file__).parent), marker, *fifos]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as parent:
        try:
            pids = {read_pid(each) for each in fifos}
            family = descendants(parent.pid)
            assert pids < set(family)
            assert len(family) >= 6  # two of each: supervisor, worker, grandchild
            parent.send_signal(number)
            parent.wait(20)
            assert all_end(family)
        finally:
            parent.kill()  # or leaving the `with` would wait for it for ever
