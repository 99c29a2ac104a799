"""Ways out of a replay: loops that try to reach the addresses in ``PROBE_TARGETS``.

Each is the recorded loop with one attempt in it, as a harness would have that calls something
beside its session. Imported in the walled-in process, under the name that the test gives.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import http.client
import json
import os
import shutil
import socket
import sqlite3
import struct
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from branchkit.boundary.session import Session

WORD = b"out"


class Targets(NamedTuple):
    """Where somebody listens and counts."""

    tcp4: int
    tcp6: int
    udp4: int
    unix: str
    abstract: str
    folder: str


def targets() -> Targets:
    return Targets(*json.loads(os.environ["PROBE_TARGETS"]))


def _send(family: int, kind: int, address: Any) -> None:
    with socket.socket(family, kind) as one:
        one.connect(address)
        one.send(WORD)


def _tcp4() -> None:
    _send(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", targets().tcp4))


def _create_connection() -> None:
    socket.create_connection(("localhost", targets().tcp4), timeout=0.2).close()


def _tcp6() -> None:
    _send(socket.AF_INET6, socket.SOCK_STREAM, ("::1", targets().tcp6))


def _udp_unconnected() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.sendto(WORD, ("127.0.0.1", targets().udp4))


def _udp_connected() -> None:
    _send(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", targets().udp4))


def _raw() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as one:
        one.sendto(b"\x08\0\0\0" + WORD, ("127.0.0.1", 0))


def _name() -> None:
    socket.getaddrinfo("secret-in-a-name.example.org", 443)


def _unix() -> None:
    _send(socket.AF_UNIX, socket.SOCK_STREAM, targets().unix)


def _abstract() -> None:
    _send(socket.AF_UNIX, socket.SOCK_STREAM, "\0" + targets().abstract)


def _urllib() -> None:
    urllib.request.urlopen(f"http://127.0.0.1:{targets().tcp4}/", timeout=0.2).close()


def _proxy() -> None:
    proxy = urllib.request.ProxyHandler({"http": f"http://127.0.0.1:{targets().tcp4}"})
    urllib.request.build_opener(proxy).open("http://example.org/", timeout=0.2).close()


def _http_client() -> None:
    http.client.HTTPConnection("127.0.0.1", targets().tcp4, timeout=0.2).request("GET", "/")


def _curl() -> None:
    subprocess.run(["curl", "-m0.2", f"http://127.0.0.1:{targets().tcp4}/"], check=False)


_CHILD = "import socket,sys; socket.create_connection(('127.0.0.1', int(sys.argv[1])), 0.2)"


def _python() -> None:
    subprocess.run([sys.executable, "-c", _CHILD, str(targets().tcp4)], check=False)


def _shell() -> None:
    os.system(f"bash -c 'echo out > /dev/tcp/127.0.0.1/{targets().tcp4}'")


def _fork() -> None:
    child = os.fork()
    if child == 0:
        try:
            _tcp4()
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def _posix_spawn() -> None:
    arguments = [sys.executable, "-c", _CHILD, str(targets().tcp4)]
    os.waitpid(os.posix_spawn(sys.executable, arguments, dict(os.environ)), 0)


def _thread() -> None:
    thread = threading.Thread(target=_quietly, args=(_tcp4,))
    thread.start()
    thread.join()


def _quietly(attempt: Callable[[], None]) -> None:
    """As code that swallows everything does it."""
    with contextlib.suppress(BaseException):
        attempt()


def _swallowed() -> None:
    _quietly(_tcp4)


def _asyncio() -> None:
    asyncio.run(_stream())


async def _stream() -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", targets().tcp4)
    writer.write(WORD)


def _async_child() -> None:
    async def go() -> None:
        port = str(targets().tcp4)
        child = await asyncio.create_subprocess_exec(sys.executable, "-c", _CHILD, port)
        await child.wait()

    asyncio.run(go())


def _libc() -> None:
    """Past the interpreter: no audit event tells of this, only the kernel can refuse it."""
    libc = ctypes.CDLL(None)
    fd = libc.socket(socket.AF_INET, socket.SOCK_STREAM, 0)
    address = struct.pack("=HH4s8x", socket.AF_INET, socket.htons(targets().tcp4), b"\x7f\0\0\1")
    libc.connect(fd, address, len(address))
    libc.write(fd, WORD, len(WORD))


def _libc_unix() -> None:
    libc = ctypes.CDLL(None)
    fd = libc.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0)
    path = targets().unix.encode() + b"\0"
    libc.connect(fd, struct.pack("=H", socket.AF_UNIX) + path, 2 + len(path))
    libc.write(fd, WORD, len(WORD))


def _libc_system() -> None:
    """A child that the interpreter does not know of: it inherits the filter and the namespace."""
    command = f"exec 3<>/dev/tcp/127.0.0.1/{targets().tcp4}; echo out >&3"
    ctypes.CDLL(None).system(f"bash -c '{command}' 2>/dev/null".encode())


def _write() -> None:
    Path(targets().folder, "effect").write_text("out")


def _copy() -> None:
    shutil.copyfile(__file__, Path(targets().folder, "effect"))


def _database() -> None:
    sqlite3.connect(Path(targets().folder, "effect")).execute("CREATE TABLE t (a)").close()


def _remove() -> None:
    Path(targets().folder, "kept").unlink()


BEHIND_THE_INTERPRETER = {"libc", "libc_unix", "libc_system"}
PROBES: dict[str, Callable[[], None]] = {
    name.removeprefix("_"): act
    for name, act in list(globals().items())
    if name.startswith("_") and callable(act) and name not in ("_send", "_quietly", "_stream")
}


def attempt(name: str) -> None:
    """One probe without a replay around it; that nobody answers in time is no failure."""
    with contextlib.suppress(OSError):
        PROBES[name]()


def recorded(session: Session) -> str:
    """The loop as it was when the run was recorded."""
    return session.model([session.input({"role": "user", "content": "go"})]).text


def __getattr__(name: str) -> Callable[[Session], str]:
    """``try_NAME``: the loop with an attempt before the model is asked."""
    if not name.startswith("try_"):
        raise AttributeError(name)
    probe = PROBES[name.removeprefix("try_")]

    def loop(session: Session) -> str:
        message = session.input({"role": "user", "content": "go"})
        probe()
        return session.model([message]).text

    return loop
