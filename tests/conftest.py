"""What holds for every test: one profile of hypothesis, and nothing left behind at the end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# Two cores are shared with whatever else runs, so no test is judged by the time of one example.
# On CI the examples are the same each time: a red run there is about the change, not about luck.
settings.register_profile("here", deadline=None, print_blob=True)
settings.register_profile("ci", deadline=None, print_blob=True, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")

# Children inherit it, detached ones and grandchildren too: it finds what this run started, and
# never what another run of the same suite is doing at the same moment.
MARK = f"BRANCHKIT_TEST_RUN={uuid.uuid4().hex}"

# How long a process that was already told to go may take to be gone.
GRACE_S = 5.0


def pytest_configure() -> None:
    """Mark this run's environment before anything is started."""
    name, _, value = MARK.partition("=")
    os.environ[name] = value


@pytest.fixture(scope="session", autouse=True)
def nothing_left_behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fails the run, and cleans up, when a process or a mount of it is still there at its end."""
    folder = tmp_path_factory.getbasetemp()
    yield
    deadline = time.monotonic() + GRACE_S
    while (left := processes() | mounts(folder)) and time.monotonic() < deadline:
        time.sleep(0.05)
    if not left:
        return
    for pid in processes():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    for mount in mounts(folder):
        subprocess.run(["fusermount3", "-u", "-z", mount], check=False)
    shown = "\n".join(f"  {name}: {what}" for name, what in sorted(left.items()))
    pytest.fail(f"left behind at the end of the run:\n{shown}", pytrace=False)


def processes() -> dict[str, str]:
    """The living processes that this run started, by pid, with their command lines."""
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or folder.name == str(os.getpid()):
            continue
        # One that goes while it is looked at, or belongs to somebody else, is none of ours.
        with contextlib.suppress(OSError):
            if MARK.encode() in (folder / "environ").read_bytes().split(b"\0"):
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
                found[folder.name] = command.decode(errors="replace").strip()
    return found


def mounts(folder: Path) -> dict[str, str]:
    """What is mounted below ``folder``, by mount point, with its kind."""
    found = {}
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        front, _, back = line.partition(" - ")
        # The kernel writes a blank, a tab, a newline and a backslash of a path as octal escapes.
        point = front.split(" ")[4].encode().decode("unicode_escape")
        if point.startswith(f"{folder}{os.sep}"):
            found[point] = f"mount ({back.split(' ')[0]})"
    return found
