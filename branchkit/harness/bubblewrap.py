"""Bubblewrap: a confined process with one writable folder, and whether this machine can do it.

Inside: /workspace (writable), /usr and the running Python (read-only), fresh /tmp, /proc and /dev,
an /etc of a few harmless files. No network, no home directory, no variable that is not in
``fixed_environment``. Nothing names the workspace's real place, so outputs do not depend on it.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, NamedTuple

from branchkit.errors import SandboxMissing
from branchkit.harness import seccomp
from branchkit.harness.standard_tools import WORKSPACE
from branchkit.process import Child, spawn

PROBE_TIMEOUT_S = 30.0
PACKAGE = Path(__file__).resolve().parents[1]
LIBRARY = "/opt/branchkit"  # constant, so that a traceback inside names no path of this machine
_USER = b"agent:x:1000:1000:agent:/tmp:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"
_GROUP = b"agent:x:1000:\nnogroup:x:65534:\n"
_ETC = ("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "nsswitch.conf", "ssl/certs")
_SYSTEM = ("bin", "lib", "lib32", "lib64", "libx32", "sbin")
_TMP_BYTES = 1 << 30
_INSTALL = "apt-get install bubblewrap, or --no-sandbox to run tools unconfined"


class Probe(NamedTuple):
    """Whether bubblewrap works here; if not, what it said and what to do."""

    ok: bool
    detail: str
    remedy: str


def probe() -> Probe:
    """Whether a sandbox can be made here, found by making one."""
    if _bwrap() is None:
        return Probe(False, "bubblewrap (bwrap) is not installed", _INSTALL)
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryFile() as said,
        spawn_confined(Path(folder), ["/bin/sh", "-c", ":"], None, said) as child,
    ):
        try:
            code = child.wait(PROBE_TIMEOUT_S)
        except TimeoutError:
            return Probe(False, f"bwrap did not end within {PROBE_TIMEOUT_S:g} s", _INSTALL)
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


def spawn_confined(
    workspace: Path, argv: Sequence[str], connection: socket.socket | None, said: IO[bytes]
) -> Child:
    """``argv`` running in a new sandbox, with ``connection`` as its stdin and stdout."""
    program = _bwrap()
    if program is None:
        raise SandboxMissing("bubblewrap (bwrap) is not installed", hint=_INSTALL)
    stream = subprocess.DEVNULL if connection is None else connection.fileno()
    with ExitStack() as stack:

        def memory(data: bytes) -> int:
            return stack.enter_context(_memory_file(data)).fileno()

        data = {"/etc/passwd": memory(_USER), "/etc/group": memory(_GROUP)}
        words = _options(workspace, data)
        filters = [memory(code)] if (code := seccomp.program(seccomp.ESCAPES)) else []
        words += [word for fd in filters for word in ("--seccomp", str(fd))]
        # Options go by descriptor: /proc/1/cmdline inside would tell the workspace's real path.
        options = memory(b"".join(os.fsencode(word) + b"\0" for word in words))
        return spawn(
            [program, "--args", str(options), "--", *argv],
            env=fixed_environment(),  # for bwrap too: inside it is /proc/1/environ
            stdin=stream,
            stdout=stream,
            stderr=said,
            pass_fds=(options, *filters, *data.values()),
        )


def _options(workspace: Path, data: Mapping[str, int]) -> list[str]:
    words = ["--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent"]
    words += ["--new-session", "--uid", "1000", "--gid", "1000", "--cap-drop", "ALL"]
    words += ["--hostname", "sandbox", "--proc", "/proc", "--dev", "/dev"]
    words += ["--size", str(_TMP_BYTES), "--tmpfs", "/tmp", "--ro-bind", "/usr", "/usr"]
    for name in _SYSTEM:
        path = Path("/", name)
        if path.is_symlink():  # merged /usr
            words += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            words += ["--ro-bind", str(path), str(path)]
    for name in _ETC:
        words += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    for target, fd in data.items():
        words += ["--ro-bind-data", str(fd), target]
    for prefix in _interpreter_paths():
        words += ["--ro-bind", prefix, prefix]
    words += ["--ro-bind", str(PACKAGE), f"{LIBRARY}/branchkit"]
    words += ["--symlink", "/tmp", "/var/tmp"]
    words += ["--bind", str(workspace), WORKSPACE, "--chdir", WORKSPACE]
    return [*words, "--remount-ro", "/"]  # or /etc and the like could be written in memory


def _interpreter_paths() -> list[str]:
    """What the running Python needs beyond /usr, wherever it lies, also below a home directory."""
    prefixes = (sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix)
    paths = {form for path in prefixes for form in (path, os.path.realpath(path))}
    return sorted(path for path in paths if path != "/usr" and not path.startswith("/usr/"))


def fixed_environment() -> dict[str, str]:
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


def _memory_file(data: bytes) -> IO[bytes]:
    file = os.fdopen(os.memfd_create("branchkit"), "w+b")
    file.write(data)
    file.seek(0)
    return file
