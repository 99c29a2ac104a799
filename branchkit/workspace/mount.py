"""The client's side: `Workspaces` of one store directory, and their branches.

With FUSE a daemon serves them (started here when there is none, shared by every process that opens
the same store); without, `materialize.Copies` does the same work in this process.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NoReturn

from branchkit import errors
from branchkit.errors import BranchkitError, DaemonGone, FuseMissing, UsageError, WorkspaceError
from branchkit.workspace import base as bases
from branchkit.workspace import stale
from branchkit.workspace.catalog import Snapshot
from branchkit.workspace.compare import Change
from branchkit.workspace.materialize import Copies
from branchkit.workspace.probe import probe
from branchkit.workspace.store import hold, prepare

REPLY_BYTES = 1 << 16
START_TIMEOUT_S = 60.0  # a cold start imports trio and replays logs; the disk may be slow
POLL_S = 0.01


class Remote:
    """The door to a store that a daemon serves. Calls of several threads take turns."""

    def __init__(self, path: Path, connection: socket.socket) -> None:
        self.path = path
        self._connection = connection
        self._turn = threading.Lock()
        self._pending = b""
        self.pid = _peer(connection)
        self.call("hello")

    def call(self, op: str, **arguments: Any) -> dict[str, Any]:
        """The daemon's reply to one request; its errors are raised here."""
        with self._turn:
            try:
                self._connection.sendall(json.dumps({"op": op, **arguments}).encode() + b"\n")
                reply = json.loads(self._line())
            except OSError as error:
                raise self._gone(str(error)) from error
        if "error" in reply:
            _raise(reply)
        return dict(reply)

    def _line(self) -> bytes:
        while b"\n" not in self._pending:
            data = self._connection.recv(REPLY_BYTES)
            if not data:
                raise self._gone("it closed the connection")
            self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        return line

    def _gone(self, why: str) -> DaemonGone:
        return DaemonGone(
            f"the process that serves {self.path} has gone: {why}",
            hint="open the workspaces again: everything written is in the store",
        )

    def close(self) -> None:
        """End the connection; the daemon leaves when it was the last."""
        self._connection.close()

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


def _raise(reply: dict[str, Any]) -> NoReturn:
    kind = getattr(errors, reply["error"], WorkspaceError)
    if not (isinstance(kind, type) and issubclass(kind, BranchkitError)):
        kind = WorkspaceError
    raise kind(reply["message"], hint=reply["hint"])


class Branch:
    """One workspace: ``path`` is a directory that any process may read and write."""

    def __init__(self, door: Remote | Copies, name: str, path: Path) -> None:
        self._door = door
        self.name = name
        self.path = path

    def __repr__(self) -> str:
        return f"Branch({self.name!r})"

    def freeze(self) -> Snapshot:
        """A snapshot of the branch as it is, durable when this returns.

        What programs have written or mapped is pulled out of the kernel first. A branch without
        changes gives its current snapshot (R35).
        """
        return self._door.freeze(self.name)

    def tree_hash(self) -> str:
        """The Merkle hash of the branch as it is, from what changed only."""
        return self._door.tree_hash(self.name)

    def diff(self) -> list[Change]:
        """What differs from the base or snapshot that the branch was created from, sorted."""
        return self._door.diff(self.name)

    def drop(self) -> None:
        """Remove the branch; its snapshots stay."""
        self._door.drop(self.name)


class Workspaces:
    """All bases, snapshots and branches of one store directory."""

    def __init__(self, store: Path, door: Remote | Copies, reason: str) -> None:
        self.store = store
        self.reason = reason
        self._door = door

    @classmethod
    def open(
        cls,
        store: Path,
        *,
        backend: Literal["auto", "fuse", "copy"] = "auto",
        linger_s: float = 30.0,
    ) -> Workspaces:
        """The workspaces of ``store``, which is made if it is new.

        ``auto`` takes FUSE if it works and says in ``reason`` why it did not. A daemon that is
        started here leaves ``linger_s`` seconds after its last client.
        """
        if backend not in ("auto", "fuse", "copy"):
            raise UsageError(f"unknown backend {backend!r}", hint="one of auto, fuse, copy")
        path = prepare(Path(store))
        if backend == "copy":
            return cls(path, Copies(path), "backend='copy' was asked for")
        found = probe()
        if not found.ok:
            if backend == "fuse":
                raise FuseMissing(found.detail, hint=found.remedy)
            return cls(path, Copies(path), found.detail)
        try:
            return cls(path, _daemon(path, linger_s), "")
        except FuseMissing as error:
            if backend == "fuse":
                raise
            return cls(path, Copies(path), error.message)

    @property
    def backend(self) -> Literal["fuse", "copy"]:
        """What serves these workspaces."""
        return "fuse" if isinstance(self._door, Remote) else "copy"

    def __enter__(self) -> Workspaces:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def add_base(self, directory: Path) -> str:
        """The id of ``directory`` as a base; the same tree has the same id everywhere.

        Reads and hashes what it has not seen before. The directory is never written, and must not
        be changed by others as long as branches stand on it.
        """
        resolved = Path(directory).resolve()
        bases.refuse(resolved, self.store)
        base_id = bases.add(resolved, self.store)
        self._door.register_base(base_id)
        return base_id

    def register_base(self, base_id: str) -> None:
        """Take note of a base whose files were put into the store (`portable.adopt`)."""
        self._door.register_base(base_id)

    def register_snapshot(self, row: dict[str, object]) -> None:
        """Take note of a snapshot whose layer was put into the store (`portable.adopt`)."""
        self._door.register_snapshot(row)

    def create(self, name: str, *, base: str | None = None, snapshot: str | None = None) -> Branch:
        """A new branch that looks like ``base`` or ``snapshot``."""
        self._door.create(name, base, snapshot)
        return self._branch(name)

    def branch(self, name: str) -> Branch:
        """The branch ``name``."""
        return Branch(self._door, name, self._door.where(name))

    def _branch(self, name: str) -> Branch:
        if isinstance(self._door, Remote):  # it was just made: no need to ask
            return Branch(self._door, name, self.store / "mnt" / name)
        return self.branch(name)

    def branches(self) -> list[Branch]:
        """All branches, by name."""
        return [self._branch(name) for name in self._door.names()]

    def snapshot(self, snapshot_id: str) -> Snapshot:
        """What is known of a snapshot."""
        return self._door.snapshot(snapshot_id)

    def close(self) -> None:
        """Let go of the store; branches and snapshots stay in it."""
        self._door.close()

    def pin(self) -> int:
        """Keep the daemon when its clients go (`branchkit mount`); returns its pid."""
        if isinstance(self._door, Copies):
            return os.getpid()  # nothing serves, so nothing has to be kept
        return int(self._door.call("pin")["pid"])

    def stop(self) -> None:
        """Bring everything to the disk, unmount and end the daemon (`branchkit umount`)."""
        if isinstance(self._door, Remote):
            with suppress(ProcessLookupError):  # it left first: the end is the same
                process = os.pidfd_open(self._door.pid)
                try:
                    with suppress(DaemonGone):
                        self._door.call("stop")
                    _wait_for_end(process, self.store)
                finally:
                    os.close(process)
        self._door.close()


def _peer(connection: socket.socket) -> int:
    """The pid of the daemon as this process sees it (also from another pid namespace)."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int.from_bytes(credentials[:4], sys.byteorder)


def _wait_for_end(process: int, store: Path) -> None:
    waiting = select.poll()
    waiting.register(process, select.POLLIN)
    if not waiting.poll(START_TIMEOUT_S * 1000):
        raise DaemonGone(
            f"the process that serves {store} was told to end and does not",
            hint=f"end it: fuser -k {store / 'daemon.lock'}",
        )


def _daemon(store: Path, linger_s: float) -> Remote:
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
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        stale.connect(connection, store / "control.sock")
        return Remote(store, connection)
    except (FileNotFoundError, ConnectionError, DaemonGone):
        connection.close()
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
    """Start the daemon, detached; returns when it is ready, raises what kept it from that."""
    ready, told = os.pipe()
    command = [sys.executable, "-m", "branchkit.workspace.daemon", os.fspath(store)]
    options = ["--ready-fd", str(told), "--linger-s", str(linger_s)]
    with (store / "daemon.log").open("ab") as output:
        process = subprocess.Popen(
            [*command, *options],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            pass_fds=(told,),
            cwd="/",
            env=_environment(),
        )
    os.close(told)
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


def _environment() -> dict[str, str]:
    """This process's environment, with the package importable from the root directory."""
    package = os.fspath(Path(__file__).resolve().parents[2])
    path = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": f"{package}{os.pathsep}{path}" if path else package}
