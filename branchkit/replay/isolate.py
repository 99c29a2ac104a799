"""A process that can reach nothing, to replay in (R54, H07, M13).

Three walls, the outer ones inherited by whatever the harness starts:

    network namespace   where the kernel allows one: no interface but an own loopback
    seccomp             no new socket at all, of any family: a UNIX socket leads to a proxy
    audit hook          the interpreter's own word before a connection, a look-up, a child process
                        or a write: it is refused there, and the report names it

What was tried counts even where the harness swallowed the refusal, or tried in a thread.
"""

from __future__ import annotations

import ctypes
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from branchkit.boundary.replaying import Replaying
from branchkit.errors import Diverged
from branchkit.harness import seccomp
from branchkit.journal.events import reply_step
from branchkit.process import Workers
from branchkit.record.record import Record
from branchkit.replay.recorded import Recorded
from branchkit.replay.strict import Loop, Replayed, load_loop, replay

_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_LIBRARY = f"{Path(os.__file__).parent}{os.sep}"
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
# Everything by which something could leave, by the names that the interpreter gives them.
_REFUSED = (
    "socket.connect", "socket.bind", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo",
    "socket.gethostby", "socket.getnameinfo", "subprocess.", "os.system", "os.exec", "os.fork",
    "os.posix_spawn", "os.spawn", "os.startfile", "pty.", "urllib.Request", "http.client.",
    "ftplib.", "smtplib.", "poplib.", "imaplib.", "nntplib.", "telnetlib.", "webbrowser.",
    "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate",
    "os.chmod", "os.chown", "os.kill", "shutil.", "sqlite3.connect",
)  # fmt: skip


class _Walls:
    """What this process is closed in by; there is no way back."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.mode: Replaying | None = None  # the replay under way
        self.reports: list[dict[str, object]] = []  # one for each attempt (R56)

    def close(self) -> None:
        """Close this process in, once."""
        if self.names:
            return
        sys.dont_write_bytecode = True
        if _leave_network():
            self.names.append("network namespace")
        if seccomp.install(seccomp.NETWORK):
            self.names.append("seccomp")
        self.names.append("audit hook")
        sys.addaudithook(self._hear)

    def watch(self, mode: Replaying) -> None:
        """Attempts from now on belong to this replay."""
        self.mode, self.reports = mode, []

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not (
            event.startswith(_REFUSED)
            or _is_write(event, arguments)
            or (event == "socket.__new__" and _is_new_socket())
        ):
            return
        said = f"{event}({', '.join(repr(one)[:200] for one in arguments)})"
        record = self.mode.record if self.mode is not None else Record()
        report: dict[str, object] = {
            "seq": record.last_seq + 1,
            "step_id": reply_step(record.turn),
            "expected": None,
            "actual": {"kind": "beside the session", "tried": said, "where": _caller()},
            "record_hash": record.logical,
        }
        self.reports.append(report)
        raise Diverged(f"the harness tried {said} beside its session", report=report)


_walls = _Walls()


def replay_alone(journal: Path | str, harness: str | None = None) -> Replayed:
    """A replay of ``journal`` in a process of its own that can reach nothing; see `replay`.

    ``harness`` is ``module:function``, imported behind the walls. What it tries beside its session
    is a divergence, whatever became of the attempt.
    """
    with Workers(1) as worker:
        return worker.submit(replay_behind_walls, str(journal), harness).result()


def replay_behind_walls(journal: str, harness: str | None) -> Replayed:
    """`replay_alone` for a worker process, which stays closed in from now on."""
    _walls.close()
    recorded = Recorded.open(journal)
    try:
        return _watched(recorded, load_loop(harness))
    finally:
        recorded.close()


def _watched(recorded: Recorded, loop: Loop | None) -> Replayed:
    try:
        found = replay(recorded, loop, watch=_walls.watch)
    except Exception:
        if not _walls.reports:
            raise
        # The harness made an error of its own of the refusal.
        found = Replayed(False, len(recorded.events), 0, 0, 0, None)
    found = found._replace(isolation=tuple(_walls.names))
    return found._replace(ok=False, divergence=_walls.reports[0]) if _walls.reports else found


def _is_write(event: str, arguments: tuple[Any, ...]) -> bool:
    if event != "open" or not isinstance(arguments[2], int) or not arguments[2] & _WRITES:
        return False
    return not isinstance(arguments[0], int) and os.fspath(arguments[0]) != os.devnull


def _is_new_socket() -> bool:
    """Whether a socket is being opened, not wrapped: an event loop makes itself a socket pair."""
    asked = sys._getframe(2).f_locals
    return asked.get("fileno") is None


def _caller() -> str:
    """The innermost line that is neither ours nor the standard library's: `file:line`."""
    stack = [f for f in traceback.extract_stack()[:-1] if f.filename != __file__]
    own = [f for f in stack if not f.filename.startswith((_LIBRARY, "<frozen"))]
    frame = (own or stack)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}"


def _leave_network() -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    # As root at once; else in a user namespace of our own, where the system lets people make one.
    return not libc.unshare(_CLONE_NEWNET) or not libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET)
