"""System calls that a confined process may not make, as a filter for the kernel (seccomp, BPF).

Two uses: the sandbox of live tools hands `program` to bubblewrap, an isolated replay puts one over
itself with `install`. A filter is inherited by everything that the process starts and cannot be
taken off again.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Sequence
from typing import NamedTuple

# What makes a network connection, or hands work to the kernel past this filter.
NETWORK = ("socket", "connect", "io_uring_setup")
# What a tool has no business with: other processes' memory, mounts, namespaces, the kernel itself.
ESCAPES = (
    "ptrace", "process_vm_readv", "process_vm_writev", "mount", "umount2", "pivot_root", "chroot",
    "unshare", "setns", "bpf", "keyctl", "add_key", "request_key", "userfaultfd", "perf_event_open",
    "io_uring_setup", "kexec_load", "init_module", "finit_module", "delete_module", "open_tree",
    "move_mount", "fsopen", "fsconfig", "fsmount", "mount_setattr",
)  # fmt: skip


class _Machine(NamedTuple):
    """The kernel's name for a processor, and its numbers where they differ by processor."""

    audit_arch: int
    seccomp: int
    numbers: dict[str, int]


# The same on every processor: calls newer than 2018.
_COMMON = {
    "io_uring_setup": 425, "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431,
    "fsmount": 432, "clone3": 435, "mount_setattr": 442,
}  # fmt: skip
_MACHINES = {
    "x86_64": _Machine(0xC000003E, 317, {
        "socket": 41, "connect": 42, "clone": 56, "ptrace": 101, "pivot_root": 155, "chroot": 161,
        "mount": 165, "umount2": 166, "init_module": 175, "delete_module": 176, "kexec_load": 246,
        "add_key": 248, "request_key": 249, "keyctl": 250, "unshare": 272, "perf_event_open": 298,
        "setns": 308, "process_vm_readv": 310, "process_vm_writev": 311, "finit_module": 313,
        "bpf": 321, "userfaultfd": 323,
    }),
    "aarch64": _Machine(0xC00000B7, 277, {
        "umount2": 39, "mount": 40, "pivot_root": 41, "chroot": 51, "unshare": 97,
        "kexec_load": 104, "init_module": 105, "delete_module": 106, "ptrace": 117, "socket": 198,
        "connect": 203, "add_key": 217, "request_key": 218, "keyctl": 219, "clone": 220,
        "perf_event_open": 241, "setns": 268, "process_vm_readv": 270, "process_vm_writev": 271,
        "finit_module": 273, "bpf": 280, "userfaultfd": 282,
    }),
}  # fmt: skip

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # BPF, on a constant
_NUMBER_AT, _ARCH_AT, _FIRST_ARGUMENT_AT = 0, 4, 16  # struct seccomp_data
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_OTHER_ABI = 0x40000000  # numbers from here on are x86's x32, with meanings of their own
_NEW_NAMESPACES = 0x7E020000  # CLONE_NEW*, but for time
_INSTRUCTION = struct.Struct("=HBBI")

_PR_SET_NO_NEW_PRIVS = 38
_SET_MODE_FILTER, _ALL_THREADS = 1, 1


def program(calls: Sequence[str]) -> bytes | None:
    """A filter that refuses ``calls`` with EPERM, new namespaces too; None for other processors."""
    machine = _MACHINES.get(platform.machine())
    if machine is None:
        return None
    numbers = {**_COMMON, **machine.numbers}
    refuse = (_RETURN, 0, 0, _ERRNO | errno.EPERM)
    code = [
        (_LOAD, 0, 0, _ARCH_AT),
        (_EQUAL, 1, 0, machine.audit_arch),
        refuse,
        (_LOAD, 0, 0, _NUMBER_AT),
        (_AT_LEAST, 0, 1, _OTHER_ABI),
        refuse,
        # Its flags lie in memory, which a filter cannot read: say that there is no such call, and
        # the C library takes clone.
        (_EQUAL, 0, 1, numbers["clone3"]),
        (_RETURN, 0, 0, _ERRNO | errno.ENOSYS),
    ]
    for name in calls:
        code += [(_EQUAL, 0, 1, numbers[name]), refuse]
    code += [
        (_EQUAL, 0, 3, numbers["clone"]),
        (_LOAD, 0, 0, _FIRST_ARGUMENT_AT),
        (_ANY_BIT, 0, 1, _NEW_NAMESPACES),
        refuse,
        (_RETURN, 0, 0, _ALLOW),
    ]
    return b"".join(_INSTRUCTION.pack(*one) for one in code)


def install(calls: Sequence[str]) -> bool:
    """Refuse ``calls`` in this process and all that it starts, for good; whether that was possible.

    Sets no_new_privs: setuid programs run without their privileges from now on.
    """
    code = program(calls)
    machine = _MACHINES.get(platform.machine())
    if code is None or machine is None:
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(code, len(code))
    # struct sock_fprog: a count and, aligned, a pointer.
    head = struct.pack("@HP", len(code) // _INSTRUCTION.size, ctypes.addressof(buffer))
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return not libc.syscall(machine.seccomp, _SET_MODE_FILTER, _ALL_THREADS, head)
