"""Group commit: one barrier for all who wait, in order, and no word before it returned."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from journals import append, now, open_writer, replied

from branchkit import disk
from branchkit.errors import DiskFull, JournalDamaged, JournalPoisoned
from branchkit.journal.commit import GroupCommit, SharedWriter
from branchkit.journal.events import Event
from branchkit.journal.file import Writer, read, verify


class Gate:
    """Stands in for a disk function: it waits at ``opened``, and fails with ``error`` if asked."""

    def __init__(self, real: Callable[..., Any]) -> None:
        self.real, self.calls = real, 0
        self.reached, self.opened = threading.Semaphore(0), threading.Event()
        self.error: OSError | None = None

    def __call__(self, *arguments: Any) -> Any:
        self.calls += 1
        self.reached.release()
        assert self.opened.wait(60)
        if self.error is not None:
            raise self.error
        return self.real(*arguments)


@pytest.fixture
def barrier(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Gate]:
    """The fdatasync of a journal that exists: closed until ``opened``."""
    with closing(open_writer(tmp_path / "run.journal.jsonl")) as writer:
        append(writer, 0)
    gate = Gate(disk.fdatasync)
    monkeypatch.setattr(disk, "fdatasync", gate)
    yield gate
    gate.opened.set()


def shared(folder: Path, **options: Any) -> SharedWriter:
    return SharedWriter(open_writer(folder / "run.journal.jsonl"), **options)


def put(writer: SharedWriter, turn: int) -> Event:
    return writer.append(replied(turn), turn=turn, step_id="s")


@contextmanager
def producers(count: int) -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(count) as pool:
        yield pool


def queued(writer: SharedWriter) -> int:
    return writer._group._queue.qsize()


def wait_until(condition: Callable[[], bool]) -> None:
    """The threads of a test have got where it wants them; they have nothing else to do."""
    turn = threading.Event()
    for _ in range(6000):
        if condition():
            return
        turn.wait(0.01)
    raise AssertionError("the producers did not get there")


def test_nobody_is_told_before_the_barrier_returned(tmp_path: Path, barrier: Gate) -> None:
    """R23, E02: ten producers, all asleep while the disk works, all awake after."""
    writer = shared(tmp_path)
    with producers(10) as pool:
        waiting = [pool.submit(put, writer, turn) for turn in range(10)]
        assert barrier.reached.acquire(timeout=60)
        assert not any(one.done() for one in waiting)
        assert verify(tmp_path / "run.journal.jsonl").events > 1  # written, but not durable
        barrier.opened.set()
        events = [one.result() for one in waiting]
    writer.close()
    assert sorted(event.seq for event in events) == list(range(1, 11))


def test_all_who_wait_share_one_barrier(tmp_path: Path, barrier: Gate) -> None:
    """R23: barriers per event <= 0.05 at 64 producers; here two of them for 64 events."""
    writer = shared(tmp_path)
    with producers(64) as pool:
        first = pool.submit(put, writer, 0)
        assert barrier.reached.acquire(timeout=60)
        rest = [pool.submit(put, writer, turn) for turn in range(1, 64)]
        wait_until(lambda: queued(writer) == 63)
        barrier.opened.set()
        assert {one.result().seq for one in [first, *rest]} == set(range(1, 65))
    assert barrier.calls == 2
    writer.close()
    assert writer.counts == (64, 2)
    assert writer.counts.mean_batch == 32


def test_a_barrier_takes_at_most_its_capacity(tmp_path: Path, barrier: Gate) -> None:
    """R23: K_max."""
    writer = shared(tmp_path, capacity=8)
    with producers(33) as pool:
        waiting = [pool.submit(put, writer, 0)]
        assert barrier.reached.acquire(timeout=60)
        waiting += [pool.submit(put, writer, turn) for turn in range(1, 33)]
        wait_until(lambda: queued(writer) == 33 - barrier_size(writer))
        barrier.opened.set()
        for one in waiting:
            one.result()
    writer.close()
    assert writer.counts.barriers >= 5


def barrier_size(writer: SharedWriter) -> int:
    """How many events are in the barrier that the gate holds: those that are in the file."""
    return verify(writer._writer.path).events - 1


def test_a_window_waits_for_company() -> None:
    """R23: W; a batch that is full does not wait for its end."""
    sizes: list[int] = []

    def write(items: Sequence[int]) -> list[int]:
        sizes.append(len(items))
        return list(items)

    group: GroupCommit[int, int] = GroupCommit(write, capacity=4, window_s=60)
    with producers(4) as pool:
        assert sorted(pool.map(group.submit, range(4))) == [0, 1, 2, 3]
    assert sizes == [4]
    group.close()


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=8), st.integers(1, 9), st.booleans())
def test_each_producer_keeps_its_order(counts: list[int], capacity: int, threads: bool) -> None:
    """E06: whatever the batches, and whoever else writes."""
    order: list[tuple[int, int]] = []

    def write(items: Sequence[tuple[int, int]]) -> list[int]:
        order.extend(items)
        return [number for _, number in items]

    group: GroupCommit[tuple[int, int], int] = GroupCommit(write, capacity=capacity)

    def produce(name: int, count: int) -> None:
        assert [group.submit((name, number)) for number in range(count)] == list(range(count))

    async def produce_async(name: int, count: int) -> None:
        for number in range(count):
            assert await group.submitted((name, number)) == number

    async def all_of_them() -> None:
        await asyncio.gather(*(produce_async(*one) for one in enumerate(counts)))

    if threads:
        with producers(len(counts)) as pool:
            for done in [pool.submit(produce, *one) for one in enumerate(counts)]:
                done.result()
    else:
        asyncio.run(all_of_them())
    group.close()
    for name, count in enumerate(counts):
        assert [number for who, number in order if who == name] == list(range(count))
    assert len(order) == sum(counts) == group.counts.items


def test_threads_and_coroutines_write_one_chain(tmp_path: Path) -> None:
    """R23: two event loops and four threads at once; every event is where it was said to be."""
    writer = shared(tmp_path)

    async def coroutines(base: int) -> list[Event]:
        async def one(name: int) -> list[Event]:
            return [
                await writer.appended(replied(base + name), turn=turn, step_id="s")
                for turn in range(20)
            ]

        return [event for events in await asyncio.gather(*map(one, range(5))) for event in events]

    def thread(name: int) -> list[Event]:
        return [writer.append(replied(name), turn=turn, step_id="s") for turn in range(20)]

    with producers(6) as pool:
        found: list[Future[list[Event]]] = [pool.submit(thread, name) for name in range(4)]
        found += [pool.submit(asyncio.run, coroutines(base)) for base in (100, 200)]
        told = [event for one in found for event in one.result()]
    writer.close()
    events, damage = read(tmp_path / "run.journal.jsonl")
    assert damage == []
    assert sorted(told) == events
    assert len(events) == 4 * 20 + 2 * 5 * 20


def test_a_payload_that_cannot_be_written_is_its_producers_alone(
    tmp_path: Path, barrier: Gate
) -> None:
    """The others of its batch do not hear of it."""
    writer = shared(tmp_path)
    with producers(4) as pool:
        first = pool.submit(put, writer, 0)
        assert barrier.reached.acquire(timeout=60)
        bad = pool.submit(
            writer.append, replied(1, message={"content": b"bytes"}), turn=1, step_id="s"
        )
        good = [pool.submit(put, writer, turn) for turn in (2, 3)]
        wait_until(lambda: queued(writer) == 3)
        barrier.opened.set()
        assert isinstance(bad.exception(), TypeError)
        assert {one.result().seq for one in [first, *good]} == {1, 2, 3}
    writer.close()


def test_a_failed_barrier_is_told_to_everyone_for_ever(tmp_path: Path, barrier: Gate) -> None:
    """R24: one fdatasync, no second; those who waited, those who queued, those who come."""
    writer = shared(tmp_path)
    barrier.error = OSError(errno.EIO, "Input/output error")
    with producers(20) as pool:
        waiting = [pool.submit(put, writer, 0)]
        assert barrier.reached.acquire(timeout=60)
        waiting += [pool.submit(put, writer, turn) for turn in range(1, 20)]
        wait_until(lambda: queued(writer) == 20 - barrier_size(writer))
        barrier.opened.set()
        errors = [one.exception() for one in waiting]
    assert [type(error) for error in errors] == [JournalPoisoned] * 20
    assert len({id(error) for error in errors}) == 20
    with pytest.raises(JournalPoisoned, match="fdatasync"):
        put(writer, 21)

    async def later() -> None:
        await writer.appended(replied(22), turn=22, step_id="s")

    with pytest.raises(JournalPoisoned, match="fdatasync"):
        asyncio.run(later())
    writer.close()
    assert barrier.calls == 1
    assert writer.counts.items == 0


def test_somebody_elses_bytes_in_the_file_are_told_too(tmp_path: Path) -> None:
    """ENGINE 2.2: the first batch hears of the damage, later ones of the writer that stopped."""
    writer = shared(tmp_path)
    put(writer, 0)
    with (tmp_path / "run.journal.jsonl").open("ab") as stream:
        stream.write(b"mine\n")
    with pytest.raises(JournalDamaged, match="somebody else wrote"):
        put(writer, 1)
    with pytest.raises(JournalPoisoned, match="somebody else wrote"):
        put(writer, 2)
    writer.close()


@pytest.mark.parametrize("first", [True, False])
def test_a_full_disk_costs_only_the_batch_that_did_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: bool
) -> None:
    """R24, ENGINE 2.2: told as back-pressure; with space the same writer goes on, in its chain."""
    writer = shared(tmp_path)
    before = [] if first else [put(writer, 0)]
    real = disk.write_all

    def full(fd: int, data: bytes) -> None:
        real(fd, data[: len(data) // 2])
        raise DiskFull("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(disk, "write_all", full)
        for _ in range(2):
            with pytest.raises(DiskFull):
                put(writer, 1)
    after = [put(writer, 2), put(writer, 3)]
    writer.close()
    assert read(tmp_path / "run.journal.jsonl") == (before + after, [])


def test_ctrl_c_takes_the_waiter_and_nothing_else(tmp_path: Path, barrier: Gate) -> None:
    """R23, STYLE 10: the event goes its way unacknowledged; the next one is told as ever."""
    writer = shared(tmp_path)

    def kill() -> None:
        barrier.reached.acquire()
        os.kill(os.getpid(), signal.SIGINT)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(KeyboardInterrupt):
        put(writer, 1)
    killer.join()
    barrier.opened.set()
    assert put(writer, 2).seq == 2
    writer.close()
    assert verify(tmp_path / "run.journal.jsonl")[:2] == (True, 3)


def test_a_cancelled_coroutine_takes_nobody_with_it(tmp_path: Path, barrier: Gate) -> None:
    """The thread that wakes the others meets a future that is done already."""
    writer = shared(tmp_path)

    async def main() -> Event:
        tasks = [
            asyncio.create_task(writer.appended(replied(turn), turn=turn, step_id="s"))
            for turn in range(3)
        ]
        await asyncio.to_thread(barrier.reached.acquire)
        tasks[1].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks[1]
        barrier.opened.set()
        return (await asyncio.gather(tasks[0], tasks[2]))[1]

    assert asyncio.run(main()).payload == replied(2)
    writer.close()
    assert verify(tmp_path / "run.journal.jsonl").events == 4


def test_a_loop_that_is_gone_takes_nobody_with_it(tmp_path: Path, barrier: Gate) -> None:
    """asyncio.run ended while its event was under way; a thread waits in the same batch."""
    writer = shared(tmp_path)

    async def leave() -> None:
        task = asyncio.create_task(writer.appended(replied(1), turn=1, step_id="s"))
        await asyncio.to_thread(barrier.reached.acquire)
        task.cancel()

    asyncio.run(leave())
    with producers(1) as pool:
        waiting = pool.submit(put, writer, 2)
        barrier.opened.set()
        assert waiting.result().seq == 2
    writer.close()


def test_after_close_everyone_has_an_answer(tmp_path: Path) -> None:
    """What was acknowledged is in the file, nothing else is, and nobody sleeps for ever."""
    writer = shared(tmp_path)
    told: list[Event] = []
    started = threading.Semaphore(0)

    def for_ever(name: int) -> None:
        while True:
            told.append(writer.append(replied(name), turn=1, step_id="s"))
            started.release()

    def produce(name: int) -> None:
        with pytest.raises(JournalPoisoned, match="closed"):
            for_ever(name)

    with producers(8) as pool:
        done = [pool.submit(produce, name) for name in range(8)]
        for _ in range(40):
            started.acquire()
        writer.close()
        for one in done:
            one.result()
    writer.close()
    assert read(tmp_path / "run.journal.jsonl") == (sorted(told), [])


def test_the_events_of_a_batch_that_was_taken_back_are_free_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer that gave them away refuses; one that did not may say so."""
    with closing(Writer(tmp_path / "run.journal.jsonl", run_id="r", now=now)) as writer:
        append(writer, 0)
        writer.commit()
        lost = append(writer, 1)
        writer.take_back()
        assert append(writer, 2).seq == lost.seq
        writer.commit()
        monkeypatch.setattr(disk, "size_bytes", lambda fd: -1)
        append(writer, 3)
        with pytest.raises(JournalDamaged):
            writer.commit()
        with pytest.raises(JournalPoisoned):
            writer.take_back()
