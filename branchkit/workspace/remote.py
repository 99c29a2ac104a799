"""The connection to the daemon that serves a store, which is started when there is none."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any, NoReturn

from branchkit import errors
from branchkit.errors import BranchkitError, DaemonGone, UsageError, WorkspaceError
from branchkit.supervise import DETACHED
from branchkit.workspace import stale
from branchkit.workspace.catalog import Snapshot
from branchkit.workspace.collect import Freed
from branchkit.workspace.compare import Change
from branchkit.workspace.store import hold

REPLY_BYTES = 1 << 16
START_TIMEOUT_S = 60.0  # a cold start imports trio and replays logs; the disk may be slow
POLL_S = 0.01
MOST_TRIES = 6  # of a call: the holder gives up after five workers
WORKER = [sys.executable, "-m", "branchkit.workspace.daemon"]


class Remote:
    """The door to a store that a daemon serves. Calls of several threads take turns.

    When the daemon is killed while a call waits, the call is made again to the one that takes over;
    what must not be done twice carries a number that tells whether it was done.
    """

    def __init__(self, path: Path) -> None:
        """Connect; OSError or DaemonGone when there is no daemon, or one that is about to leave."""
        self.path = path
        self._turn = threading.Lock()
        self._pending = b""
        self._connection: socket.socket | None = None
        self._present = (path / "clients.lock").open("ab")  # the daemon stays while it is locked
        self.pid = 0
        try:
            fcntl.flock(self._present, fcntl.LOCK_SH)
            self._connect()
            self.call("hello", again=False)
        except BaseException:
            self.close()
            raise

    def call(self, op: str, *, again: bool = True, **arguments: Any) -> dict[str, Any]:
        """The daemon's reply to one request; its errors are raised here.

        A request whose daemon died is made ``again`` to the next.
        """
        request = {"op": op, "request": secrets.token_hex(8), **arguments}
        line = json.dumps(request).encode() + b"\n"
        with self._turn:
            try:
                reply = json.loads(self._exchange(line, MOST_TRIES if again else 1))
            except BaseException as error:
                self._hang_up()  # or the next call would read what this one did not wait for
                if isinstance(error, OSError):
                    raise self._gone(str(error)) from error
                raise
        if "error" in reply:
            _raise(reply)
        return dict(reply)

    def _exchange(self, line: bytes, tries: int) -> bytes:
        try:
            if self._connection is None:
                self._connect()
            return self._say(line)
        except ConnectionError:
            if tries == 1:
                raise
            self._hang_up()
            self._connect()  # raises when nobody takes over
        return self._exchange(line, tries - 1)

    def _connect(self) -> None:
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        stale.connect(self._connection, self.path / "control.sock")
        self.pid = _peer(self._connection)

    def _say(self, line: bytes) -> bytes:
        if self._connection is None:
            raise ConnectionResetError("the connection is closed")
        self._connection.sendall(line)
        while b"\n" not in self._pending:
            data = self._connection.recv(REPLY_BYTES)
            if not data:
                raise ConnectionResetError("it closed the connection")
            self._pending += data
        reply, _, self._pending = self._pending.partition(b"\n")
        return reply

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection, self._pending = None, b""

    def _gone(self, why: str) -> DaemonGone:
        return DaemonGone(
            f"the process that serves {self.path} has gone: {why}",
            hint="open the workspaces again: everything written is in the store",
        )

    def close(self) -> None:
        """End the connection; the daemon leaves when it was the last."""
        self._hang_up()
        self._present.close()

    def where(self, name: str) -> Path:
        """The branch's directory."""
        if name not in self.names():
            raise UsageError(
                f"no branch {name!r} in {self.path}",
                hint="branches: " + (", ".join(self.names()) or "none"),
            )
        return self.path / "mnt" / name

    def register_base(self, base_id: str) -> None:
        """See `Store.register_base`."""
        self.call("base", id=base_id)

    def register_snapshot(self, row: dict[str, object]) -> None:
        """See `Store.register_snapshot`."""
        self.call("register", row=row)

    def create(self, name: str, base: str | None, snapshot: str | None) -> None:
        """A new branch."""
        self.call("create", name=name, base=base, snapshot=snapshot)

    def names(self) -> list[str]:
        """All branches."""
        return list(self.call("branches")["names"])

    def snapshot(self, snapshot_id: str) -> Snapshot:
        """A snapshot by its id."""
        return Snapshot(*self.call("snapshot", id=snapshot_id)["snapshot"])

    def freeze(self, name: str) -> Snapshot:
        """See `Branch.freeze`."""
        return Snapshot(*self.call("freeze", name=name)["snapshot"])

    def tree_hash(self, name: str) -> str:
        """See `Branch.tree_hash`."""
        return str(self.call("hash", name=name)["tree_hash"])

    def diff(self, name: str) -> list[Change]:
        """See `Branch.diff`."""
        return [Change(*change) for change in self.call("diff", name=name)["changes"]]

    def drop(self, name: str) -> None:
        """See `Branch.drop`."""
        self.call("drop", name=name)

    def gc(self, keep: Collection[str] | None) -> Freed:
        """See `Workspaces.gc`."""
        return Freed(*self.call("gc", keep=None if keep is None else sorted(keep))["freed"])

    def limit(self, cap_bytes: int) -> None:
        """Set the store's cap."""
        self.call("cap", bytes=cap_bytes)


def _raise(reply: dict[str, Any]) -> NoReturn:
    kind = getattr(errors, reply["error"], WorkspaceError)
    if not (isinstance(kind, type) and issubclass(kind, BranchkitError)):
        kind = WorkspaceError
    raise kind(reply["message"], hint=reply["hint"])


def _peer(connection: socket.socket) -> int:
    """The pid of the daemon as this process sees it (also from another pid namespace)."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int.from_bytes(credentials[:4], sys.byteorder)


def wait_for_end(process: int, store: Path) -> None:
    """Return when the daemon behind the pidfd ``process`` has gone."""
    waiting = select.poll()
    waiting.register(process, select.POLLIN)
    if not waiting.poll(START_TIMEOUT_S * 1000):
        raise DaemonGone(
            f"the process that serves {store} was told to end and does not",
            hint=f"end it: fuser -k {store / 'daemon.lock'}",
        )


def daemon(store: Path, linger_s: float) -> Remote:
    """A connection to the store's daemon, which is started if there is none.

    Under ``open.lock``, so that processes that open at once find one and the same.
    """
    with hold(store / "open.lock"):
        remote = _connect(store)
        if remote is None:
            _wait_until_free(store)
            _start(store, linger_s)
            remote = _connect(store)
    if remote is None:
        raise DaemonGone(
            f"the process that serves {store} left as soon as it had started",
            hint=f"see {store / 'daemon.log'}",
        )
    return remote


def _connect(store: Path) -> Remote | None:
    """A connection if a daemon answers; None when it has gone or is about to."""
    try:
        return Remote(store)
    except (FileNotFoundError, ConnectionError, DaemonGone):
        return None


def _wait_until_free(store: Path) -> None:
    """Return when no daemon holds the store any more (one that leaves still has to unmount)."""
    deadline_s = time.monotonic() + START_TIMEOUT_S
    fd = os.open(store / "daemon.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                # Shared: workspaces without FUSE do not leave by themselves; the daemon tells.
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline_s:
                    raise DaemonGone(
                        f"the process that serves {store} does not answer and does not leave",
                        hint=f"end it: fuser -k {store / 'daemon.lock'}",
                    ) from None
                time.sleep(POLL_S)
    finally:
        os.close(fd)


def _start(store: Path, linger_s: float) -> None:
    """Start holder and daemon, detached; returns when they serve, raises what kept them from it."""
    ready, told = os.pipe()
    lock = os.open(store / "daemon.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    kept = os.memfd_create("branchkit-kept")
    with _listener(store) as listener, (store / "daemon.log").open("ab") as output:
        listen = listener.fileno()
        holder = [sys.executable, "-I", "-S", os.fspath(Path(__file__).with_name("holder.py"))]
        fds = ["--lock-fd", str(lock), "--listen-fd", str(listen), "--kept-fd", str(kept)]
        worker = [*WORKER, os.fspath(store), "--linger-s", str(linger_s), *fds]
        process = subprocess.Popen(
            [*holder, str(told), str(listen), *worker],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            pass_fds=(told, lock, listen, kept),
            cwd="/",
            env=_environment(),
        )
    for fd in (told, lock, kept):
        os.close(fd)
    with os.fdopen(ready, "rb") as pipe:
        line = pipe.readline()
    if not line:
        raise DaemonGone(
            f"the process that should serve {store} died while starting (exit {process.wait()})",
            hint=f"see {store / 'daemon.log'}",
        )
    reply = json.loads(line)
    if "error" in reply:
        process.wait()
        _raise(reply)
    # It outlives this process on purpose. The thread reaps it, so no zombie stays.
    threading.Thread(target=process.wait, name="daemon-exit", daemon=True).start()


def _listener(store: Path) -> socket.socket:
    """The socket that the holder will listen on; nobody else has the store (`_wait_until_free`)."""
    (store / "control.sock").unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    stale.bind(listener, store / "control.sock")
    return listener


def _environment() -> dict[str, str]:
    """This process's environment, with the package importable from the root directory.

    The mark keeps a supervisor above us (`supervise`) from taking the daemon for a left-over.
    """
    package = os.fspath(Path(__file__).resolve().parents[2])
    path = os.environ.get("PYTHONPATH")
    marked = {**os.environ, DETACHED: "1"}
    return {**marked, "PYTHONPATH": f"{package}{os.pathsep}{path}" if path else package}
