"""The one way to start a child, and an Executor of such children.

``spawn`` starts every program under ``supervise.py``: in a new session, tied to this process by
PDEATHSIG and by a control socket whose end means die. After an interrupt, a restart, a shutdown or
a SIGKILL of this process nothing that was started here is left (tests/t0_process).

    this process ──control socket──▶ supervise.py ──▶ the program ──▶ whatever it starts
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import queue
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

from branchkit.errors import BranchkitError, ToolError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

_SUPERVISOR = Path(__file__).with_name("supervise.py")
_WORKER = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]);"
    "from branchkit.process import work; work(int(sys.argv[2]))"
)
_STUCK_S = 10.0

P = ParamSpec("P")
T = TypeVar("T")


class WorkerDied(BranchkitError):
    """A worker process ended in the middle of a task; only that task is lost."""

    exit_code = 82


class Child:
    """A running program; ``stop`` or the end of a ``with`` leaves nothing of it behind.

    ``pid`` is the program's, ``process`` its supervisor, which ends with the program's exit code.
    Dropping the last reference stops the program too, because that closes the control socket.
    """

    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket, pid: int) -> None:
        self.process = process
        self.pid = pid
        self.stdin: IO[bytes] | None = process.stdin
        self.stdout: IO[bytes] | None = process.stdout
        self.stderr: IO[bytes] | None = process.stderr
        self._control = control

    def poll(self) -> int | None:
        """The exit code (negative: the signal) if it and all it started are gone, else None."""
        return self.process.poll()

    def wait(self, timeout_s: float | None = None) -> int:
        """Its exit code once it and all it started are gone; TimeoutError after ``timeout_s``."""
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"process {self.pid} still runs after {timeout_s} s") from None
        self._control.close()
        return code

    def stop(self, grace_s: float = 2.0) -> int:
        """SIGTERM to its group, SIGKILL to all below it after ``grace_s``; its exit code."""
        try:
            with contextlib.suppress(OSError):  # it ended by itself: nobody listens any more
                self._control.sendall(b"%f\n" % grace_s)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(grace_s + _STUCK_S)
        finally:
            # Reached with the child alive only if the supervisor is stuck or we are interrupted.
            self._control.close()
            if self.process.poll() is None:
                self.process.kill()
            code = self.process.wait()
        return code

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.stop()
        finally:
            for pipe in (self.stdin, self.stdout, self.stderr):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):  # unsent input of a dead program
                        pipe.close()


def spawn(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: int | IO[bytes] | None = subprocess.DEVNULL,
    stdout: int | IO[bytes] | None = None,
    stderr: int | IO[bytes] | None = None,
    pass_fds: Sequence[int] = (),
) -> Child:
    """A running child; returns after its exec succeeded, raises ToolError if it did not.

    Streams as in subprocess (``stdin`` is /dev/null unless given). About 20 ms.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-I", "-S", str(_SUPERVISOR)]
        command += [str(theirs.fileno()), str(os.getpid()), *argv]

        def start() -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                command,
                env=None if env is None else dict(env),
                cwd=cwd,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                pass_fds=[*pass_fds, theirs.fileno()],
                start_new_session=True,
            )

        process = _on_starter(start)
    return _await_exec(process, ours, argv)


def _await_exec(
    process: subprocess.Popen[bytes], control: socket.socket, argv: Sequence[str]
) -> Child:
    """The child, once its supervisor has told its pid and that its exec succeeded."""
    report = b""
    child = Child(process, control, process.pid)
    try:
        while not report.endswith(b"\n") and (part := control.recv(64)):
            report += part
        pid, errno = (int(word) for word in report.split()) if report else (0, 0)
        if not report:
            raise ToolError(f"cannot start {argv[0]}: its supervisor ended at once")
        if errno:
            raise ToolError(f"cannot start {argv[0]}: {os.strerror(errno)}")
    except BaseException:
        child.__exit__()
        raise
    child.pid = pid
    return child


# PDEATHSIG fires when the *thread* that forked ends, not the process. So one thread forks for
# everybody and lives as long as the process does.
_starts: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] | None = None
_starts_lock = threading.Lock()


def _on_starter(start: Callable[[], T]) -> T:
    global _starts
    future: Future[T] = Future()
    with _starts_lock:
        if _starts is None:
            _starts = queue.SimpleQueue()
            threading.Thread(
                target=_serve_starts, args=(_starts,), name="branchkit-starter", daemon=True
            ).start()
        _starts.put((start, future))
    return future.result()


def _serve_starts(starts: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]]) -> None:
    while True:
        start, future = starts.get()
        try:
            future.set_result(start())
        except BaseException as error:  # noqa: BLE001  it is the asker's, not this thread's
            future.set_exception(error)
        del start, future  # a kept Popen would keep its pipes open


def _forget_starter() -> None:
    """A forked copy of this process has our variables but not our thread."""
    global _starts, _starts_lock
    _starts, _starts_lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget_starter)


class _Task(NamedTuple):
    future: Future[Any]
    call: tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


class Workers(Executor):
    """An Executor of ``n`` Python processes that are started when first needed.

    ``fn`` is a module-level function (not of ``__main__``); arguments and results are pickled. A
    worker that dies fails its own future with WorkerDied and is replaced. Leaving the ``with`` by
    an exception (Ctrl-C) stops everything at once. Workers' prints go to stderr.
    """

    def __init__(self, n: int) -> None:
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._closed = False
        self._lanes = [_Lane(self._tasks, i) for i in range(n)]

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """A future of ``fn(*args, **kwargs)`` in one of the workers."""
        if self._closed:
            raise RuntimeError("cannot submit to Workers after shutdown")
        future: Future[T] = Future()
        self._tasks.put(_Task(future, (fn, args, kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more tasks; the workers end when the queue is empty."""
        if not self._closed:
            self._closed = True
            if cancel_futures:
                self._cancel_waiting()
            for _ in self._lanes:
                self._tasks.put(None)
        if wait:
            for lane in self._lanes:
                lane.thread.join()

    def stop(self) -> None:
        """End now: waiting tasks are cancelled, running ones fail with WorkerDied."""
        self._closed = True
        self._cancel_waiting()
        for _ in self._lanes:
            self._tasks.put(None)
        for lane in self._lanes:
            lane.stop()
        for lane in self._lanes:
            lane.thread.join()

    def _cancel_waiting(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                task = self._tasks.get_nowait()
                if task is not None:
                    task.future.cancel()
                    task.future.set_running_or_notify_cancel()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.shutdown(wait=True)
        else:
            self.stop()


class _Lane:
    """One thread of this process that feeds one worker process at a time."""

    def __init__(self, tasks: queue.SimpleQueue[_Task | None], number: int) -> None:
        self._tasks = tasks
        self._lock = threading.Lock()  # between starting a worker and stopping all of them
        self._stopped = False
        self._child: Child | None = None
        self._connection: Connection | None = None
        self.thread = threading.Thread(
            target=self._serve, name=f"branchkit-worker-{number}", daemon=True
        )
        self.thread.start()

    def _serve(self) -> None:
        try:
            while (task := self._tasks.get()) is not None:
                if task.future.set_running_or_notify_cancel():
                    self._do(task)
                del task  # its arguments and result would live until the next one comes
        finally:
            self._discard()

    def _do(self, task: _Task) -> None:
        try:
            payload = pickle.dumps(task.call)
            done, value, trace = pickle.loads(self._exchange(payload))
        except BaseException as error:  # noqa: BLE001  it is the asker's, not this thread's
            task.future.set_exception(error)
            return
        if done:
            task.future.set_result(value)
        else:
            value.add_note(f"in a worker:\n{trace}")
            task.future.set_exception(value)

    def _exchange(self, payload: bytes) -> bytes:
        connection, child = self._worker()
        try:
            connection.send_bytes(payload)
            return connection.recv_bytes()
        except (EOFError, OSError):
            code = self._discard()
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            raise WorkerDied(
                f"worker process {child.pid} {how} in the middle of its task",
                hint="the other tasks go on in their own workers; submit this one again",
            ) from None

    def _worker(self) -> tuple[Connection, Child]:
        from multiprocessing.connection import Connection  # 15 ms that a plain spawn need not pay

        with self._lock:
            if self._stopped:
                raise WorkerDied("the workers were stopped before this task began")
            if self._child is None or self._connection is None:
                ours, theirs = socket.socketpair()
                with theirs:
                    argv = [sys.executable, "-c", _WORKER, json.dumps(sys.path)]
                    fd = theirs.fileno()
                    self._child = spawn([*argv, str(fd)], stdout=2, pass_fds=(fd,))
                self._connection = Connection(ours.detach())
            return self._connection, self._child

    def _discard(self) -> int:
        with self._lock:
            child, connection = self._child, self._connection
            self._child = self._connection = None
        if connection is not None:
            connection.close()
        return 0 if child is None else child.stop()

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            child = self._child
        if child is not None:
            child.stop(grace_s=0.5)


def work(fd: int) -> None:
    """The worker's main: answer calls from ``fd`` until it ends. SIGTERM unwinds the call."""
    import signal
    from multiprocessing.connection import Connection

    terminated = False

    def terminate(_number: int, _frame: object) -> None:
        nonlocal terminated
        terminated = True
        sys.exit(143)  # so that `finally` blocks unmount, unlock and stop what they started

    signal.signal(signal.SIGTERM, terminate)
    os.set_inheritable(fd, False)
    connection = Connection(fd)
    with contextlib.suppress(EOFError, BrokenPipeError):
        while True:
            call = connection.recv_bytes()
            try:
                fn, args, kwargs = pickle.loads(call)
                answer = pickle.dumps((True, fn(*args, **kwargs), ""))
            except BaseException as error:
                if terminated:
                    raise
                answer = _failure(error)
            connection.send_bytes(answer)
    # Nothing is held any more: a late SIGTERM must not unwind the interpreter's own clean-up.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _failure(error: BaseException) -> bytes:
    """``error`` for the other process; one that cannot travel is told in words."""
    trace = traceback.format_exc()
    try:
        answer = pickle.dumps((False, error, trace))
        pickle.loads(answer)
    except Exception:  # noqa: BLE001  pickle raises whatever the object's own code raises
        answer = pickle.dumps((False, BranchkitError(f"{type(error).__name__}: {error}"), trace))
    return answer
