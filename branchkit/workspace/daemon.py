"""The process that serves a store's mount: ``python -m branchkit.workspace.daemon STORE``.

`holder` runs it, detached, so it outlives the notebook that started it, and runs another one when
this is killed; what that one needs to go on stands in the logs and in `kept`. It counts its clients
by their connections to ``control.sock`` and leaves ``--linger-s`` after the last one unless pinned.
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
from contextlib import suppress
from functools import partial
from pathlib import Path

from branchkit.errors import BranchkitError, DiskFull, FuseMissing, UsageError, WorkspaceError
from branchkit.workspace import compare, fuse, hashes, log, materialize, stale
from branchkit.workspace.branch import Live
from branchkit.workspace.catalog import Named
from branchkit.workspace.changes import decode
from branchkit.workspace.client import Client, Reply, Request, describe
from branchkit.workspace.collect import collect
from branchkit.workspace.handover import Session
from branchkit.workspace.inflight import Applied
from branchkit.workspace.kept import Kept
from branchkit.workspace.loop import Loop
from branchkit.workspace.store import Store, prepare

CREATE = ("name", "base", "snapshot", "request")

_log = logging.getLogger("branchkit.workspace")


class Daemon:
    """The store, its mount and its clients."""

    def __init__(self, store: Path, loop: Loop, linger_s: float, kept: Kept) -> None:
        self.store = Store(store, kept=kept)
        materialize.absorb_all(self.store)
        self.overlay = fuse.Overlay(store, kept)
        self._loop = loop
        self._linger_s = linger_s
        self._kept = kept
        self._holder_pid = os.getppid()
        self._clients: dict[int, Client] = {}
        self._leaving = False
        self._stopping: list[Client] = []
        self._listener: socket.socket | None = None
        if kept.cap_bytes is not None:
            self.store.space.limit(kept.cap_bytes)
        loop.on_deadline = self._leave_if_alone
        self._refill()
        for row in self.store.named.values():
            self._show(row)
        for row in self.store.still_open():
            self.overlay.nodes.add_dropped(row.number, *self._uses(row))

    def listen(self, listener: socket.socket) -> None:
        """Accept clients of ``listener``."""
        self._listener = listener
        self._loop.watch(listener.fileno(), self._accept)
        self._wait_for_clients()

    def obey(self, holder: socket.socket) -> None:
        """Leave when the holder has gone: nobody would take over from us any more."""
        self._loop.watch(holder.fileno(), partial(self._holder_gone, holder))

    def _holder_gone(self, holder: socket.socket) -> None:
        self._loop.unwatch(holder.fileno())
        _log.warning("the holder has gone")
        self.leave()

    def forget_dropped(self) -> None:
        """Have the kernel forget names that were dropped shortly before a restart."""
        names = {row.name for row in self.store.catalog.dropped.values()} - self.store.named.keys()
        for name in names:
            self._loop.aside(partial(fuse.forget_name, os.fsencode(name)), lambda: None)

    def applied(self) -> Applied | None:
        """What the request under way had changed, if it had come that far."""
        under_way = self._kept.under_way()
        if under_way is None:
            return None
        path = self.store.layers / f"{under_way.layer}.log"
        numbers = [n.number for n in self.store.named.values() if n.layer == under_way.layer]
        frame = next(log.read(path, under_way.offset), None)
        return Applied(numbers[0], decode(frame.value)) if numbers and frame else None

    def leave(self) -> None:
        """End the service; first the kernel hands over its dirty pages, which an unmount loses.

        From now on nobody is served who could think that we stay.
        """
        self._leaving = True
        (self.store.path / "control.sock").unlink(missing_ok=True)
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

    def _leave_if_alone(self) -> None:
        # A client whose connection an earlier worker had is still one: it holds this lock.
        fd = os.open(self.store.path / "clients.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._wait_for_clients()
        else:
            self.leave()
        finally:
            os.close(fd)

    def _wait_for_clients(self) -> None:
        idle = not self._clients and not self._kept.pinned
        self._loop.deadline_s = time.monotonic() + self._linger_s if idle else None

    def _accept(self) -> None:
        if self._listener is None:
            return
        connection, _ = self._listener.accept()
        client = Client(connection)
        self._clients[connection.fileno()] = client
        self._loop.watch(connection.fileno(), lambda: self._serve(client))
        self._wait_for_clients()

    def _serve(self, client: Client) -> None:
        requests = client.requests()
        if requests is None or self._leaving:
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
                client.reply({"pid": self._holder_pid})
            case "base":
                self.store.register_base(request["id"])
                client.reply({})
            case "register":
                self.store.register_snapshot(request["row"])
                client.reply({})
            case "create":
                self._create(request)
                client.reply({})
                self._refill()
            case "branches":
                client.reply({"names": sorted(self.store.named)})
            case "snapshot":
                client.reply({"snapshot": self.store.held(request["id"]).snapshot})
            case "pin":
                self._kept.pinned = True
                client.reply({"pid": self._holder_pid})
            case "stop":
                self._stopping.append(client)
                self.leave()
            case "cap":
                self.store.space.limit(request["bytes"])
                self._kept.cap_bytes = request["bytes"]
                client.reply({})
            case "gc":
                client.reply({"freed": collect(self.store, request["keep"])})
            case "drop":
                self._drop(client, request)
            case "freeze" | "hash" | "diff":
                self._settled(client, request["name"], self._ask(request))
            case other:
                raise UsageError(f"unknown request {other!r}", hint="client and daemon differ")

    def _refill(self) -> None:
        """Have logs for the next layers made on the worker thread, when few are left."""
        if wanted := self.store.spares.refill(self.store.catalog.layer):
            self._loop.aside(*wanted)

    def _is_done(self, request: Request) -> bool:
        """Whether a worker that was killed before it could say so has done this already."""
        return request["request"] in self.store.catalog.requests

    def _create(self, request: Request) -> None:
        if not self._is_done(request):
            self._show(self.store.create(**{each: request[each] for each in CREATE}))

    def _show(self, row: Named) -> None:
        load, ended = self._uses(row)
        self.overlay.nodes.add(os.fsencode(row.name), row.number, load, ended)

    def _uses(self, row: Named) -> tuple[Callable[[], Live], Callable[[], None]]:
        """How a branch is loaded, and what is to be done when a dropped one is not used."""
        named = self.store.named.get(row.name) == row
        load = partial(self.store.live, row.name) if named else partial(self.store.load, row)
        return load, partial(self.store.discard_dropped, row.number)

    def _ask(self, request: Request) -> Callable[[], Reply]:
        name = request["name"]

        def freeze() -> Reply:
            if self._is_done(request):
                made = self.store.catalog.requests[request["request"]]
                return {"snapshot": self.store.held(made).snapshot}
            return {"snapshot": self.store.freeze(name, request["request"])}

        def tree_hash() -> Reply:
            return {"tree_hash": hashes.render(self.store.live(name).digest())}

        def diff() -> Reply:
            row = self.store.branch(name)
            old = self.store.view(row.base, row.origin)
            return {"changes": compare.changes(old, self.store.live(name))}

        return {"freeze": freeze, "hash": tree_hash, "diff": diff}[request["op"]]

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

    def _drop(self, client: Client, request: Request) -> None:
        raw = os.fsencode(request["name"])
        if not self._is_done(request):
            self.store.drop(request["name"], request["request"])
            self.overlay.nodes.remove(raw)
        # Only then may the name mean another branch: the kernel remembers the old one for a day.
        self._loop.aside(lambda: fuse.forget_name(raw), lambda: client.reply({}))


def main(arguments: list[str]) -> int:
    """Serve a store until its last client has gone; returns the exit code."""
    options = _options(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    store = options.store
    for name, value in vars(options).items():
        if name.endswith("_fd") and value is not None:
            os.set_inheritable(value, False)
    if options.clear:
        _clear(store)
        return 0
    _raise_limits()
    try:
        store = prepare(store)
        take_lock(options.lock_fd, store)
        daemon = start(options, store)
    except Exception as error:  # noqa: BLE001 whoever started us gets it
        _log.exception("cannot start")
        _tell(options.ready_fd, {"error": type(error).__name__, **describe(error)})
        return 1
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        fuse.serve()
    finally:
        (store / "control.sock").unlink(missing_ok=True)
        fuse.unmount(store / "mnt")
        daemon.close()
    return 0


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m branchkit.workspace.daemon")
    parser.add_argument("store", type=Path)
    parser.add_argument("--linger-s", type=float, default=30.0)
    parser.add_argument("--lock-fd", type=int, required=True)
    parser.add_argument("--listen-fd", type=int, required=True)
    parser.add_argument("--kept-fd", type=int, required=True)
    parser.add_argument("--holder-fd", type=int)
    parser.add_argument("--ready-fd", type=int, help="only of the first worker")
    parser.add_argument("--fuse-fd", type=int, help="of a mount that is taken over")
    parser.add_argument("--clear", action="store_true", help="only take the mount away")
    return parser.parse_args(arguments)


def start(options: argparse.Namespace, store: Path) -> Daemon:
    """Mount and listen; nothing is answered yet."""
    if options.fuse_fd is None:
        stale.clear(store / "mnt")
    loop, kept = Loop(), Kept(options.kept_fd)
    daemon = Daemon(store, loop, options.linger_s, kept)
    holder = socket.socket(fileno=options.holder_fd)

    def ready() -> None:
        # Not before: what a client asks for may go through libfuse to the kernel, and until now
        # libfuse had another at the end of its line.
        daemon.listen(socket.socket(fileno=options.listen_fd))
        daemon.obey(holder)
        signal.signal(signal.SIGTERM, lambda number, frame: loop.post(daemon.leave))
        _tell(options.ready_fd, {"pid": os.getppid()})
        if options.fuse_fd is not None:
            _log.info("took over")
            daemon.forget_dropped()

    def hold(fd: int) -> None:
        socket.send_fds(holder, [b"hold"], [fd])

    def served() -> None:
        with suppress(ConnectionError):  # the holder has gone: the loop is told of that too
            holder.send(b"served")

    session = Session(kept, hold, daemon.applied, daemon.overlay.forgotten, ready, served)
    try:
        fuse.mount(daemon.overlay, store / "mnt", loop, session, options.fuse_fd)
    except RuntimeError as error:
        _clear(store)
        raise FuseMissing(
            f"{store / 'mnt'} could not be mounted: {error}",
            hint="see daemon.log in the store; `branchkit doctor` tells what FUSE needs",
        ) from error
    gc.freeze()  # records hold no cycles: looking at 50,000 of them again and again is waste
    gc.set_threshold(100_000, 50, 100)
    return daemon


def _clear(store: Path) -> None:
    (store / "control.sock").unlink(missing_ok=True)
    stale.clear(store / "mnt")


def take_lock(fd: int, store: Path) -> None:
    """The store's daemon lock, which the holder has with us; copying workspaces hold it shared."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise WorkspaceError(
            f"{store} is in use without FUSE (copying workspaces)",
            hint="close those workspaces first, or open this one with backend='copy'",
        ) from None


def _raise_limits() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    sys.setrecursionlimit(10_000)  # a directory may be 2,000 deep (PATH_MAX)


def _tell(fd: int | None, value: Reply) -> None:
    if fd is not None:
        os.write(fd, json.dumps(value).encode() + b"\n")
        os.close(fd)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
