"""Group commit: one write and one fdatasync for all who wait (R23, E02-E06).

Producers, threads or coroutines, put what they want durable into a queue and sleep. One thread
takes what is there, makes it durable in one barrier, and wakes them; what arrives during that
barrier is the next batch. So batches grow with the load by themselves, and a lone producer waits
for nobody: a window, during which the thread would wait for company, is zero unless asked for.

Each waiter sleeps on a lock (or a future) of its own. One lock around write and fdatasync, with
whoever gets it as the leader, convoys at two events a barrier in Python (measured); so does nothing
here. Nothing is acknowledged before its barrier returned. How long that takes, and what a barrier
costs, is estimated in ``estimates.py``.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Generic, NamedTuple, TypeVar

from branchkit.errors import BranchkitError, DiskFull, JournalPoisoned
from branchkit.journal.events import Event, Payload
from branchkit.journal.file import Writer

CAPACITY = 512  # the most that one barrier takes, whatever waits
WINDOW_S = 0.0  # below an arrival rate of 1 / t_sync a window only adds latency

Item = TypeVar("Item")
Done = TypeVar("Done")


class Counts(NamedTuple):
    """What a flusher did so far."""

    items: int
    barriers: int

    @property
    def mean_batch(self) -> float:
        """Items a barrier: the measured k of the formulas."""
        return self.items / self.barriers if self.barriers else 0.0


class _Waiter(Generic[Item, Done]):
    """An item, and the thread or coroutine that sleeps until it is durable."""

    __slots__ = ("done", "error", "future", "item", "sleep")

    def __init__(self, item: Item, future: asyncio.Future[Done] | None = None) -> None:
        self.item = item
        self.future = future
        self.done: Done | None = None
        self.error: Exception | None = None
        self.sleep = threading.Lock()
        self.sleep.acquire()

    def outcome(self) -> Done:
        if self.error is not None:
            raise self.error
        return self.done  # type: ignore[return-value]  # told: either this or the error

    def settle(self) -> None:
        """Run by the coroutine's own loop."""
        if self.future is None or self.future.done():  # cancelled while it waited
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.outcome())


class GroupCommit(Generic[Item, Done]):
    """A queue in front of ``write``, which makes a batch durable.

    ``write`` gets 1 to ``capacity`` items in the order in which they were handed in, and returns,
    after the barrier, one outcome each: a value, or an error that is that item's alone. If it
    raises, nothing of the batch counts as durable and every waiter of the batch is told. It runs in
    one thread only. After JournalPoisoned it is never called again.
    """

    def __init__(
        self,
        write: Callable[[Sequence[Item]], Sequence[Done | Exception]],
        *,
        capacity: int = CAPACITY,
        window_s: float = WINDOW_S,
    ) -> None:
        self._write = write
        self._capacity, self._window_s = capacity, window_s
        self._queue: SimpleQueue[_Waiter[Item, Done] | None] = SimpleQueue()
        self._poison: JournalPoisoned | None = None
        self._closed = False
        self._items = self._barriers = 0
        self._thread = threading.Thread(target=self._run, name="branchkit-commit", daemon=True)
        self._thread.start()

    @property
    def counts(self) -> Counts:
        """How many items were written in how many barriers."""
        return Counts(self._items, self._barriers)

    def submit(self, item: Item) -> Done:
        """The outcome of ``item``, once it is on stable storage.

        A KeyboardInterrupt leaves only the waiting: the item goes its way, unacknowledged. Raises
        what ``write`` says; JournalPoisoned for ever after one.
        """
        waiter: _Waiter[Item, Done] = _Waiter(item)
        self._put(waiter)
        waiter.sleep.acquire()
        return waiter.outcome()

    async def submitted(self, item: Item) -> Done:
        """``submit`` for a coroutine. If it is cancelled, the item goes its way all the same."""
        future: asyncio.Future[Done] = asyncio.get_running_loop().create_future()
        self._put(_Waiter(item, future))
        return await future

    def _put(self, waiter: _Waiter[Item, Done]) -> None:
        self._queue.put(waiter)
        # Closed before this is looked at: either the thread took it before it ended, or it is left
        # over here and would sleep for ever.
        if self._closed:
            self._thread.join()
            self._turn_away()

    def close(self) -> None:
        """Return after what was handed in before is written; a second call does nothing."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)
        self._thread.join()
        self._turn_away()

    def _turn_away(self) -> None:
        left = []
        while not self._queue.empty():
            try:
                waiter = self._queue.get_nowait()
            except Empty:  # another thread turns away too
                break
            if waiter is not None:
                left.append(waiter)
        closed = JournalPoisoned("this group commit is closed", hint="open the journal anew")
        _tell(left, closed)

    def _run(self) -> None:
        last = False
        while not last:
            batch = self._batch()
            last = None in batch
            if waiters := [waiter for waiter in batch if waiter is not None]:
                self._commit(waiters)

    def _batch(self) -> list[_Waiter[Item, Done] | None]:
        """What waits now, and what comes within the window; at least one."""
        batch = [self._queue.get()]
        # Those who were just woken want to hand in their next; without this the first of them
        # starts a barrier that the others miss (half the batch size at 8 and 64 threads).
        os.sched_yield()
        deadline_s = time.monotonic() + self._window_s
        while batch[-1] is not None and (room := self._capacity - len(batch)):
            # Only this thread takes, so what is counted is there.
            batch += [self._queue.get_nowait() for _ in range(min(room, self._queue.qsize()))]
            try:
                left_s = deadline_s - time.monotonic()
                if left_s <= 0 or len(batch) == self._capacity:
                    break
                batch.append(self._queue.get(timeout=left_s))
            except Empty:
                break
        return batch

    def _commit(self, waiters: list[_Waiter[Item, Done]]) -> None:
        if self._poison is not None:
            _tell(waiters, self._poison)
            return
        try:
            outcomes = self._write([waiter.item for waiter in waiters])
        except JournalPoisoned as error:
            self._poison = error
            _tell(waiters, error)
            return
        except Exception as error:  # noqa: BLE001 - it is handed to those who wait
            _tell(waiters, error)
            return
        self._items += len(waiters)
        self._barriers += 1
        for waiter, outcome in zip(waiters, outcomes, strict=True):
            if isinstance(outcome, Exception):
                waiter.error = outcome
            else:
                waiter.done = outcome
        _wake(waiters)


def _tell(waiters: Sequence[_Waiter[Item, Done]], error: Exception) -> None:
    for waiter in waiters:
        waiter.error = _own(error)
    _wake(waiters)


def _own(error: Exception) -> Exception:
    """A copy: one object raised in many threads would collect the tracebacks of all."""
    if not isinstance(error, BranchkitError):
        return error
    copy = type(error)(error.message, hint=error.hint)
    copy.__cause__ = error
    return copy


def _wake(waiters: Sequence[_Waiter[Item, Done]]) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, list[_Waiter[Item, Done]]] = {}
    for waiter in waiters:
        if waiter.future is None:
            waiter.sleep.release()
        else:
            by_loop.setdefault(waiter.future.get_loop(), []).append(waiter)
    for loop, asleep in by_loop.items():
        try:
            loop.call_soon_threadsafe(_settle, asleep)  # one wake-up a loop, not one a waiter
        except RuntimeError:
            if not loop.is_closed():  # a closed one has nobody left who waits
                raise


def _settle(waiters: Sequence[_Waiter[Item, Done]]) -> None:
    for waiter in waiters:
        waiter.settle()


class _Wanted(NamedTuple):
    payload: Payload
    turn: int
    step_id: str


class SharedWriter:
    """One journal file for many threads and coroutines; it owns ``writer`` from now on.

    An event gets its number and hash in the order in which producers handed it in, so the events of
    one producer keep theirs. Because no event is given away before it is durable, a full disk costs
    only the batch that did not fit: those who waited are told, and the next may fit.
    """

    def __init__(
        self, writer: Writer, *, capacity: int = CAPACITY, window_s: float = WINDOW_S
    ) -> None:
        self._writer = writer
        self._group: GroupCommit[_Wanted, Event] = GroupCommit(
            self._write, capacity=capacity, window_s=window_s
        )

    @property
    def counts(self) -> Counts:
        """Events and barriers so far."""
        return self._group.counts

    def append(self, payload: Payload, *, turn: int, step_id: str) -> Event:
        """The event, on stable storage.

        Raises ValueError or TypeError for a payload that could not be read back, DiskFull (nothing
        of it was kept), JournalPoisoned.
        """
        return self._group.submit(_Wanted(payload, turn, step_id))

    async def appended(self, payload: Payload, *, turn: int, step_id: str) -> Event:
        """``append`` for a coroutine."""
        return await self._group.submitted(_Wanted(payload, turn, step_id))

    def _write(self, batch: Sequence[_Wanted]) -> list[Event | Exception]:
        outcomes: list[Event | Exception] = []
        for payload, turn, step_id in batch:
            try:
                outcomes.append(self._writer.append(payload, turn=turn, step_id=step_id))
            except (ValueError, TypeError) as error:  # that producer's alone
                outcomes.append(error)
        try:
            self._writer.commit()
        except DiskFull:
            self._writer.take_back()
            raise
        return outcomes

    def close(self) -> None:
        """Write what was handed in before, and let the file go."""
        self._group.close()
        self._writer.close()
