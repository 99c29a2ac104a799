"""The net of conftest.py catches: a run that leaves a process or a mount fails, and cleans up."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

CONFTEST = Path(__file__).with_name("conftest.py")

LEAVES_A_PROCESS = """
import subprocess
def test_it():
    gone = subprocess.Popen(["sleep", "987.5"], start_new_session=True)
    gone.returncode = 0  # disowned, as a daemon is
"""

LEAVES_NOTHING = """
import subprocess
def test_it():
    subprocess.run(["true"], check=True)
"""


def run_inner(folder: Path, test: str) -> subprocess.CompletedProcess[str]:
    """A run of pytest of its own, under a copy of conftest.py."""
    shutil.copy(CONFTEST, folder / "conftest.py")
    (folder / "test_inner.py").write_text(test, encoding="utf-8")
    # Ours would go down to it; it makes its own, as a run that a person starts does.
    env = {key: value for key, value in os.environ.items() if key != "BRANCHKIT_TEST_RUN"}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "."]
    return subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=60, check=False
    )


def command_lines() -> set[bytes]:
    """What every living process was started with."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it went while we looked
            found.add(path.read_bytes())
    return found


def test_a_process_left_behind_fails_the_run_and_is_ended(tmp_path: Path) -> None:
    ran = run_inner(tmp_path, LEAVES_A_PROCESS)
    assert ran.returncode == 1, ran.stdout
    assert "left behind at the end of the run" in ran.stdout
    assert "sleep 987.5" in ran.stdout
    assert b"sleep\x00987.5\x00" not in command_lines()


def test_a_clean_run_passes(tmp_path: Path) -> None:
    ran = run_inner(tmp_path, LEAVES_NOTHING)
    assert ran.returncode == 0, ran.stdout
