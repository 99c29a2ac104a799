"""The process that keeps a store's FUSE descriptor, so that a killed worker is only a pause.

``remote`` runs this file as a script (``python -I -S holder.py READY_FD LISTEN_FD WORKER...``): it
imports the standard library alone, has one thread and no state but descriptors, so there is little
that could end it. The worker (`daemon`) mounts and hands the kernel's descriptor up; when it dies
of anything but an orderly end, the next one gets the same descriptor and takes over, while programs
that use the mount wait.

How the end travels:
    SIGTERM to us       → to the worker, which leaves in order; then we end
    worker ends with 0  → we end
    worker killed       → the next one; after MOST_DEATHS within WITHIN_S, none of which served more
                          than what it took over, we give up: unmount, end
    we are killed       → the worker sees the end of the socket between us and leaves in order
A worker that dies before it handed a descriptor up (or never can, on an older kernel) ends us too.
"""

# os instead of subprocess, which would double the start-up time; os.path for the same reason.
from __future__ import annotations

import os
import select
import signal
import socket
import struct
import sys
import time

MOST_DEATHS = 5
WITHIN_S = 10.0
BACKLOG = 64
INT = struct.Struct("i")


class Holder:
    """One worker after the other, and what passes from one to the next."""

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._fuse_fd = -1
        self._told_to_end = False
        self._deaths_s: list[float] = []
        self._worker = 0
        self._wake, wake_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, lambda _number, _frame: None)

    def run(self, ready_fd: int) -> int:
        """Serve until an orderly end; returns the exit code."""
        status = self._serve("--ready-fd", str(ready_fd), close=ready_fd)
        while status and self._fuse_fd >= 0:
            now_s = time.monotonic()
            recent = [each for each in self._deaths_s if now_s - each < WITHIN_S]
            self._deaths_s = [*recent, now_s]
            how = f"signal {-status}" if status < 0 else f"exit code {status}"
            if self._told_to_end or len(self._deaths_s) == MOST_DEATHS:
                say(f"the worker {self._worker} died ({how}): giving up")
                return self._give_up()
            say(f"the worker {self._worker} died ({how}): the next one takes over")
            status = self._serve("--fuse-fd", str(self._fuse_fd))
        return abs(status)

    def _serve(self, *options: str, close: int = -1) -> int:
        """Run one worker to its end; its exit code, or the negative number of its signal."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        theirs.set_inheritable(True)
        self._worker = self._spawn(*options, "--holder-fd", str(theirs.fileno()))
        theirs.close()
        if close >= 0:
            os.close(close)  # whoever waits for it must see its end when the worker dies
        with ours:
            ours.setblocking(False)
            return self._watch(ours)

    def _spawn(self, *options: str) -> int:
        command = [*self._command, *options]
        return os.posix_spawn(command[0], command, os.environ)

    def _watch(self, control: socket.socket) -> int:
        poll = select.poll()
        poll.register(control, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poll.poll()}
            if self._wake in ready and {signal.SIGTERM, signal.SIGINT} & set(
                os.read(self._wake, 512)
            ):
                self._told_to_end = True
                os.kill(self._worker, signal.SIGTERM)
            pid, status = os.waitpid(self._worker, os.WNOHANG)
            # After the wait: what it sent before it died is there.
            if control.fileno() in ready or pid:
                self._take(control)
            if pid:
                return os.waitstatus_to_exitcode(status)
            if control.fileno() in ready and _has_ended(control):
                poll.unregister(control)

    def _take(self, control: socket.socket) -> None:
        """Read what the worker says: here is the descriptor, or: this is no loop of deaths."""
        try:
            text, ancillary, _, _ = control.recvmsg(16, socket.CMSG_SPACE(INT.size))
        except (BlockingIOError, ConnectionError):
            return
        if text == b"served":
            self._deaths_s.clear()
        for _, _, data in ancillary:
            self._fuse_fd = INT.unpack(data[: INT.size])[0]
            os.set_inheritable(self._fuse_fd, True)

    def _give_up(self) -> int:
        """Let go of the mount, whose users get ENOTCONN, and have it taken away."""
        os.close(self._fuse_fd)
        os.waitpid(self._spawn("--clear"), 0)
        return 1


def _has_ended(control: socket.socket) -> bool:
    try:
        return not control.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def say(text: str) -> None:
    """One line for daemon.log."""
    when = time.strftime("%Y-%m-%d %H:%M:%S")
    os.write(2, f"{when} {text}\n".encode())


def main() -> int:
    """The script: see the module's docstring for its arguments."""
    ready_fd, listen_fd, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    # Whoever connects learns the pid of who called listen(2): ours, which outlives the workers.
    listener = socket.socket(fileno=listen_fd)
    listener.listen(BACKLOG)
    listener.detach()
    return Holder(command).run(ready_fd)


if __name__ == "__main__":
    raise SystemExit(main())
