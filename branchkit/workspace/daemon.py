"""The process that serves a store's mount: ``python -m branchkit.workspace.daemon STORE``.

It is exec'd and detached, so it outlives the notebook that started it; it counts its clients by
their connections to ``control.sock`` and leaves ``--linger-s`` after the last one unless pinned.
Requests and replies are one JSON object a line. One thread does everything; only calls that wait
for the kernel go to the loop's worker (see `loop.Loop.aside`).
"""

from __future__ import annotations

import argparse
import errno
import fcntl
import gc
import json
import logging
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from branchkit.errors import BranchkitError, DiskFull, FuseMissing, UsageError, WorkspaceError
from branchkit.workspace import compare, fuse, hashes, materialize, stale
from branchkit.workspace.catalog import Named
from branchkit.workspace.collect import collect
from branchkit.workspace.loop import Loop
from branchkit.workspace.store import Store, prepare

REQUEST_BYTES = 1 << 16
SEND_TIMEOUT = (5).to_bytes(8, sys.byteorder) + (0).to_bytes(8, sys.byteorder)  # struct timeval

_log = logging.getLogger("branchkit.workspace")
Request = dict[str, Any]
Reply = dict[str, Any]


class Client:
    """One connection; it has at most one request under way."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._pending = b""

    def requests(self) -> list[Request] | None:
        """The requests that have arrived in full; None when the client has gone."""
        try:
            data = self.connection.recv(REQUEST_BYTES)
        except ConnectionError:
            return None
        if not data:
            return None
        *lines, self._pending = (self._pending + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def reply(self, value: Reply) -> None:
        """Send one reply; a client that has gone, or takes none for 5 s, does not get it."""
        try:
            self.connection.sendall(json.dumps(value).encode() + b"\n")
        except OSError as error:
            _log.warning("a client did not take its reply: %s", error)

    def fail(self, error: Exception) -> None:
        """Send an error; the client raises it again."""
        self.reply({"error": type(error).__name__, **describe(error)})


def describe(error: Exception) -> dict[str, str]:
    """Message and hint of any error."""
    if isinstance(error, BranchkitError):
        return {"message": error.message, "hint": error.hint}
    return {"message": f"{type(error).__name__}: {error}", "hint": "see daemon.log in the store"}


class Daemon:
    """The store, its mount and its clients."""

    def __init__(self, store: Path, loop: Loop, linger_s: float) -> None:
        self.store = Store(store)
        materialize.absorb_all(self.store)
        self.overlay = fuse.Overlay(store)
        self._loop = loop
        self._linger_s = linger_s
        self._pinned = False
        self._clients: dict[int, Client] = {}
        self._stopping: list[Client] = []
        self._listener: socket.socket | None = None
        loop.on_deadline = self.leave
        self._refill()
        for row in self.store.named.values():
            self._show(row)

    def listen(self, path: Path) -> None:
        """Accept clients at ``path``."""
        path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        stale.bind(listener, path)
        listener.listen(64)
        self._listener = listener
        self._loop.watch(listener.fileno(), self._accept)
        self._wait_for_clients()

    def leave(self) -> None:
        """End the service; first the kernel hands over its dirty pages, which an unmount loses."""
        dirty = [
            node for name in self.overlay.nodes.names for node in self.overlay.nodes.dirty(name)
        ]
        self._loop.aside(lambda: fuse.pull(dirty), fuse.stop)

    def close(self) -> None:
        """Close branches, then tell who asked for the end that it has come."""
        for name in list(self.store.named):
            self.store.close_live(name)
        self.store.close()
        for client in self._stopping:
            client.reply({})
        for client in self._clients.values():
            client.connection.close()
        if self._listener is not None:
            self._listener.close()

    def _wait_for_clients(self) -> None:
        idle = not self._clients and not self._pinned
        self._loop.deadline_s = time.monotonic() + self._linger_s if idle else None

    def _accept(self) -> None:
        if self._listener is None:
            return
        connection, _ = self._listener.accept()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, SEND_TIMEOUT)
        client = Client(connection)
        self._clients[connection.fileno()] = client
        self._loop.watch(connection.fileno(), lambda: self._serve(client))
        self._wait_for_clients()

    def _serve(self, client: Client) -> None:
        requests = client.requests()
        if requests is None:
            fd = client.connection.fileno()
            self._loop.unwatch(fd)
            del self._clients[fd]
            client.connection.close()
            self._wait_for_clients()
            return
        for request in requests:
            self._guard(client, partial(self._dispatch, client, request))

    def _guard(self, client: Client, call: Callable[[], None]) -> None:
        """Run ``call``; what it raises goes to the client, never to the loop."""
        try:
            call()
        except BranchkitError as error:
            client.fail(error)
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            hint = "free some space; what was frozen before is safe"
            client.fail(DiskFull(str(error), hint=hint) if full else error)
        except Exception as error:  # noqa: BLE001 the client gets it, the loop lives
            _log.exception("a request failed")
            client.fail(error)

    def _dispatch(self, client: Client, request: Request) -> None:
        match request["op"]:
            case "hello":
                client.reply({"pid": os.getpid()})
            case "base":
                self.store.register_base(request["id"])
                client.reply({})
            case "register":
                self.store.register_snapshot(request["row"])
                client.reply({})
            case "create":
                row = self.store.create(
                    request["name"], base=request["base"], snapshot=request["snapshot"]
                )
                self._show(row)
                client.reply({})
                self._refill()
            case "branches":
                client.reply({"names": sorted(self.store.named)})
            case "snapshot":
                client.reply({"snapshot": self.store.held(request["id"]).snapshot})
            case "pin":
                self._pinned = True
                client.reply({"pid": os.getpid()})
            case "stop":
                self._stopping.append(client)
                self.leave()
            case "cap":
                self.store.space.limit(request["bytes"])
                client.reply({})
            case "gc":
                client.reply({"freed": collect(self.store, request["keep"])})
            case "drop":
                self._drop(client, request["name"])
            case "freeze" | "hash" | "diff" as what:
                self._settled(client, request["name"], self._ask(what, request["name"]))
            case other:
                raise UsageError(f"unknown request {other!r}", hint="client and daemon differ")

    def _refill(self) -> None:
        """Have logs for the next layers made on the worker thread, when few are left."""
        if wanted := self.store.spares.refill(self.store.catalog.layer):
            self._loop.aside(*wanted)

    def _show(self, row: Named) -> None:
        self.overlay.nodes.add(
            os.fsencode(row.name),
            row.number,
            load=lambda: self.store.live(row.name),
            ended=lambda: self.store.discard_dropped(row.number),
        )

    def _ask(self, what: str, name: str) -> Callable[[], Reply]:
        def freeze() -> Reply:
            return {"snapshot": self.store.freeze(name)}

        def tree_hash() -> Reply:
            return {"tree_hash": hashes.render(self.store.live(name).digest())}

        def diff() -> Reply:
            row = self.store.branch(name)
            old = self.store.view(row.base, row.origin)
            return {"changes": compare.changes(old, self.store.live(name))}

        return {"freeze": freeze, "hash": tree_hash, "diff": diff}[what]

    def _settled(self, client: Client, name: str, then: Callable[[], Reply]) -> None:
        """Answer with ``then()`` once the kernel's dirty pages of the branch are here."""
        self.store.branch(name)

        def answer() -> None:
            self._guard(client, lambda: client.reply(then()))
            self._refill()

        dirty = self.overlay.nodes.dirty(os.fsencode(name))
        if dirty:
            self._loop.aside(lambda: fuse.pull(dirty), answer)
        else:
            answer()

    def _drop(self, client: Client, name: str) -> None:
        self.store.drop(name)
        raw = os.fsencode(name)
        self.overlay.nodes.remove(raw)
        # Only then may the name mean another branch: the kernel remembers the old one for a day.
        self._loop.aside(lambda: fuse.forget_name(raw), lambda: client.reply({}))


def main(arguments: list[str]) -> int:
    """Serve a store until its last client has gone; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m branchkit.workspace.daemon")
    parser.add_argument("store", type=Path)
    parser.add_argument("--ready-fd", type=int, default=1)
    parser.add_argument("--linger-s", type=float, default=30.0)
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    _raise_limits()
    try:
        store = prepare(options.store)
        lock = take_lock(store)
        daemon, loop = start(store, options.linger_s)
    except Exception as error:  # noqa: BLE001 whoever started us gets it
        _log.exception("cannot start")
        _tell(options.ready_fd, {"error": type(error).__name__, **describe(error)})
        return 1
    signal.signal(signal.SIGTERM, lambda number, frame: loop.post(daemon.leave))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    _tell(options.ready_fd, {"pid": os.getpid()})
    try:
        fuse.serve()
    finally:
        (store / "control.sock").unlink(missing_ok=True)
        fuse.unmount(store / "mnt")
        daemon.close()
        os.close(lock)
    return 0


def start(store: Path, linger_s: float) -> tuple[Daemon, Loop]:
    """Mount and listen; nothing is answered yet."""
    stale.clear(store / "mnt")
    loop = Loop()
    daemon = Daemon(store, loop, linger_s)
    daemon.listen(store / "control.sock")
    try:
        fuse.mount(daemon.overlay, store / "mnt", loop)
    except RuntimeError as error:
        (store / "control.sock").unlink(missing_ok=True)
        stale.clear(store / "mnt")
        raise FuseMissing(
            f"{store / 'mnt'} could not be mounted: {error}",
            hint="see daemon.log in the store; `branchkit doctor` tells what FUSE needs",
        ) from error
    gc.freeze()  # records hold no cycles: looking at 50,000 of them again and again is waste
    gc.set_threshold(100_000, 50, 100)
    return daemon, loop


def take_lock(store: Path) -> int:
    """The store's daemon lock; copying workspaces hold it shared."""
    fd = os.open(store / "daemon.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise WorkspaceError(
            f"{store} is in use without FUSE (copying workspaces)",
            hint="close those workspaces first, or open this one with backend='copy'",
        ) from None
    return fd


def _raise_limits() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    sys.setrecursionlimit(10_000)  # a directory may be 2,000 deep (PATH_MAX)


def _tell(fd: int, value: Reply) -> None:
    os.write(fd, json.dumps(value).encode() + b"\n")
    os.close(fd)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
