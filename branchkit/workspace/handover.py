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
"""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import struct
import subprocess
from pathlib import Path
from typing import NamedTuple

PLAIN = "BRANCHKIT_PLAIN_INIT"  # set to 1: libfuse mounts and answers by itself

AUTO_INVAL_DATA = 1 << 12
PARALLEL_DIROPS = 1 << 18
HANDLE_KILLPRIV = 1 << 19
CACHE_SYMLINKS = 1 << 23
EXPLICIT_INVAL_DATA = 1 << 25
HANDLE_KILLPRIV_V2 = 1 << 28
WANTED = PARALLEL_DIROPS | CACHE_SYMLINKS | EXPLICIT_INVAL_DATA | HANDLE_KILLPRIV_V2

_DEVICE = "/dev/fuse"
_MESSAGE_BYTES = 1 << 16  # INIT has about a hundred; the kernel insists on 8 KiB of room
_IN_FLAGS_AT = 40 + 12  # struct fuse_in_header, then major, minor and max_readahead
_OUT_FLAGS_AT = 16 + 12  # struct fuse_out_header, then the same
_FLAGS = struct.Struct("=I")
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
    flags = _FLAGS.unpack_from(init, _IN_FLAGS_AT)[0]
    return _with_flags(init, _IN_FLAGS_AT, flags & ~(AUTO_INVAL_DATA | HANDLE_KILLPRIV))


def amend(answer: bytes, init: bytes) -> bytes:
    """libfuse's ``answer`` with those of our flags that the kernel has offered in ``init``."""
    offered = _FLAGS.unpack_from(init, _IN_FLAGS_AT)[0]
    chosen = _FLAGS.unpack_from(answer, _OUT_FLAGS_AT)[0]
    return _with_flags(answer, _OUT_FLAGS_AT, chosen | offered & WANTED)


def granted(answer: bytes) -> int:
    """The flags in an answer to INIT."""
    return int(_FLAGS.unpack_from(answer, _OUT_FLAGS_AT)[0])


def _with_flags(message: bytes, at: int, flags: int) -> bytes:
    return message[:at] + _FLAGS.pack(flags) + message[at + _FLAGS.size :]


class Handover:
    """libfuse's descriptor: first a socket on which INIT waits, from `finish` on the kernel's."""

    def __init__(self, mounted: Mounted) -> None:
        self._mounted = mounted
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.fd = theirs.detach()
        self.flags = 0
        self._ours.send(hide(mounted.init))

    def finish(self) -> None:
        """Give libfuse's answer to the kernel, and libfuse the kernel."""
        answer = amend(self._ours.recv(_MESSAGE_BYTES), self._mounted.init)
        os.write(self._mounted.kernel_fd, answer)
        os.dup2(self._mounted.kernel_fd, self.fd, inheritable=False)
        os.close(self._mounted.kernel_fd)
        self._ours.close()
        self.flags = granted(answer)


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
