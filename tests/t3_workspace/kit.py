"""What the workspace tests share: git as a fixed person, pictures of trees, daemons by store."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from branchkit.workspace import Workspaces

Open = Callable[..., Workspaces]

# `make test-fs` sets it; without, the long loads are samples.
FULL = os.environ.get("BRANCHKIT_TEST_FS") == "full"


def daemons(folder: Path) -> list[int]:
    """Pids of the holders and workers that serve a store below ``folder``."""
    found = []
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = line.read_bytes().split(b"\0")
        except OSError:
            continue  # it has just gone
        if b"--kept-fd" in words and os.fsencode(folder) in b"\0".join(words):
            found.append(int(line.parent.name))
    return found


def worker(ws: Workspaces) -> int:
    """The pid of the worker that serves ``ws`` now: a child of the holder."""
    holder = ws.pin()
    (pid,) = Path(f"/proc/{holder}/task/{holder}/children").read_text().split()
    return int(pid)


def kill_daemon(ws: Workspaces, folder: Path) -> None:
    """SIGKILL holder and worker; returns when nothing serves a store below ``folder``."""
    both = [ws.pin(), worker(ws)]
    # Stopped first: a worker that outlives its holder by a moment would unmount in an orderly way.
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in both:
            os.kill(pid, number)
    deadline_s = time.monotonic() + 20
    while daemons(folder) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert daemons(folder) == []


def requests(ws: Workspaces, call: Callable[[], object]) -> int:
    """How many requests of the kernel the daemon reads while ``call`` runs."""
    trace = ["strace", "-f", "-e", "trace=read,splice", "-p", str(worker(ws))]
    with subprocess.Popen(trace, stderr=subprocess.PIPE, text=True) as tracer:
        assert tracer.stderr is not None
        assert "attached" in tracer.stderr.readline()
        call()
        tracer.terminate()
        calls = tracer.stderr.read().splitlines()
    return len([line for line in calls if " = " in line and "-1 E" not in line])


def git(directory: Path, *arguments: str) -> str:
    """What git says, as a fixed person at a fixed time."""
    when = "2026-01-01T00:00:00Z"
    person = {"NAME": "a", "EMAIL": "a@example.org", "DATE": when}
    env = {f"GIT_{role}_{k}": v for role in ("AUTHOR", "COMMITTER") for k, v in person.items()}
    command = ["git", *arguments]
    done = subprocess.run(
        command,
        cwd=directory,
        env={**os.environ, **env, "GIT_CONFIG_GLOBAL": "/dev/null"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


def picture(root: Path) -> dict[str, tuple[object, ...]]:
    """Everything that a byte-identical copy of a tree must have, by path."""
    seen: dict[int, str] = {}
    found: dict[str, tuple[object, ...]] = {}
    for path in [root, *sorted(root.rglob("*"))]:
        info = path.lstat()
        name = str(path.relative_to(root))
        content: object = None
        if stat.S_ISLNK(info.st_mode):
            content = os.readlink(path)
        elif stat.S_ISREG(info.st_mode):
            content = path.read_bytes()
        names = os.listxattr(path, follow_symlinks=False)
        xattrs = {n: os.getxattr(path, n, follow_symlinks=False) for n in sorted(names)}
        twin = "" if stat.S_ISDIR(info.st_mode) else seen.setdefault(info.st_ino, name)
        found[name] = (oct(info.st_mode), info.st_mtime_ns, content, str(xattrs), twin)
    return found
