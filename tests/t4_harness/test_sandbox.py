"""The sandbox: what tools cannot reach, how calls end, and that a dead server harms nothing else.

Everything here runs real bubblewrap; without it these tests fail (apt-get install bubblewrap).
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from branchkit.errors import SandboxMissing, ToolError, UsageError
from branchkit.harness.sandbox import CheckOutcome, Sandbox, probe
from branchkit.harness.tools import ToolOutcome
from branchkit.supervise import descendants

TOOLS = """
import ctypes, itertools, os, sys, time
from branchkit.harness.tools import tool
counter = itertools.count(1)

@tool(effect="pure")
def count() -> int:
    return next(counter)

@tool(effect="pure")
def noisy() -> str:
    print("{}", flush=True)
    os.write(1, b"garbage\\n")
    return "quiet"

@tool(effect="pure")
def die(how: str) -> str:
    if how == "exit":
        sys.exit(4)
    if how == "hard exit":
        os._exit(5)
    if how == "memory":
        bytearray(20 << 30)
    if how == "loop":
        while True:
            pass
    ctypes.string_at(0)

@tool(effect="pure")
def variable(name: str) -> str:
    return os.environ.get(name, "unset")
"""


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-verysecret")
    return "sk-verysecret"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """One sandbox for the tests that only look."""
    found = probe()
    assert found.ok, f"{found.detail}; {found.remedy}"
    with Sandbox(tmp_path_factory.mktemp("shared"), tools_source=TOOLS) as sandbox:
        yield sandbox


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    path = tmp_path / "workspace of this branch"
    path.mkdir()
    return path


@pytest.fixture(params=[True, False], ids=["isolated", "unconfined"])
def either(request: pytest.FixtureRequest, workspace: Path) -> Iterator[Sandbox]:
    with Sandbox(workspace, isolated=request.param, tools_source=TOOLS) as sandbox:
        yield sandbox


def bash(sandbox: Sandbox, command: str, timeout_s: float = 30.0) -> str:
    return sandbox.call("bash", {"command": command}, timeout_s=timeout_s).text


def ended(pids: list[int], timeout_s: float = 15.0) -> bool:
    deadline = time.monotonic() + timeout_s
    for pid in pids:
        try:
            pid_fd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            if not select.select([pid_fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
                return False
        finally:
            os.close(pid_fd)
    return True


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def family_of(sandbox: Sandbox) -> list[int]:
    assert sandbox.server_pid is not None
    return [sandbox.server_pid, *descendants(sandbox.server_pid)]


# What cannot be reached


def test_the_network_is_unreachable_also_this_hosts_own(shared: Sandbox) -> None:
    """M13, R54: TCP and UDP out, IPv6, names, the host's loopback, its abstract sockets."""
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as local:
        name = f"branchkit-test-{os.getpid()}"
        local.bind(f"\0{name}")
        local.listen()
        port = tcp.getsockname()[1]
        attempts = [
            "socket.create_connection(('1.1.1.1', 80), 3)",
            f"socket.create_connection(('127.0.0.1', {port}), 3)",
            "socket.create_connection(('2606:4700:4700::1111', 80), 3)",
            "socket.getaddrinfo('example.org', 80)",
            "socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('1.1.1.1', 53))",
            rf"socket.socket(socket.AF_UNIX).connect('\0{name}')",
        ]
        for attempt in attempts:
            script = f"import socket\ntry: {attempt}\nexcept OSError: print('refused')\n"
            shared.call("write_file", {"path": "attempt.py", "content": script})
            assert bash(shared, "python3 attempt.py") == "refused\n", attempt
        (shared.workspace / "attempt.py").unlink()
        tcp.setblocking(False)
        with pytest.raises(BlockingIOError):
            tcp.accept()
    assert bash(shared, "cat /proc/net/route | wc -l; ls /sys 2>&1 | grep -c net").split() == [
        "1",
        "0",
        "[exit",
        "code",
        "1]",
    ]


READ_ONLY = ["/", "/usr/bin", "/etc", "/opt", "/opt/branchkit", "/proc/sys/kernel", sys.prefix]


@pytest.mark.parametrize("place", READ_ONLY)
def test_only_the_workspace_is_writable(shared: Sandbox, place: str) -> None:
    assert "[exit code" in bash(shared, f"echo x > '{place}/branchkit-test-file'")
    assert not Path(place, "branchkit-test-file").exists()


def test_writes_arrive_in_the_workspace_and_nowhere_else(shared: Sandbox) -> None:
    assert bash(shared, "pwd; echo data > made; echo t > /tmp/branchkit-test-tmp; cat made") == (
        "/workspace\ndata\n"
    )
    assert (shared.workspace / "made").read_text() == "data\n"
    assert (shared.workspace / "made").stat().st_uid == os.getuid()
    assert not Path("/tmp/branchkit-test-tmp").exists()


def test_files_beside_the_workspace_and_home_folders_are_hidden(workspace: Path) -> None:
    beside = workspace.parent / "beside"
    beside.write_text("secret")
    with Sandbox(workspace) as sandbox:
        for path in (beside, Path.home() / ".profile", Path("/etc/shadow"), Path("/home/x")):
            assert "No such file" in bash(sandbox, f"cat '{path}'")
        assert bash(sandbox, f"grep -rl secret '{workspace.parent}' 2>&1").endswith("code 2]")
        bash(sandbox, f"ln -s '{beside}' link; ln -s / root")
        assert sandbox.call("read_file", {"path": "link"}).status == "error"
        assert sandbox.call("read_file", {"path": "root/etc/passwd"}).status == "error"


def test_no_variable_of_ours_gets_in(shared: Sandbox, secret: str, workspace: Path) -> None:
    """M18: not in the environment, not in that of bubblewrap either, which /proc/1 shows."""
    assert secret in os.environ.values()
    with Sandbox(workspace) as sandbox:
        everything = bash(sandbox, "cat /proc/[0-9]*/environ | tr '\\0' '\\n'; env")
        assert "HOME=/tmp" in everything
        assert secret not in everything
        assert sandbox.call("variable", {"name": "x"}).status == "error"  # not its tool
    names = {
        line.split("=")[0] for line in bash(shared, "env -u _ -u PWD -u SHLVL env").split("\n")
    }
    assert names - {""} == {
        *("PATH", "HOME", "LANG", "TZ", "PYTHONHASHSEED", "PYTHONDONTWRITEBYTECODE"),
        *("GIT_CONFIG_NOSYSTEM", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_COUNT"),
        *("GIT_CONFIG_KEY_0", "GIT_CONFIG_VALUE_0"),
    }


def test_an_unconfined_tool_gets_no_variable_of_ours_either(workspace: Path, secret: str) -> None:
    with Sandbox(workspace, isolated=False) as sandbox:
        assert secret not in bash(sandbox, "env; cat /proc/$PPID/environ")


def test_nothing_inside_names_the_workspaces_real_place(shared: Sandbox) -> None:
    shown = bash(shared, "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ | tr '\\0' ' '; ps aux")
    assert str(shared.workspace) not in shown
    assert shared.workspace.name not in shown


def test_there_are_no_privileges_to_gain(shared: Sandbox) -> None:
    status = bash(shared, "grep -E 'CapEff|CapBnd|NoNewPrivs' /proc/self/status")
    assert status.split() == ["CapEff:", "0" * 16, "CapBnd:", "0" * 16, "NoNewPrivs:", "1"]
    for command in ("unshare -U true", "mount -t tmpfs x /tmp", "chroot / true"):
        assert "[exit code" in bash(shared, command)
    assert bash(shared, "id -un; id -u").split() == ["agent", "1000"]


def test_system_calls_that_no_tool_needs_are_refused(shared: Sandbox) -> None:
    """A filter of the kernel's stands behind the dropped capabilities."""
    code = "import ctypes; c = ctypes.CDLL(None, use_errno=True); print(c.unshare(0x10000000), "
    code += "c.ptrace(0, 0, 0, 0), ctypes.get_errno())"
    assert "Seccomp:\t2" in bash(shared, "grep Seccomp: /proc/self/status")
    assert bash(shared, f"python3 -c '{code}'").strip() == "-1 -1 1"


def test_other_processes_are_invisible(shared: Sandbox) -> None:
    pids = [int(pid) for pid in bash(shared, "ls /proc | grep -E '^[0-9]+$'").split()]
    assert 1 in pids
    assert len(pids) < 10
    assert "[exit code 1]" in bash(shared, f"kill -0 {os.getpid() + 10_000_000}")


def test_no_descriptor_of_ours_is_open_inside(shared: Sandbox) -> None:
    script = "import os; print(*[os.path.exists(f'/proc/self/fd/{n}') for n in range(3, 200)])"
    assert "True" not in bash(shared, f'python3 -c "{script}"')
    assert bash(shared, "read -r line || echo end of input") == "end of input\n"


def test_a_file_cannot_grow_without_end(shared: Sandbox) -> None:
    assert shared.call("bash", {"command": "truncate -s 3G big"}).exit_code == 128 + signal.SIGXFSZ


# How calls end


def test_the_schemas_are_the_standard_and_the_given_tools(workspace: Path) -> None:
    with Sandbox(workspace, tools_source=TOOLS, standard=["bash", "grep"]) as sandbox:
        names = [schema.name for schema in sandbox.schemas]
        assert names == ["bash", "grep", "count", "noisy", "die", "variable"]
        assert {s.name: s.effect for s in sandbox.schemas}["bash"] == "workspace"
        outcome = sandbox.call("list_dir", {})
        assert outcome.status == "error"
        assert outcome.text.startswith("there is no tool 'list_dir'; there are: bash, grep")


def test_a_given_tool_can_replace_a_standard_one(workspace: Path) -> None:
    source = (
        "from branchkit.harness.tools import tool\n"
        "@tool(effect='pure')\ndef bash(command: str) -> str: return 'mine: ' + command"
    )
    with Sandbox(workspace, tools_source=source) as sandbox:
        assert bash(sandbox, "rm -rf .") == "mine: rm -rf ."


def test_an_invalid_call_is_an_observation(either: Sandbox) -> None:
    outcome = either.call("bash", {"comand": "ls"})
    assert outcome.status == "error"
    assert outcome.text.startswith("invalid arguments for bash: ")
    assert either.call("bash", {"command": "ls", "timeout_s": "soon"}).status == "error"
    assert either.call("bash", {"command": "echo \ud800"}).text == "\ufffd\n"


def test_what_a_tool_prints_does_not_disturb_the_protocol(either: Sandbox) -> None:
    assert either.call("noisy", {}) == ToolOutcome("completed", "quiet")


def test_a_tool_keeps_nothing_in_memory(either: Sandbox) -> None:
    """A fork could not restore it: state belongs in the workspace."""
    assert [either.call("count", {}).text for _ in range(2)] == ["1", "1"]


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("exit", "SystemExit: 4"),
        ("hard exit", "[the tool's process died: exit code 5]"),
        ("segfault", "[the tool's process died: signal 11]"),
        ("memory", "MemoryError: "),
    ],
)
def test_a_tool_that_crashes_costs_its_own_call_only(shared: Sandbox, how: str, text: str) -> None:
    before = shared.server_pid
    assert shared.call("die", {"how": how}) == ToolOutcome("error", text)
    assert bash(shared, "echo alive") == "alive\n"
    assert shared.server_pid == before


def test_a_tool_that_loops_is_ended_in_time(either: Sandbox) -> None:
    outcome = either.call("die", {"how": "loop"}, timeout_s=0.3)
    assert outcome == ToolOutcome("timeout", "[timed out after 0.3 s]")
    assert either.call("noisy", {}).text == "quiet"


RUNAWAY = "setsid sleep 1000 & (sleep 1001 &) ; sh -c 'trap \"\" TERM; sleep 1002' & echo started; "


@pytest.mark.parametrize("ending", ["sleep 1003", "exit 0", "kill -9 $$"])
def test_a_call_leaves_no_process_behind(either: Sandbox, ending: str) -> None:
    """R53: a time-out is an observation, and its grandchildren are gone, whatever they ignore."""
    before = family_of(either)
    outcome = either.call("bash", {"command": RUNAWAY + ending}, timeout_s=0.5)
    assert outcome.text.startswith("started\n")
    assert outcome.status == ("timeout" if ending == "sleep 1003" else "completed")
    assert family_of(either) == before


def test_a_calls_environment_is_for_that_call(either: Sandbox) -> None:
    dates = {"GIT_AUTHOR_DATE": "2020-01-01T00:00:00Z"}
    first = either.call("variable", {"name": "GIT_AUTHOR_DATE"}, env=dates)
    assert first.text == "2020-01-01T00:00:00Z"
    assert either.call("variable", {"name": "GIT_AUTHOR_DATE"}).text == "unset"


def test_a_check_gives_the_commands_own_exit_code(either: Sandbox) -> None:
    assert either.check("echo fine") == CheckOutcome(0, "fine\n")
    assert either.check("echo bad >&2; exit 3") == CheckOutcome(3, "bad\n")
    assert either.check("no-such-command").exit_code == 127
    assert either.check("kill -9 $$").exit_code == 137
    assert either.check("echo begun; sleep 60", timeout_s=0.3) == CheckOutcome(None, "begun\n")
    assert either.check("echo $X", env={"X": "y"}).output == "y\n"


def test_calls_from_several_threads_take_turns(shared: Sandbox) -> None:
    found: dict[int, str] = {}
    threads = [
        threading.Thread(target=lambda n=n: found.update({n: bash(shared, f"echo {n}")}))
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {n: f"{n}\n" for n in range(8)}


# Equal calls, equal outputs

SESSION = [
    "pwd; echo $PWD; realpath .; env | sort",
    "mkdir -p d; printf '%s\\n' c a b > d/f; ls -R; cat missing",
    'python3 -c \'print(hash("x"), list({"a", "b", "c"}))\'',
    "python3 -c 'import os; print(os.getcwd()); open(\"nope\")'",
    "git init -q . && git add . && git -c user.name=a -c user.email=e commit -qm m && git log",
    "git status --short; date +%Z; umask; locale | head -1",
]


@pytest.mark.parametrize("isolated", [True, False], ids=["isolated", "unconfined"])
def test_two_branches_say_the_same(tmp_path: Path, isolated: bool) -> None:
    """Equal behaviour must give equal outputs, wherever a branch lies on disk."""
    dates = {
        "GIT_AUTHOR_DATE": "2020-01-01T00:00:00Z",
        "GIT_COMMITTER_DATE": "2020-01-01T00:00:00Z",
    }
    said = []
    for name in ("first", "second/deeper"):
        (tmp_path / name).mkdir(parents=True)
        with Sandbox(tmp_path / name, isolated=isolated) as sandbox:
            said.append([sandbox.call("bash", {"command": c}, env=dates) for c in SESSION])
    assert said[0] == said[1]
    assert str(tmp_path) not in repr(said)
    assert said[0][0].text.startswith("/workspace\n/workspace\n/workspace\n")


# A server that dies


def hang(sandbox: Sandbox) -> tuple[threading.Thread, list[ToolOutcome]]:
    """A call that is under way, held in the middle of its command; seen through a FIFO."""
    fifo = sandbox.workspace / "fifo"
    if not fifo.exists():
        os.mkfifo(fifo)
    found: list[ToolOutcome] = []
    command = "echo half > result; echo > fifo; sleep 1000"
    thread = threading.Thread(
        target=lambda: found.append(sandbox.call("bash", {"command": command}))
    )
    thread.start()
    fifo.read_text()
    return thread, found


@pytest.mark.parametrize("victim", ["server", "inside", "supervisor"])
def test_a_server_killed_in_a_call_aborts_that_call_only(either: Sandbox, victim: str) -> None:
    """R21, N02: a real SIGKILL; the outcome is in doubt, said so, and the next call works."""
    thread, found = hang(either)
    family = family_of(either)
    # Isolated: bwrap, its init, the tool server, the call. Unconfined: the tool server, the call.
    inside = family[2] if either.isolated else family[0]
    doomed = {"server": family[0], "inside": inside, "supervisor": parent_of(family[0])}[victim]
    os.kill(doomed, signal.SIGKILL)
    thread.join(20)
    assert found == [ToolOutcome("aborted", "[the tool server died during this call]")]
    if victim == "supervisor" and not either.isolated:
        # The one known gap: nobody is left to find what an unconfined command started.
        assert ended(family[:2])
        for pid in family[2:]:
            os.kill(pid, signal.SIGKILL)
    assert ended(family)
    assert either.call("read_file", {"path": "result"}).text == "half\n"


def test_another_sandbox_is_not_disturbed(shared: Sandbox, workspace: Path) -> None:
    with Sandbox(workspace) as doomed:
        before = shared.server_pid
        thread, found = hang(doomed)
        assert doomed.server_pid is not None
        os.kill(doomed.server_pid, signal.SIGKILL)
        assert bash(shared, "echo undisturbed") == "undisturbed\n"
        thread.join(20)
        assert found[0].status == "aborted"
        assert shared.server_pid == before


def test_a_server_killed_between_calls_costs_nothing(either: Sandbox) -> None:
    family = family_of(either)
    os.kill(family[0], signal.SIGKILL)
    assert ended(family)
    assert either.call("noisy", {}).text == "quiet"


def test_an_interrupted_call_does_not_answer_the_next_one(either: Sandbox) -> None:
    before = family_of(either)
    timer = threading.Timer(
        0.5, lambda: signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
    )
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        either.call("bash", {"command": "sleep 1000"})
    timer.join()
    assert ended(before)
    assert bash(either, "echo fresh") == "fresh\n"


def test_close_leaves_nothing_and_is_final(either: Sandbox) -> None:
    family = family_of(either)
    either.close()
    either.close()
    assert ended(family)
    with pytest.raises(ToolError, match="closed"):
        either.call("noisy", {})


PARENT = """
import sys
from pathlib import Path
from branchkit.harness.sandbox import Sandbox
sandbox = Sandbox(Path(sys.argv[1]), isolated=sys.argv[2] == "isolated")
print(sandbox.server_pid, flush=True)
sandbox.call("bash", {"command": "setsid sleep 1000 & echo > fifo; sleep 1000"}, timeout_s=500)
"""


@pytest.mark.parametrize("isolated", ["isolated", "unconfined"])
def test_nothing_is_left_after_a_sigkill_of_the_branchs_process(
    workspace: Path, isolated: str
) -> None:
    """N02: server, command and a grandchild in a session of its own are gone."""
    os.mkfifo(workspace / "fifo")
    argv = [sys.executable, "-c", PARENT, str(workspace), isolated]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as parent:
        try:
            assert parent.stdout is not None
            server = int(parent.stdout.readline())
            (workspace / "fifo").read_text()
            family = [server, *descendants(server)]
            assert len(family) >= 4
        finally:
            parent.kill()
        assert ended(family)


# Where it cannot be made


def test_without_bubblewrap_it_is_refused_with_the_remedy(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRANCHKIT_NO_BWRAP", "1")
    assert not probe().ok
    with pytest.raises(SandboxMissing) as caught:
        Sandbox(workspace)
    assert "apt-get install bubblewrap" in caught.value.hint
    assert "--no-sandbox" in caught.value.hint
    with Sandbox(workspace, isolated=False) as sandbox:
        assert bash(sandbox, "echo works") == "works\n"


def test_a_bubblewrap_that_may_not_work_names_the_cause(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Ubuntu 24.04 says; this machine's own bubblewrap is allowed to work."""
    refusing = tmp_path / "bin" / "bwrap"
    refusing.parent.mkdir()
    refusing.write_text(
        "#!/bin/sh\necho 'bwrap: setting up uid map: Permission denied' >&2\nexit 1\n"
    )
    refusing.chmod(0o755)
    monkeypatch.setenv("PATH", f"{refusing.parent}:{os.environ['PATH']}")
    with pytest.raises(SandboxMissing, match="setting up uid map: Permission denied") as caught:
        Sandbox(workspace)
    assert "apparmor_restrict_unprivileged_userns" in caught.value.hint


def test_a_tools_module_that_is_none_is_the_callers_mistake(workspace: Path) -> None:
    with pytest.raises(UsageError, match="SyntaxError"):
        Sandbox(workspace, tools_source="def")
    with pytest.raises(UsageError, match="no standard tool 'rm'"):
        Sandbox(workspace, standard=["rm"])
