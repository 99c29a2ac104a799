"""Real processes to be killed by SIGKILL, a few milliseconds each.

    ended = in_child(record, folder, crash_at="intent_durable")
    assert ended.killed                     # exit code -9; what it wrote is what it had written

A child is forked from the calling process, so nothing is imported again. Fork from a process with
one thread only: a task of ``branchkit.process.Workers`` is one, a notebook's kernel is not.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

CRASH_AT = "BRANCHKIT_CRASH_AT"


class Ended(NamedTuple):
    """How a child ended: ``code`` negative for a signal, and what it returned or raised."""

    pid: int
    code: int
    value: Any = None
    error: str = ""

    @property
    def killed(self) -> bool:
        """Whether SIGKILL ended it."""
        return self.code == -signal.SIGKILL

    def result(self) -> Any:
        """What it returned. Raises RuntimeError with its traceback if it did not return."""
        if self.code != 0:
            raise RuntimeError(f"process {self.pid} ended with {self.code}\n{self.error}")
        return self.value


def arm(point: str) -> None:
    """From now on this process dies at the crash point of that name."""
    os.environ[CRASH_AT] = point


def in_child(
    function: Callable[..., Any],
    *arguments: Any,
    crash_at: str | None = None,
    kill_after_s: float | None = None,
) -> Ended:
    """Call ``function`` in a new process and wait for its end; its value is pickled.

    ``crash_at`` arms a crash point before the call; ``kill_after_s`` kills it from here, unless it
    is done by then.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _be_the_child(writing, function, arguments, crash_at)
    os.close(writing)
    try:
        said = _read_to_end(pid, reading, kill_after_s)
    except BaseException:
        os.kill(pid, signal.SIGKILL)  # Ctrl-C: the wait below must not be for ever
        raise
    finally:
        os.close(reading)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    value, error = pickle.loads(said) if said and code >= 0 else (None, "")
    return Ended(pid, code, value, error)


def _read_to_end(pid: int, reading: int, kill_after_s: float | None) -> bytes:
    if kill_after_s is not None and not select.select([reading], [], [], kill_after_s)[0]:
        os.kill(pid, signal.SIGKILL)
    said = b""
    while part := os.read(reading, 65536):
        said += part
    return said


def _be_the_child(
    writing: int, function: Callable[..., Any], arguments: tuple[Any, ...], crash_at: str | None
) -> NoReturn:
    """Never returns: the rest of this process's stack belongs to the parent."""
    code = 1
    try:
        if crash_at is None:
            os.environ.pop(CRASH_AT, None)
        else:
            arm(crash_at)
        answer = pickle.dumps((function(*arguments), ""))
        code = 0
    except BaseException:  # noqa: BLE001  told to the parent, word for word
        answer = pickle.dumps((None, traceback.format_exc()))
    try:
        with os.fdopen(writing, "wb") as stream:
            stream.write(answer)
    finally:
        os._exit(code)
