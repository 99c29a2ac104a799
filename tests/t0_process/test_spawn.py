"""A child that is started by spawn leaves nothing behind, however it or its parent ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from living import all_end, marked, parent_of

from branchkit.errors import ToolError
from branchkit.process import spawn
from branchkit.supervise import descendants

# A family of three: the shell, a child in its group, a child that left its session.
FAMILY = "setsid sleep {0} & sleep {0} & echo ready; wait"


@pytest.fixture
def marker() -> Iterator[str]:
    """An argument of sleep that no other process has; nothing that carries it may be left."""
    name = f"{30000 + uuid.uuid4().int % 10000}.{uuid.uuid4().int % 10**9}"
    yield name
    left = marked(name)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []


def test_output_and_exit_code_are_the_programs_own() -> None:
    with spawn(["sh", "-c", "cat; exit 7"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(b"through")
        child.stdin.close()
        assert child.stdout.read() == b"through"
        assert child.wait(10) == 7


def test_a_signal_that_killed_the_program_is_its_exit_code() -> None:
    with spawn(["sh", "-c", "kill -SEGV $$"]) as child:
        assert child.wait(10) == -signal.SIGSEGV


def test_a_program_that_does_not_exist_is_an_error_at_once() -> None:
    with pytest.raises(ToolError, match="cannot start no-such-program: No such file"):
        spawn(["no-such-program"])


def test_environment_directory_and_session_are_as_asked(tmp_path: Path) -> None:
    script = "echo $ONLY $PWD; ps -o sid= -p $$; trap"
    environment = {"ONLY": "this", "PATH": os.environ["PATH"]}
    with spawn(
        ["sh", "-c", script], env=environment, cwd=tmp_path, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        first, session = child.stdout.read().decode().splitlines()
        assert first == f"this {tmp_path}"
        assert int(session) == child.pid != os.getsid(0)


def test_no_descriptor_of_ours_leaks_into_a_child() -> None:
    with spawn(["ls", "-l", "/proc/self/fd"], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        shown = child.stdout.read().decode()
    assert {line.split()[8] for line in shown.splitlines()[1:]} <= {"0", "1", "2", "3"}, shown
    assert "socket" not in shown


def test_wait_gives_up_in_time_and_stop_ends_it(marker: str) -> None:
    with spawn(["sleep", marker]) as child:
        with pytest.raises(TimeoutError, match="still runs"):
            child.wait(0.05)
        assert child.stop() == -signal.SIGTERM
        assert child.stop() == -signal.SIGTERM  # again: nothing happens


def test_stop_kills_what_ignores_sigterm_and_what_left_the_session(marker: str) -> None:
    script = "trap '' TERM; " + FAMILY.format(marker)
    with spawn(["sh", "-c", script], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        assert len(descendants(child.pid)) >= 2
        assert child.stop(grace_s=0.1) == -signal.SIGKILL
        assert marked(marker) == []  # at once: stop returns after the last is reaped


def test_a_stopped_child_is_ended_too(marker: str) -> None:
    with spawn(["sleep", marker]) as child:
        os.kill(child.pid, signal.SIGSTOP)
        assert child.stop() == -signal.SIGTERM


def test_what_a_program_left_in_the_background_ends_with_it(marker: str) -> None:
    with spawn(["sh", "-c", f"setsid sleep {marker} & exit 0"]) as child:
        assert child.wait(10) == 0
        assert marked(marker) == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_dropping_the_last_reference_stops_the_child(marker: str) -> None:
    """Python warns of the unclosed socket, and its end stops the supervisor."""
    assert spawn(["sleep", marker]).poll() is None
    assert all_end(marked(marker))


def test_a_killed_supervisor_takes_its_program_along(marker: str) -> None:
    """PDEATHSIG: the one case in which there is no supervisor to clean up."""
    with spawn(["sleep", marker]) as child:
        child.process.kill()
        assert all_end([child.pid])


def test_a_child_outlives_the_thread_that_asked_for_it(marker: str) -> None:
    """PDEATHSIG fires when the forking thread ends: a short-lived thread must not be that one."""
    children = []
    asker = threading.Thread(target=lambda: children.append(spawn(["sleep", marker])))
    asker.start()
    asker.join()
    with children[0] as child, pytest.raises(TimeoutError):
        child.wait(0.3)


def test_a_forked_copy_of_the_process_can_spawn_too() -> None:
    spawn(["true"]).wait(10)
    code = (
        "import os\nfrom branchkit.process import spawn\n"
        "assert spawn(['true']).wait(10) == 0\n"
        "pid = os.fork()\n"
        "if pid == 0: os._exit(spawn(['sh', '-c', 'exit 9']).wait(10))\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "9\n", done.stderr


PARENT = """
import signal, subprocess, sys
from branchkit.process import spawn
child = spawn(["sh", "-c", sys.argv[1]], stdout=subprocess.PIPE)
child.stdout.readline()
print("up", flush=True)
sys.stdin.readline()
{ending}
"""
ENDINGS = {
    "waits": "",
    "returns": "",
    "raises": "raise RuntimeError",
    "interrupted": "signal.raise_signal(signal.SIGINT)",
    "exits hard": "import os; os._exit(1)",
}


@contextmanager
def parent_with_family(
    marker: str, ending: str
) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A process that spawned a family, and the pids below it; killed at the latest at the end."""
    argv = [sys.executable, "-c", PARENT.format(ending=ending), FAMILY.format(marker)]
    parent = subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with parent:
        try:
            assert parent.stdout is not None
            assert parent.stdout.readline() == "up\n"
            # By parentage: a command line reads as empty in the middle of an exec.
            family = descendants(parent.pid)
            assert len(family) >= 4  # supervisor, shell, two sleeps
            yield parent, family
        finally:
            parent.kill()  # or leaving the `with` would wait for it for ever


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGSEGV])
def test_nothing_is_left_after_the_parent_is_killed(marker: str, number: signal.Signals) -> None:
    """N02: a real SIGKILL of the parent; children, grandchildren and runaways are gone."""
    with parent_with_family(marker, ENDINGS["waits"]) as (parent, family):
        parent.send_signal(number)
        assert parent.wait(15) != 0
        assert all_end(family)


@pytest.mark.parametrize("ending", ["returns", "raises", "interrupted", "exits hard"])
def test_nothing_is_left_after_the_parent_ends_by_itself(marker: str, ending: str) -> None:
    with parent_with_family(marker, ENDINGS[ending]) as (parent, family):
        assert parent.stdin is not None
        parent.stdin.close()  # it goes on when its input ends
        parent.wait(15)
        assert all_end(family)


def test_the_family_tree_is_parent_supervisor_program(marker: str) -> None:
    with spawn(["sleep", marker]) as child:
        assert parent_of(child.pid) == child.process.pid
        assert parent_of(child.process.pid) == os.getpid()
