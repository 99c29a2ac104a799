"""Requests that the kernel sends again because the worker that had read them was killed.

Which of them had been carried out already stands in the log: `kept` says where the last request
that must not happen twice writes its frame, and if the frame is there, the request has happened.
Its answer is then put together from questions (LOOKUP, OPEN) instead of doing it again. Names as in
``include/uapi/linux/fuse.h``.
"""

from __future__ import annotations

import os
import select
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from branchkit.workspace.changes import Change, Cut, New, Put, Xattr
from branchkit.workspace.layers import FID_BITS

RESENT = 1 << 63  # in a request's number
LOOKUP, FORGET, SYMLINK, MKNOD, MKDIR, UNLINK, RMDIR, RENAME, LINK = 1, 2, 6, 8, 9, 10, 11, 12, 13
OPEN, RELEASE, SETXATTR, REMOVEXATTR, CREATE = 14, 18, 21, 24, 35
INTERRUPT, BATCH_FORGET, RENAME2 = 36, 42, 45
MAKING = (SYMLINK, MKNOD, MKDIR, LINK, CREATE)  # answered with the entry

_IN = struct.Struct("=IIQQIIII")  # len opcode unique nodeid uid gid pid extlen
_OUT = struct.Struct("=IiQ")  # len error unique
_U32, _U64, _FORGET = struct.Struct("=I"), struct.Struct("=Q"), struct.Struct("=QQ")
_OPEN = struct.Struct("=II")
# What stands in front of the name; the first four bytes of CREATE's are its flags.
_NAME_AT = {
    SYMLINK: 0, UNLINK: 0, RMDIR: 0, REMOVEXATTR: 0, RENAME: 8, LINK: 8, MKDIR: 8, SETXATTR: 8,
    MKNOD: 16, CREATE: 16, RENAME2: 16,
}  # fmt: skip
_NODE_MASK = (1 << FID_BITS) - 1
_ONLY_CREATE = os.O_CREAT | os.O_EXCL | os.O_TRUNC | os.O_NOCTTY

# A change as a request names it: what happened to which name of which inode.
Fact = tuple[str, int, str]


class Request(NamedTuple):
    """One message of the kernel."""

    opcode: int
    unique: int
    node: int
    caller: tuple[int, int, int]
    body: bytes

    @property
    def handle(self) -> int:
        """The file handle of a RELEASE."""
        return int(_U64.unpack_from(self.body)[0])

    def names(self) -> list[bytes]:
        """The names that it is about: one, or two for a rename."""
        return self.body[_NAME_AT[self.opcode] :].split(b"\0")

    def ask(self, opcode: int, node: int, body: bytes) -> bytes:
        """The message of another request of the same caller, under the same number."""
        head = (_IN.size + len(body), opcode, self.unique, node, *self.caller, 0)
        return _IN.pack(*head) + body

    def lookup(self) -> bytes:
        """Ask for the entry that the request made."""
        return self.ask(LOOKUP, self.node, self.names()[0] + b"\0")

    def open(self, entry: bytes) -> bytes:
        """Ask for a handle of the file that ``entry``, a reply to LOOKUP, is about."""
        flags = _U32.unpack_from(self.body)[0] & ~_ONLY_CREATE
        return self.ask(OPEN, _U64.unpack_from(entry, _OUT.size)[0], _OPEN.pack(flags, 0))

    def answer(self, replies: Sequence[bytes]) -> bytes:
        """The reply to the request: that it succeeded, with the bodies of ``replies``."""
        body = b"".join(reply[_OUT.size :] for reply in replies)
        return _OUT.pack(_OUT.size + len(body), 0, self.unique) + body


class Applied(NamedTuple):
    """The changes that the last request to branch ``number`` had made."""

    number: int
    changes: Sequence[Change]

    def covers(self, request: Request) -> bool:
        """Whether ``request`` is what made these changes."""
        if request.opcode not in _NAME_AT or request.node >> FID_BITS != self.number:
            return False
        facts, expected = _facts(self.changes), _expected(request)
        if request.opcode in (RENAME, RENAME2):  # the name that it replaced is cut too
            return expected <= facts
        return expected == facts


def _facts(changes: Sequence[Change]) -> set[Fact]:
    found: set[Fact] = set()
    for change in changes:
        match change:
            case New():
                found.add(("new", 0, ""))
            case Put() | Cut():
                found.add((type(change).__name__, change.fid, change.name))
            case Xattr():
                kind = "unset" if change.value is None else "set"
                found.add((kind, change.fid, change.name))
    return found


def _expected(request: Request) -> set[Fact]:
    fid, names = request.node & _NODE_MASK, [os.fsdecode(name) for name in request.names()]
    match request.opcode:
        case 12 | 45:
            to = _U64.unpack_from(request.body)[0] & _NODE_MASK
            return {("Cut", fid, names[0]), ("Put", to, names[1])}
        case 10 | 11:
            return {("Cut", fid, names[0])}
        case 13:
            return {("Put", fid, names[0])}
        case 21:
            return {("set", fid, names[0])}
        case 24:
            return {("unset", fid, names[0])}
        case _:
            return {("new", 0, ""), ("Put", fid, names[0])}


def failed(reply: bytes) -> bool:
    """Whether a reply tells of an error."""
    return bool(_OUT.unpack_from(reply)[1])


def peek(
    fd: int, most_bytes: int, forget: Callable[[Sequence[tuple[int, int]]], None]
) -> Iterator[Request]:
    """The requests that were sent again; they stand in front of all others.

    They stay unanswered, and one more FUSE_NOTIFY_RESEND puts them back. What the kernel gives back
    (it has no reply and comes only once) goes to ``forget``.
    """
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    while poll.poll(0):
        request = _parse(os.read(fd, most_bytes))
        if request.opcode == FORGET:
            forget([(request.node, _U64.unpack_from(request.body)[0])])
        elif request.opcode == BATCH_FORGET:
            count = _U32.unpack_from(request.body)[0]
            forget(list(_FORGET.iter_unpack(request.body[8 : 8 + count * _FORGET.size])))
        elif request.unique & RESENT:
            yield request
        elif request.opcode != INTERRUPT:
            return


def _parse(message: bytes) -> Request:
    _, opcode, unique, node, uid, gid, pid, _ = _IN.unpack_from(message)
    return Request(opcode, unique, node, (uid, gid, pid), message[_IN.size :])
