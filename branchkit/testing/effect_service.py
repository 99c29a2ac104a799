"""An HTTP service that counts effects, for experiments with crashes: what happened, not what a
client believes happened.

    with EffectService(folder / "effects.sqlite", contract="keyed") as service:
        receipt = perform(service.url, "order-17", key="k-1")
        service.switch(lose_replies=1)       # the next effect is done and its reply never comes
    print(audit(folder / "effects.sqlite"))  # Audit(rows=1, operations=1, repeated={})

Every effect is one row in SQLite, committed before the reply (``effect_rows``). Two contracts:
``plain``: each POST is an effect. ``keyed``: the key, the effect and its receipt are one
transaction; a repeat is answered with the old receipt, and other parameters under a known key with
422. With ``probe=True`` it can be asked what became of an operation.

    POST /effects             {"operation": NAME, "parameters": {...}}, Idempotency-Key, Bearer
                              201 {"receipt"} · 200 a repeat · 202 queued · 400 · 403 · 422
    GET  /effects/NAME        {"state": "done" | "queued" | "absent", "receipt"} · 403 · 404
    PUT  /switches            {SWITCH: VALUE, ...}
    POST /queue/deliver       {"delivered": N}

It listens on a free port of the loopback interface, in a thread or, with ``in_process=True``, in a
process of its own, which then survives what kills its clients and can be killed itself.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple
from urllib.parse import unquote

from branchkit.errors import BranchkitError, UsageError
from branchkit.process import Child, spawn
from branchkit.testing.effect_client import Refused, ask, perform, probe
from branchkit.testing.effect_rows import Audit, Effect, Rows, audit, effects, write_csv

__all__ = [
    "Audit", "Contract", "Effect", "EffectService", "Refused", "Switches", "audit", "effects",
    "perform", "probe", "write_csv",
]  # fmt: skip

Contract = Literal["plain", "keyed"]


class Switches(NamedTuple):
    """What goes wrong. Counts are used up one a request; the rest holds until it is changed."""

    lose_replies: int = 0  # the effect is done, the connection is cut
    drop_requests: int = 0  # the connection is cut, nothing is done: a client sees the same
    die_after_commit: int = 0  # the service kills itself after the COMMIT (in_process only)
    delay_s: float = 0.0  # between the COMMIT and the reply
    queued: bool = False  # accepted with 202; an effect only once it is delivered
    key_lifetime_s: float | None = None  # None: keys are kept for ever
    clock_s: float = 0.0  # the service's clock, which moves only when it is set
    expired: tuple[str, ...] = ()  # tokens that may still read, but not act
    revoked: tuple[str, ...] = ()  # tokens that may do neither


class EffectService:
    """The service from ``with`` to the end of the block; a second one may go on with ``db``."""

    def __init__(
        self,
        db: Path | str,
        *,
        contract: Contract = "plain",
        probe: bool = False,
        in_process: bool = False,
    ) -> None:
        self.db = Path(db)
        self._options = (contract, probe)
        self._in_process = in_process
        self._running: _Thread | _Process | None = None
        self.url = ""

    def switch(self, **switches: Any) -> None:
        """Set some of ``Switches``; the others stay. In force when this returns.

        Raises UsageError for ``die_after_commit`` in a thread: the process to die is the caller's.
        """
        if switches.get("die_after_commit") and not self._in_process:
            raise UsageError(
                "a service in a thread cannot kill itself alone", hint="in_process=True"
            )
        ask("PUT", f"{self.url}/switches", switches)

    def deliver(self) -> int:
        """Make effects of what is queued; returns how many there were."""
        return int(ask("POST", f"{self.url}/queue/deliver", {})["delivered"])

    def audit(self) -> Audit:
        """What the rows say now."""
        return audit(self.db)

    def start(self) -> EffectService:
        """Begin to serve, on another port each time."""
        contract, may_ask = self._options
        if self._in_process:
            self._running = _Process(self.db, contract, may_ask)
        else:
            self._running = _Thread(self.db, contract, may_ask)
        self.url = self._running.url
        return self

    def close(self) -> None:
        """Stop serving; the rows stay. A second call does nothing."""
        if self._running is not None:
            self._running.close()
            self._running = None

    def __enter__(self) -> EffectService:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class _Thread:
    def __init__(self, db: Path, contract: Contract, may_ask: bool) -> None:
        self._server = _Server(db, contract, may_ask)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.url = self._server.url

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.end()


class _Process:
    def __init__(self, db: Path, contract: Contract, may_ask: bool) -> None:
        argv = [sys.executable, "-m", "branchkit.testing.effect_service", str(db)]
        argv += ["--contract", contract, *(["--probe"] if may_ask else [])]
        self._child: Child = spawn(argv, stdout=subprocess.PIPE)
        assert self._child.stdout is not None
        self.url = self._child.stdout.readline().decode().strip()
        if not self.url:
            self.close()
            raise BranchkitError(f"no service came up for {db.name}", hint="see its stderr above")

    def close(self) -> None:
        self._child.__exit__()


class _Server(ThreadingHTTPServer):
    # One that was killed in the middle of its request must not keep the service from ending.
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, db: Path, contract: Contract, may_ask: bool) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.rows = Rows(db)
        self.contract, self.may_ask = contract, may_ask
        self.switches = Switches()
        self.switching = threading.Lock()
        self.ended = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}"

    def use_up(self, name: str) -> bool:
        """Whether the counted switch ``name`` is on for this request."""
        with self.switching:
            left = getattr(self.switches, name)
            if left:
                self.switches = self.switches._replace(**{name: left - 1})
            return bool(left)

    def end(self) -> None:
        self.ended.set()
        self.server_close()
        self.rows.close()


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_POST(self) -> None:
        body = self._body()
        if self.path == "/queue/deliver":
            self._reply(200, {"delivered": self.server.rows.deliver()})
        elif self.server.use_up("drop_requests"):
            self._cut()
        else:
            self._reply_to_effect(*self._perform(body))

    def do_PUT(self) -> None:
        wanted: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in self._body().items()
        }
        if unknown := sorted(set(wanted) - set(Switches._fields)):
            self._reply(400, {"error": f"no such switch: {', '.join(unknown)}"})
            return
        with self.server.switching:
            self.server.switches = self.server.switches._replace(**wanted)
        self._reply(200, {})

    def do_GET(self) -> None:
        if not self.server.may_ask:
            self._reply(404, {"error": "this service does not tell what became of an operation"})
        elif self._token() in self.server.switches.revoked:
            self._reply(403, {"error": "this authority is revoked"})
        else:
            state, receipt = self.server.rows.state(unquote(self.path.rpartition("/")[2]))
            self._reply(200, {"state": state, "receipt": receipt})

    def _perform(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        server, switches = self.server, self.server.switches
        if self._token() in (*switches.expired, *switches.revoked):
            return 403, {"error": "this authority has expired"}
        operation, key = body.get("operation"), self.headers.get("idempotency-key")
        if not isinstance(operation, str):
            return 400, {"error": "an effect names its operation"}
        parameters = json.dumps(body.get("parameters", {}), sort_keys=True)
        if server.contract == "plain":
            done = server.rows.plain(operation, key, parameters, queued=switches.queued)
        elif key is None:
            return 400, {"error": "this service needs an Idempotency-Key"}
        else:
            done = server.rows.keyed(
                operation,
                key,
                parameters,
                queued=switches.queued,
                clock_s=switches.clock_s,
                lifetime_s=switches.key_lifetime_s,
            )
        if done.receipt is None:
            return 422, {"error": "this key was used with other parameters"}
        status = 200 if done.repeated else 202 if switches.queued else 201
        return status, {"receipt": done.receipt, "repeated": done.repeated}

    def _reply_to_effect(self, status: int, answer: dict[str, Any]) -> None:
        if self.server.use_up("die_after_commit"):
            os.kill(os.getpid(), signal.SIGKILL)
        if self.server.switches.delay_s:
            self.server.ended.wait(self.server.switches.delay_s)
        if self.server.use_up("lose_replies"):
            self._cut()
        else:
            self._reply(status, answer)

    def _body(self) -> dict[str, Any]:
        length = int(self.headers.get("content-length", 0))
        parsed: dict[str, Any] = json.loads(self.rfile.read(length) or b"{}")
        return parsed

    def _token(self) -> str:
        return self.headers.get("authorization", "").removeprefix("Bearer ")

    def _cut(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def _reply(self, status: int, answer: dict[str, Any]) -> None:
        data = json.dumps(answer).encode()
        try:
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        except ConnectionError:
            # The client was killed while it waited: that is what this service is for.
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Nothing: the rows are the log, and a test's stderr stays readable."""


def main(argv: list[str] | None = None) -> None:
    """Serve until killed; the first line on stdout is the URL."""
    parser = argparse.ArgumentParser(description="count effects in SQLite over HTTP")
    parser.add_argument("db", type=Path)
    parser.add_argument("--contract", choices=("plain", "keyed"), default="plain")
    parser.add_argument("--probe", action="store_true")
    wanted = parser.parse_args(argv)
    server = _Server(wanted.db, wanted.contract, wanted.probe)
    sys.stdout.write(f"{server.url}\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    main()
