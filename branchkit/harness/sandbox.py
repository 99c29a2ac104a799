"""A sandbox for one branch: its tool server in one persistent bubblewrap.

Inside, only the workspace is writable and it is always called /workspace; there is no network, no
home directory, no variable of ours, a fresh /tmp and a process table of its own. The program is
``toolbox.py``; this side sends it one JSON line per call over a socket.

``isolated=False`` runs the same server unconfined in the real directory, with the same fixed
environment; the directory's path is replaced by /workspace in every output, so that a branch's
place on disk does not make it differ. Tools can then reach everything that you can.

There is no seccomp filter: dropped capabilities, no new privileges, no nested user namespaces and
no network are what stands between a tool and the kernel.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
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
from branchkit.harness.standard_tools import WORKSPACE
from branchkit.harness.tools import JSON, STANDARD, ToolOutcome, ToolSchema
from branchkit.process import Child, spawn

START_TIMEOUT_S = 30.0
ANSWER_GRACE_S = 10.0  # what the server may take beyond a call's own limit to kill and answer

_PACKAGE = Path(__file__).resolve().parents[1]
_LIBRARY = "/opt/branchkit"  # constant, so that a traceback inside names no path of this machine
_SERVER = (
    "import sys; sys.path.insert(0, sys.argv[1]);from branchkit.harness.toolbox import main; main()"
)
_USER = "agent:x:1000:1000:agent:/tmp:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"
_GROUP = "agent:x:1000:\nnogroup:x:65534:\n"
_ETC = ("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "nsswitch.conf", "ssl/certs")
_SYSTEM = ("bin", "lib", "lib32", "lib64", "libx32", "sbin")
_TMP_BYTES = 1 << 30
_INSTALL = "apt-get install bubblewrap, or --no-sandbox to run tools unconfined"


class CheckOutcome(NamedTuple):
    """How a check command ended: ``exit_code`` is None if it ran out of time or was aborted."""

    exit_code: int | None
    output: str


class Probe(NamedTuple):
    """Whether bubblewrap works here; if not, what it said and what to do."""

    ok: bool
    detail: str
    remedy: str


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
    ) -> None:
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
        self._server: _Server | None = None
        self.schemas: list[ToolSchema] = msgspec.convert(self._running().schemas, list[ToolSchema])

    def call(
        self,
        name: str,
        arguments: Mapping[str, JSON],
        *,
        env: Mapping[str, str] = {},
        timeout_s: float = 60.0,
    ) -> ToolOutcome:
        """What the tool answered. An invalid call is an ``error``, a dead server ``aborted``.

        After ``aborted`` the workspace may hold a part of what the call did; the next call starts
        a new server. ``env`` is added to the fixed environment for this call.
        """
        request = {"call": name, "arguments": dict(arguments), "env": dict(env)}
        return self._request({**request, "timeout_s": timeout_s}, timeout_s)

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
            server = self._running()
            try:
                answer = server.exchange(message, timeout_s + ANSWER_GRACE_S)
            except (OSError, EOFError):  # TimeoutError is an OSError: it hangs, so it is dropped
                self._drop()
                return ToolOutcome("aborted", "[the tool server died during this call]")
            except BaseException:
                self._drop()  # an interrupt: the answer to come would be taken for the next one's
                raise
        return ToolOutcome(answer["status"], self._same(answer["text"]), answer["exit_code"])

    def _running(self) -> _Server:
        if self._closed:
            raise ToolError("this sandbox is closed")
        if self._server is not None and self._server.child.poll() is not None:
            self._drop()  # it died between two calls: nothing is lost
        if self._server is None:
            self._server = _Server(self.workspace, self.isolated, self._first)
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

    def __init__(self, workspace: Path, isolated: bool, first: dict[str, Any]) -> None:
        self._stderr = tempfile.TemporaryFile()
        self._socket, theirs = socket.socketpair()
        self._buffer = bytearray()
        try:
            with theirs:
                self.child = _start(workspace, isolated, theirs, self._stderr)
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
            answer = self.exchange(first, START_TIMEOUT_S)
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

    def exchange(self, message: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """The answer to one message; OSError or EOFError if the server is gone or hangs."""
        deadline = time.monotonic() + timeout_s
        self._socket.settimeout(timeout_s)
        self._socket.sendall(json.dumps(message).encode("ascii") + b"\n")
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


def probe() -> Probe:
    """Whether a sandbox can be made here, found by making one."""
    if _bwrap() is None:
        return Probe(False, "bubblewrap (bwrap) is not installed", _INSTALL)
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryFile() as said,
        _spawn_confined(Path(folder), ["/bin/sh", "-c", ":"], None, said) as child,
    ):
        try:
            code = child.wait(START_TIMEOUT_S)
        except TimeoutError:
            return Probe(False, f"bwrap did not end within {START_TIMEOUT_S:g} s", _INSTALL)
        said.seek(0)
        detail = said.read().decode("utf-8", "replace").strip()
    if code == 0:
        return Probe(True, f"{_bwrap()} works", "")
    return Probe(False, detail or f"bwrap ended with exit code {code}", _remedy(detail))


def _remedy(detail: str) -> str:
    if "uid map" in detail or "user namespace" in detail or "Operation not permitted" in detail:
        return (
            "unprivileged user namespaces are switched off here. Ubuntu 24.04: sysctl -w "
            "kernel.apparmor_restrict_unprivileged_userns=0, or an AppArmor profile for bwrap that "
            "allows userns; in a container: run it with --security-opt seccomp=unconfined "
            "--cap-add SYS_ADMIN. Or --no-sandbox to run tools unconfined"
        )
    return _INSTALL


def _bwrap() -> str | None:
    """Where bubblewrap is; BRANCHKIT_NO_BWRAP=1 pretends that it is missing."""
    return None if os.environ.get("BRANCHKIT_NO_BWRAP") == "1" else shutil.which("bwrap")


def _start(workspace: Path, isolated: bool, connection: socket.socket, said: IO[bytes]) -> Child:
    library = _LIBRARY if isolated else str(_PACKAGE.parent)
    # -P and -s, not -I: the hash seed of the environment has to count.
    argv = [sys.executable, "-s", "-P", "-c", _SERVER, library]
    if isolated:
        return _spawn_confined(workspace, argv, connection, said)
    fd = connection.fileno()
    return spawn(argv, env=_environment(), cwd=workspace, stdin=fd, stdout=fd, stderr=said)


def _spawn_confined(
    workspace: Path, argv: Sequence[str], connection: socket.socket | None, said: IO[bytes]
) -> Child:
    program = _bwrap()
    if program is None:
        raise SandboxMissing("bubblewrap (bwrap) is not installed", hint=_INSTALL)
    stream = subprocess.DEVNULL if connection is None else connection.fileno()
    with _memory_file(_USER) as user, _memory_file(_GROUP) as group:
        data = {"/etc/passwd": user.fileno(), "/etc/group": group.fileno()}
        options = "".join(f"{word}\0" for word in _options(workspace, data))
        # Options go by descriptor: /proc/1/cmdline inside would tell the workspace's real path.
        with _memory_file(options) as file:
            return spawn(
                [program, "--args", str(file.fileno()), "--", *argv],
                env=_environment(),  # bwrap's own environment can be read inside: /proc/1/environ
                stdin=stream,
                stdout=stream,
                stderr=said,
                pass_fds=(file.fileno(), *data.values()),
            )


def _options(workspace: Path, data: Mapping[str, int]) -> list[str]:
    words = ["--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent"]
    words += ["--new-session", "--uid", "1000", "--gid", "1000", "--cap-drop", "ALL"]
    words += ["--hostname", "sandbox", "--proc", "/proc", "--dev", "/dev"]
    words += ["--size", str(_TMP_BYTES), "--tmpfs", "/tmp", "--ro-bind", "/usr", "/usr"]
    for name in _SYSTEM:
        path = f"/{name}"
        if os.path.islink(path):
            words += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            words += ["--ro-bind", path, path]
    for name in _ETC:
        words += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    for path, fd in data.items():
        words += ["--ro-bind-data", str(fd), path]
    for path in _interpreter_paths():
        words += ["--ro-bind", path, path]
    words += ["--ro-bind", str(_PACKAGE), f"{_LIBRARY}/branchkit"]
    words += ["--symlink", "/tmp", "/var/tmp"]
    words += ["--bind", str(workspace), WORKSPACE, "--chdir", WORKSPACE]
    return [*words, "--remount-ro", "/"]  # or /etc and the like could be written in memory


def _interpreter_paths() -> list[str]:
    """What the running Python needs beyond /usr, wherever it lies, also below a home directory."""
    prefixes = (sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix)
    paths = {form for path in prefixes for form in (path, os.path.realpath(path))}
    return sorted(path for path in paths if path != "/usr" and not path.startswith("/usr/"))


def _environment() -> dict[str, str]:
    """All the variables that tools see: the same in every branch, none of them ours."""
    return {
        "PATH": f"/usr/local/bin:/usr/bin:/bin:{sys.prefix}/bin",
        "HOME": "/tmp",
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "safe.directory",  # the workspace's owner is mapped
        "GIT_CONFIG_VALUE_0": "*",
    }


def _memory_file(text: str) -> IO[bytes]:
    file = os.fdopen(os.memfd_create("branchkit"), "w+b")
    file.write(text.encode("utf-8", "surrogateescape"))
    file.seek(0)
    return file
