"""What pyfuse3 needs of trio, done synchronously: three to four times cheaper per request.

pyfuse3 reaches trio only through its module attribute ``pyfuse3.trio`` (its asyncio mode uses the
same door). `Loop` stands in for it: waiting is one ``poll``, and since nothing ever suspends, a
coroutine is run to its end by one ``send(None)``. Between two requests of the kernel the loop
serves other descriptors (the control socket) and the results of a worker thread, so all state of
the daemon belongs to one thread and needs no lock.
"""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from types import ModuleType, TracebackType
from typing import Any


class ClosedResourceError(Exception):
    """The loop was asked to end; pyfuse3 catches it by this name."""


class Lock:
    """A lock among the tasks of a loop that has only one."""

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        return None


class Nursery:
    """Runs what was started when its block ends."""

    def __init__(self) -> None:
        self._started: list[tuple[Callable[..., Coroutine[Any, Any, None]], tuple[Any, ...]]] = []

    def start_soon(
        self, task: Callable[..., Coroutine[Any, Any, None]], *args: Any, name: str = ""
    ) -> None:
        """Remember ``task``."""
        self._started.append((task, args))

    async def __aenter__(self) -> Nursery:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        for task, args in self._started:
            await task(*args)


class Loop:
    """One poll loop: pyfuse3's trio, other descriptors, and one worker thread."""

    ClosedResourceError = ClosedResourceError
    Lock = Lock

    def __init__(self) -> None:
        self.lowlevel = self
        self.name = "fuse"
        self._poll = select.poll()
        self._ready: dict[int, Callable[[], None]] = {}
        self._fuse_fd = -1
        self._closing = False
        self.on_wait: Callable[[], None] = lambda: None  # what was read before has its reply
        self.deadline_s: float | None = None  # monotonic: when to call on_deadline
        self.on_deadline: Callable[[], None] = lambda: None
        self._jobs: SimpleQueue[tuple[Callable[[], None], Callable[[], None]]] = SimpleQueue()
        self._done: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.watch(self._wake, self._finish)
        threading.Thread(target=self._work, name="fuse-worker", daemon=True).start()

    def watch(self, fd: int, ready: Callable[[], None]) -> None:
        """Call ``ready`` whenever ``fd`` can be read."""
        self._ready[fd] = ready
        self._poll.register(fd, select.POLLIN)

    def unwatch(self, fd: int) -> None:
        """Forget ``fd``."""
        del self._ready[fd]
        self._poll.unregister(fd)

    def aside(self, work: Callable[[], None], then: Callable[[], None]) -> None:
        """Run ``work`` on the worker thread, later ``then`` on the loop.

        For calls that wait for the kernel, which waits for this loop (pyfuse3's invalidations).
        """
        self._jobs.put((work, then))

    def _work(self) -> None:
        while True:
            work, then = self._jobs.get()
            work()
            self.post(then)

    def _finish(self) -> None:
        os.eventfd_read(self._wake)
        while not self._done.empty():
            self._done.get()()

    def current_trio_token(self) -> None:
        """There is nothing to hand to other threads: they use `aside`."""

    def current_task(self) -> Loop:
        """pyfuse3 asks for the task's ``name``."""
        return self

    def open_nursery(self) -> Nursery:
        """A nursery whose tasks run one after the other."""
        return Nursery()

    def notify_closing(self, fd: int) -> None:
        """pyfuse3's ``terminate`` calls this: the next wait ends the loop."""
        self._closing = True

    def post(self, call: Callable[[], None]) -> None:
        """Run ``call`` on the loop; may be called by a signal handler or another thread."""
        self._done.put(call)
        os.eventfd_write(self._wake, 1)

    async def wait_readable(self, fd: int) -> None:
        """Return when ``fd`` can be read; serves everything else meanwhile."""
        if self._fuse_fd != fd:
            self._fuse_fd = fd
            self._poll.register(fd, select.POLLIN)
        self.on_wait()
        while True:
            readable = False
            for ready, _ in self._poll.poll(self._timeout_ms()):
                if ready == fd:
                    readable = True
                elif ready in self._ready:
                    self._ready[ready]()
            if self.deadline_s is not None and time.monotonic() >= self.deadline_s:
                self.deadline_s = None
                self.on_deadline()
            if self._closing:
                raise ClosedResourceError
            if readable:
                return

    def _timeout_ms(self) -> float | None:
        if self.deadline_s is None:
            return None
        return max(0.0, self.deadline_s - time.monotonic()) * 1000 + 1


@contextmanager
def in_place_of_trio() -> Iterator[None]:
    """Import pyfuse3 in here: it imports trio, a third of a worker's start (and of its pauses)."""
    stand_in = ModuleType("trio")
    found = sys.modules.setdefault("trio", stand_in)
    yield
    if found is stand_in:
        del sys.modules["trio"]


def run(task: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine that never suspends to its end."""
    try:
        task.send(None)
    except StopIteration:
        return
    raise RuntimeError("the loop's coroutine suspended, which nothing here can resume")
