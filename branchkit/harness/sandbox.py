"""A sandbox for one branch: its tool server in one persistent bubblewrap.

Inside, only the workspace is writable and it is always called /workspace; there is no network, no
home directory, no variable of ours, a fresh /tmp and a process table of its own. The program is
``toolbox.py``; this side sends it one JSON line per call over a socket.

``isolated=False`` runs the same server unconfined in the real directory, with the same fixed
environment; the directory's path is replaced by /workspace in every output, so that a branch's
place on disk does not make it differ. Tools can then reach everything that you can.

Between a tool and the kernel stand dropped capabilities, no new privileges, no nested namespaces,
no network, and a filter of system calls (`seccomp`; not on processors that it does not know).
"""

from __future__ import annotations

import json
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple

import msgspec

from branchkit.errors import SandboxMissing, ToolError, UsageError
from branchkit.harness.bubblewrap import (
    LIBRARY,
    PACKAGE,
    fixed_environment,
    spawn_confined,
)
from branchkit.harness.bubblewrap import Probe as Probe
from branchkit.harness.bubblewrap import probe as probe
from branchkit.harness.standard_tools import WORKSPACE
from branchkit.harness.tools import JSON, STANDARD, ProbeAnswer, ToolOutcome, ToolSchema
from branchkit.process import Child, spawn

START_TIMEOUT_S = 30.0
ANSWER_GRACE_S = 10.0  # what the server may take beyond a call's own limit to kill and answer

_SERVER = (
    "import sys; sys.path.insert(0, sys.argv[1]);from branchkit.harness.toolbox import main; main()"
)


class CheckOutcome(NamedTuple):
    """How a check command ended: ``exit_code`` is None if it ran out of time or was aborted."""

    exit_code: int | None
    output: str


class Sandbox:
    """The tools of one branch, in their own confined process; ``schemas`` describes them.

    Raises SandboxMissing where bubblewrap does not work, UsageError if ``tools_source`` is no tools
    module, ToolError if the server cannot be started. Calls from several threads take turns.
    """

    def __init__(
        self,
        workspace: Path,
        *,
        isolated: bool = True,
        tools_source: str | None = None,
        standard: Sequence[str] = STANDARD,
        held_fd: int | None = None,
    ) -> None:
        """``held_fd`` is a lock that an unconfined server holds too, as long as it lives."""
        self.workspace = workspace.resolve(strict=True)
        self.isolated = isolated
        self._spoken_paths = {str(self.workspace), str(workspace.absolute())} - {"/"}
        self._first = {
            "tools_source": tools_source,
            "standard": list(standard),
            "workspace": WORKSPACE if isolated else str(self.workspace),
            "sandboxed": isolated,
        }
        self._lock = threading.Lock()
        self._closed = False
        self._held_fd = held_fd
        self._server: _Server | None = None
        self.schemas: list[ToolSchema] = msgspec.convert(self._running().schemas, list[ToolSchema])

    def call(
        self,
        name: str,
        arguments: Mapping[str, JSON],
        *,
        key: str = "",
        env: Mapping[str, str] = {},
        timeout_s: float = 60.0,
    ) -> ToolOutcome:
        """What the tool answered. An invalid call is an ``error``, a dead server ``aborted``.

        After ``aborted`` the workspace may hold a part of what the call did; the next call starts
        a new server. ``env`` is added to the fixed environment for this call; ``key`` is for
        tools that take one.
        """
        request = {"call": name, "arguments": dict(arguments), "key": key, "env": dict(env)}
        return self._request({**request, "timeout_s": timeout_s}, timeout_s)

    def probe(
        self,
        name: str,
        arguments: Mapping[str, JSON],
        key: str,
        *,
        env: Mapping[str, str] = {},
        timeout_s: float = 60.0,
    ) -> ProbeAnswer:
        """What the tool's probe sees of a call in doubt; ``unknown`` whenever it cannot tell."""
        request = {"probe": name, "arguments": dict(arguments), "key": key, "env": dict(env)}
        outcome = self._request({**request, "timeout_s": timeout_s}, timeout_s)
        if outcome.status != "completed":
            return ProbeAnswer("unknown", outcome.text)
        return msgspec.json.decode(outcome.text, type=ProbeAnswer)

    def check(
        self, command: str, *, env: Mapping[str, str] = {}, timeout_s: float = 60.0
    ) -> CheckOutcome:
        """How ``sh -c command`` ends in the workspace, with its output."""
        request = {"check": command, "env": dict(env), "timeout_s": timeout_s}
        outcome = self._request(request, timeout_s)
        return CheckOutcome(outcome.exit_code, outcome.text)

    def close(self) -> None:
        """Stop the server and everything in it; further calls raise ToolError."""
        with self._lock:
            self._closed = True
            self._drop()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def server_pid(self) -> int | None:
        """The pid of the confined program, for tests that kill it."""
        return None if self._server is None else self._server.child.pid

    def _request(self, message: dict[str, Any], timeout_s: float) -> ToolOutcome:
        with self._lock:
            try:
                answer = self._sent(message).receive(timeout_s + ANSWER_GRACE_S)
            except (OSError, EOFError):  # TimeoutError is an OSError: it hangs, so it is dropped
                self._drop()
                return ToolOutcome("aborted", "[the tool server died during this call]")
            except BaseException:
                self._drop()  # an interrupt: the answer to come would be taken for the next one's
                raise
        return ToolOutcome(answer["status"], self._same(answer["text"]), answer["exit_code"])

    def _sent(self, message: dict[str, Any]) -> _Server:
        """The server that has got ``message``: a new one if the old one died between two calls."""
        server = self._running()
        try:
            server.send(message)
        except BrokenPipeError:
            # It never read the whole line, so nothing of the call was done: it can be sent again.
            self._drop()
            server = self._running()
            server.send(message)
        return server

    def _running(self) -> _Server:
        if self._closed:
            raise ToolError("this sandbox is closed")
        if self._server is not None and self._server.child.poll() is not None:
            self._drop()  # it died between two calls: nothing is lost
        if self._server is None:
            self._server = _Server(self.workspace, self.isolated, self._first, self._held_fd)
        return self._server

    def _drop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()

    def _same(self, text: str) -> str:
        """``text`` with the workspace's real place written /workspace (needed unconfined only)."""
        if not self.isolated:
            for path in sorted(self._spoken_paths, key=len, reverse=True):
                text = text.replace(path, WORKSPACE)
        return text


class _Server:
    """One run of the tool server; ``schemas`` is what it said first."""

    def __init__(
        self, workspace: Path, isolated: bool, first: dict[str, Any], held_fd: int | None
    ) -> None:
        # For what it says when it cannot start; close() or a failed start closes it.
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115
        self._socket, theirs = socket.socketpair()
        self._buffer = bytearray()
        try:
            with theirs:
                self.child = _start(workspace, isolated, theirs, self._stderr, held_fd)
        except BaseException:
            self._socket.close()
            self._stderr.close()
            raise
        try:
            self.schemas = self._greet(first, isolated)
        except BaseException:
            self.close()
            raise

    def _greet(self, first: dict[str, Any], isolated: bool) -> list[dict[str, Any]]:
        try:
            self.send(first)
            answer = self.receive(START_TIMEOUT_S)
        except (OSError, EOFError):
            self.child.stop()
            self._stderr.seek(0)
            said = self._stderr.read().decode("utf-8", "replace").strip()
            if isolated and not (found := probe()).ok:
                raise SandboxMissing(found.detail, hint=found.remedy) from None
            raise ToolError(f"the tool server did not start: {said[-500:]}") from None
        if "refused" in answer:
            raise UsageError(answer["refused"])
        schemas: list[dict[str, Any]] = answer["schemas"]
        return schemas

    def send(self, message: dict[str, Any]) -> None:
        """Hand over one message; BrokenPipeError if the server is gone and has not got it."""
        self._socket.settimeout(START_TIMEOUT_S)
        self._socket.sendall(json.dumps(message).encode("ascii") + b"\n")

    def receive(self, timeout_s: float) -> dict[str, Any]:
        """The answer to it; OSError or EOFError if the server died or hangs."""
        deadline = time.monotonic() + timeout_s
        while not self._buffer.endswith(b"\n"):
            self._socket.settimeout(max(0.001, deadline - time.monotonic()))
            part = self._socket.recv(1 << 20)
            if not part:
                raise EOFError
            self._buffer += part
        answer: dict[str, Any] = json.loads(self._buffer)
        self._buffer.clear()
        return answer

    def close(self) -> None:
        self._socket.close()  # the server ends by itself at the end of its input
        try:
            self.child.stop(grace_s=0.5)
        finally:
            self._stderr.close()


def _start(
    workspace: Path,
    isolated: bool,
    connection: socket.socket,
    said: IO[bytes],
    held_fd: int | None,
) -> Child:
    library = LIBRARY if isolated else str(PACKAGE.parent)
    # -P and -s, not -I: the hash seed of the environment has to count.
    argv = [sys.executable, "-s", "-P", "-c", _SERVER, library]
    if isolated:
        return spawn_confined(workspace, argv, connection, said)
    fd = connection.fileno()
    return spawn(
        argv,
        env=fixed_environment(),
        cwd=workspace,
        stdin=fd,
        stdout=fd,
        stderr=said,
        pass_fds=[] if held_fd is None else [held_fd],
    )
