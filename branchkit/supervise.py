"""One program, run so that nothing it started outlives it or its parent.

``process.spawn`` runs this file as a script (``python -I -S supervise.py CONTROL_FD PARENT_PID
ARGV...``), so it imports the standard library alone and starts in about 20 ms. It is a process of
its own because only a living process can clean up after a SIGKILL of the parent: PDEATHSIG by
itself reaches the direct child and leaves that child's children behind.

How death travels:
    parent gone    → the control socket ends, and PDEATHSIG sends us SIGTERM  → all below us die
    we are killed  → PDEATHSIG kills the program (what it started itself may survive this one case)
    program ends   → what it left running is killed, then we end with its exit status
We are a subreaper, so a grandchild that called setsid or lost its parent is still below us. What is
to outlive us all the same, the workspace daemon, was started with DETACHED in its environment.
"""

# os instead of pathlib, which would double the start-up time of every child.
# ruff: noqa: PTH123, PTH208
from __future__ import annotations

import ctypes
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Iterator

GRACE_WHEN_PARENT_DIED_S = 0.5
GIVE_UP_S = 5.0
DETACHED = "BRANCHKIT_DETACHED"

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


def become_subreaper() -> None:
    """From now on orphans among our descendants become our children instead of init's."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent_pid: int, signal_number: int) -> None:
    """Have the kernel send ``signal_number`` when the thread that forked us ends."""
    _prctl(_PR_SET_PDEATHSIG, signal_number)
    # The parent may have died before the line above; no signal comes for that.
    if os.getppid() != parent_pid:
        os._exit(1)


def descendants(root_pid: int, *, but_detached: bool = False) -> list[int]:
    """Every process below ``root_pid``, zombies too, children before grandchildren.

    ``but_detached``: leave out what was started to outlive us, with all below it.
    """
    children: dict[int, list[int]] = {}
    for pid, parent_pid in _parents():
        children.setdefault(parent_pid, []).append(pid)
    found, todo = [], [root_pid]
    while todo:
        below = children.get(todo.pop(), [])
        if but_detached:
            below = [pid for pid in below if not _is_detached(pid)]
        found += below
        todo += below
    return found


def kill_descendants(*, but_detached: bool = False) -> dict[int, int]:
    """Kill and reap all processes below this one (a subreaper); returns their wait statuses.

    ``but_detached`` as in `descendants`.
    Gives up after GIVE_UP_S on what cannot be killed: a setuid program, or one stuck in the kernel.
    """
    statuses: dict[int, int] = {}
    deadline = time.monotonic() + GIVE_UP_S
    seen_none = 0
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    try:
        while time.monotonic() < deadline:
            doomed = descendants(os.getpid(), but_detached=but_detached)
            for pid in doomed:
                _kill(pid, signal.SIGKILL)
            seen_none = 0 if doomed else seen_none + 1
            # With a detached child we never run out of children: then two empty scans are enough.
            if not _reap_into(statuses) or seen_none == 2:
                break
            # Wakes when one dies; looks again anyway, since one may have forked during the scan.
            signal.sigtimedwait({signal.SIGCHLD}, 0.01)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return statuses


def supervise(control_fd: int, argv: list[str]) -> int:
    """Run ``argv`` until it ends or we are told to stop; returns its wait status."""
    wake_fd, wake_end = _wake_on_signals()
    pid, errno = _start(argv)
    os.write(control_fd, b"%d %d\n" % (pid, errno))
    _let_go_of_descriptors({control_fd, wake_fd, wake_end})
    poll = select.poll()
    poll.register(control_fd, select.POLLIN)
    poll.register(wake_fd, select.POLLIN)
    statuses: dict[int, int] = {}
    deadline: float | None = None
    while _reap_into(statuses) and pid not in statuses:
        left_ms = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
        ready = {fd for fd, _ in poll.poll(left_ms)}
        grace_s = _stop_wanted(ready, control_fd, wake_fd)
        if deadline is not None and time.monotonic() >= deadline:
            break
        if grace_s is not None and deadline is None:
            poll.unregister(control_fd)
            deadline = time.monotonic() + grace_s
            _terminate(pid)
    statuses |= kill_descendants(but_detached=True)
    return statuses.get(pid, signal.SIGKILL)


def end_like(status: int) -> None:
    """End this process as the wait status says: the same exit code, or the same signal."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 128 - code)


def _start(argv: list[str]) -> tuple[int, int]:
    """Fork and exec ``argv``; returns its pid and the errno of a failed exec, or 0."""
    report_fd, report_end = os.pipe()
    our_pid = os.getpid()
    pid = os.fork()  # safe: this process has one thread
    if pid == 0:
        _become(argv, our_pid, report_end)
    os.close(report_end)
    errno = os.read(report_fd, 16)  # the exec closes the other end: end of file means success
    os.close(report_fd)
    return pid, int(errno or b"0")


def _become(argv: list[str], parent_pid: int, report_fd: int) -> None:
    try:
        os.setsid()
        die_with_parent(parent_pid, signal.SIGKILL)
        signal.set_wakeup_fd(-1)
        # Python ignores the last two; an ignored signal would stay ignored across the exec.
        for number in (*_STOP_SIGNALS, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.execvp(argv[0], argv)
    except OSError as error:
        os.write(report_fd, b"%d" % (error.errno or 1))
    finally:
        os._exit(127)


def _wake_on_signals() -> tuple[int, int]:
    """Both ends of a pipe that gets the number of every signal as one byte."""
    wake_fd, wake_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
    for number in (*_STOP_SIGNALS, signal.SIGCHLD):
        signal.signal(number, lambda _number, _frame: None)
    return wake_fd, wake_end


def _let_go_of_descriptors(kept: set[int]) -> None:
    """Close our copies of the program's pipes, or their readers would never see the end."""
    null_fd = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null_fd, fd)
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd > 2 and fd not in kept and os.path.lexists(f"/proc/self/fd/{fd}"):
            os.close(fd)


def _stop_wanted(ready: set[int], control_fd: int, wake_fd: int) -> float | None:
    """The grace in seconds if the parent, its death or a signal asks us to stop, else None."""
    grace_s = None
    if wake_fd in ready and any(n in _STOP_SIGNALS for n in os.read(wake_fd, 4096)):
        grace_s = GRACE_WHEN_PARENT_DIED_S
    if control_fd in ready:
        grace_s = float(os.read(control_fd, 64) or GRACE_WHEN_PARENT_DIED_S)
    return grace_s


def _terminate(pid: int) -> None:
    """Ask the program and its group to end; a stopped one is woken, or it could not hear it."""
    for number in (signal.SIGTERM, signal.SIGCONT):
        try:
            os.killpg(pid, number)
        except ProcessLookupError:
            return


def _reap_into(statuses: dict[int, int]) -> bool:
    """Collect the dead among our children; whether any child is left."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if pid == 0:
            return True
        statuses[pid] = status


def _parents() -> Iterator[tuple[int, int]]:
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                # The command name may hold spaces and brackets; fields are counted after it.
                yield int(name), int(file.read().rpartition(b")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended between the listing and the read


def _is_detached(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return f"{DETACHED}=1".encode() in file.read().split(b"\0")
    except OSError:
        return False  # it has just gone, or it is none of ours


def _kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return  # already gone, or a setuid program: kill_descendants gives up on it in time


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    zero = ctypes.c_ulong(0)
    if libc.prctl(option, ctypes.c_ulong(value), zero, zero, zero) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def main() -> None:
    """The script: see the module's docstring for its arguments."""
    control_fd, parent_pid, argv = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    os.set_inheritable(control_fd, False)
    become_subreaper()
    die_with_parent(parent_pid, signal.SIGTERM)
    end_like(supervise(control_fd, argv))


if __name__ == "__main__":
    main()
