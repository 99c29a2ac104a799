"""Mounting with kernel flags that libfuse cannot ask for.

libfuse decides alone what it answers to the kernel's INIT. Here the mount and that handshake are
ours: libfuse gets the kernel's INIT, with some flags hidden, over a socket pair (its documented
``/dev/fd/N`` mount point); its answer goes to the kernel with our flags added; then the descriptor
of the kernel takes the socket's place under the same number.

What is gained (see docs/performance.md for the figures):

    HANDLE_KILLPRIV_V2     no question for security.capability before every write(2); in return
                           setuid and setgid bits are ours to take away (`fuse.Overlay`)
    PARALLEL_DIROPS        lookups in one directory do not wait for each other in the kernel
    CACHE_SYMLINKS         readlink(2) asks once
    EXPLICIT_INVAL_DATA    a write does not make the kernel drop the pages that it has
    HAS_RESEND             what a killed worker had read and not answered is sent again

A worker that takes over does the same with the INIT that `kept` has; its answer goes nowhere, since
the kernel has one, and before libfuse gets the descriptor it is settled what was under way.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import struct
import subprocess
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from branchkit.workspace import inflight
from branchkit.workspace.inflight import Applied
from branchkit.workspace.kept import Kept

PLAIN = "BRANCHKIT_PLAIN_INIT"  # set to 1: libfuse mounts and answers by itself

AUTO_INVAL_DATA = 1 << 12
PARALLEL_DIROPS = 1 << 18
HANDLE_KILLPRIV = 1 << 19
CACHE_SYMLINKS = 1 << 23
EXPLICIT_INVAL_DATA = 1 << 25
HANDLE_KILLPRIV_V2 = 1 << 28
INIT_EXT = 1 << 30  # there are flags above the 32nd
HAS_RESEND = 1 << 39
WANTED = (
    PARALLEL_DIROPS
    | CACHE_SYMLINKS
    | EXPLICIT_INVAL_DATA
    | HANDLE_KILLPRIV_V2
    | INIT_EXT
    | HAS_RESEND
)

SERVED_REQUESTS = 100  # more than can be sent again: none of those kills the worker

_DEVICE = "/dev/fuse"
_MESSAGE_BYTES = 1 << 16  # INIT has about a hundred; the kernel insists on 8 KiB of room
# Where an INIT and its answer have their flags: the lower 32, and those above.
_IN_FLAGS_AT = (40 + 12, 40 + 16)  # struct fuse_in_header, then major, minor and max_readahead
_OUT_FLAGS_AT = (16 + 12, 16 + 32)  # struct fuse_out_header, then the same; the rest further on
_MAX_WRITE_AT = 16 + 20
_ROOM_BYTES = 4096  # what a WRITE has in front of its data
_FLAGS = struct.Struct("=I")
_RESEND = struct.pack("=IiQ", 16, 7, 0)  # FUSE_NOTIFY_RESEND
_MS_NOSUID, _MS_NODEV = 2, 4
_FD = struct.Struct("i")


class Mounted(NamedTuple):
    """A mount whose kernel waits for the answer to its INIT."""

    kernel_fd: int
    init: bytes


def mount(point: Path, options: str) -> Mounted:
    """Mount on ``point`` (mount(2) as root, else fusermount3) and take the kernel's INIT.

    ``options`` stand with commas between them. OSError when it cannot be mounted.
    """
    fd = _mount_as_root(point, options) if os.geteuid() == 0 else _mount_as_user(point, options)
    return Mounted(fd, os.read(fd, _MESSAGE_BYTES))


def hide(init: bytes) -> bytes:
    """The kernel's INIT without the flags that libfuse would answer to and we do not want."""
    flags = _flags(init, _IN_FLAGS_AT)
    return _with_flags(init, _IN_FLAGS_AT, flags & ~(AUTO_INVAL_DATA | HANDLE_KILLPRIV))


def amend(answer: bytes, init: bytes) -> bytes:
    """libfuse's ``answer`` with those of our flags that the kernel has offered in ``init``."""
    chosen = granted(answer) | _flags(init, _IN_FLAGS_AT) & WANTED
    return _with_flags(answer, _OUT_FLAGS_AT, chosen)


def granted(answer: bytes) -> int:
    """The flags in an answer to INIT."""
    return _flags(answer, _OUT_FLAGS_AT)


def _flags(message: bytes, at: tuple[int, int]) -> int:
    low = int(_FLAGS.unpack_from(message, at[0])[0])
    return low | _FLAGS.unpack_from(message, at[1])[0] << 32 if low & INIT_EXT else low


def _with_flags(message: bytes, at: tuple[int, int], flags: int) -> bytes:
    changed = bytearray(message)
    _FLAGS.pack_into(changed, at[0], flags & 0xFFFFFFFF)
    if flags & INIT_EXT:
        _FLAGS.pack_into(changed, at[1], flags >> 32)
    return bytes(changed)


class Session(NamedTuple):
    """What a handover has to do with the rest of the daemon."""

    kept: Kept
    hold: Callable[[int], None]  # gives the holder the kernel's descriptor
    applied: Callable[[], Applied | None]  # what the request under way had changed
    forget: Callable[[Sequence[tuple[int, int]]], None]
    ready: Callable[[], None]  # the mount is there
    served: Callable[[], None]  # after a take-over: it is more than a moment until the next death


class Handover:
    """libfuse's descriptor: first a socket on which INIT waits, in the end the kernel's."""

    def __init__(self, mounted: Mounted, session: Session, *, again: bool = False) -> None:
        """``again``: the mount is taken over from a worker that was killed."""
        self._mounted = mounted
        self._session = session
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.fd = theirs.detach()
        self._steps = self._take_over() if again else self._begin()

    def step(self) -> bool:
        """Go on; call it whenever libfuse waits. False when the kernel has taken its place."""
        return next(self._steps, False)

    def _begin(self) -> Iterator[bool]:
        answer = amend((yield from self._ask(hide(self._mounted.init))), self._mounted.init)
        os.write(self._mounted.kernel_fd, answer)
        if granted(answer) & HAS_RESEND:
            self._session.kept.init = self._mounted.init
            self._session.hold(self._mounted.kernel_fd)
        self._finish()

    def _take_over(self) -> Iterator[bool]:
        answer = yield from self._ask(hide(self._mounted.init))
        if self._session.kept.unsettled:
            yield from self._settle(_FLAGS.unpack_from(answer, _MAX_WRITE_AT)[0] + _ROOM_BYTES)
        os.write(self._mounted.kernel_fd, _RESEND)
        self._finish()
        for _ in range(SERVED_REQUESTS):
            self._session.kept.answered()
            yield True
        self._session.served()

    def _settle(self, most_bytes: int) -> Iterator[bool]:
        """Answer the request that had been carried out when the last worker was killed."""
        fd, kept, applied = self._mounted.kernel_fd, self._session.kept, self._session.applied()
        os.write(fd, _RESEND)
        for request in list(inflight.peek(fd, most_bytes, self._session.forget)):
            done = applied is not None and applied.covers(request)
            if request.opcode == inflight.OPEN:
                kept.take_back_open(request.node)
            elif done and request.opcode == inflight.CREATE:
                kept.take_back_open(None)
            released = request.opcode == inflight.RELEASE and kept.was_closed(request.handle)
            if done or released:
                os.write(fd, (yield from self._answer(request)))
        kept.answered()

    def _answer(self, request: inflight.Request) -> Generator[bool, None, bytes]:
        replies: list[bytes] = []
        if request.opcode in inflight.MAKING:
            replies.append((yield from self._ask(request.lookup())))
        if request.opcode == inflight.CREATE and not inflight.failed(replies[0]):
            replies.append((yield from self._ask(request.open(replies[0]))))
        failed = [reply for reply in replies if inflight.failed(reply)]
        return failed[0] if failed else request.answer(replies)

    def _ask(self, message: bytes) -> Generator[bool, None, bytes]:
        self._ours.send(message)
        yield True
        return self._ours.recv(_MESSAGE_BYTES)

    def _finish(self) -> None:
        """Give libfuse the kernel."""
        os.dup2(self._mounted.kernel_fd, self.fd, inheritable=False)
        os.close(self._mounted.kernel_fd)
        self._ours.close()
        self._session.ready()


def _mount_as_root(point: Path, options: str) -> int:
    fd = os.open(_DEVICE, os.O_RDWR | os.O_CLOEXEC)
    data = f"fd={fd},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()},{options}"
    libc = ctypes.CDLL(None, use_errno=True)
    flags = _MS_NOSUID | _MS_NODEV
    if libc.mount(b"branchkit", os.fsencode(point), b"fuse.branchkit", flags, data.encode()):
        code = ctypes.get_errno()
        os.close(fd)
        raise OSError(code, f"mount: {os.strerror(code)}", os.fspath(point))
    return fd


def _mount_as_user(point: Path, options: str) -> int:
    """Through the setuid fusermount3, which sends the descriptor over a socket."""
    command = shutil.which("fusermount3")
    if command is None:
        raise FileNotFoundError("fusermount3 is not installed")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        names = f"{options},fsname=branchkit,subtype=branchkit"
        done = subprocess.run(
            [command, "-o", names, "--", os.fspath(point)],
            env={**os.environ, "_FUSE_COMMFD": str(theirs.fileno())},
            pass_fds=(theirs.fileno(),),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise OSError(f"fusermount3: {done.stderr.strip()}")
        _, ancillary, _, _ = ours.recvmsg(1, socket.CMSG_SPACE(_FD.size))
    fd = int(_FD.unpack(ancillary[0][2][: _FD.size])[0])
    os.set_inheritable(fd, False)
    return fd
