"""What the kernel holds of a mount, in memory that outlives the process which serves it.

The holder (`holder`) keeps this memory and the FUSE descriptor; a worker that takes over finds in
here what no log says: how often the kernel was told of a node, which files are open, whether a
request had been carried out when its worker was killed. Words of eight bytes, native order:

    0 version · 1 pinned · 2 cap in bytes + 1 (0: none) · 3 layer, 4 offset: where a request that
    must not happen twice writes its log frame · 5 kind, 6 handle: the open or release under way ·
    7 end of the slots · 8 bytes of INIT, which stands at byte 128
    from 512 on slots of four: node (0: free) · lookups · opens · opens for writing

Each step is one word, in an order that can only count too much when a kill comes between two: what
is counted too often stays until the unmount, what is still used is never given back.
"""

from __future__ import annotations

import mmap
import os
from typing import NamedTuple

from branchkit.errors import WorkspaceError
from branchkit.workspace.layers import FID_BITS

WRITE_HANDLE = 1 << 62  # in a handle: it may write, so its pages may be dirty
TAMED_HANDLE = 1 << 61  # in a handle: opened by somebody whose writes take setuid bits away
NODE_MASK = TAMED_HANDLE - 1

_VERSION = 1
_WORD_BYTES = 8
_VERSION_AT, _PINNED, _CAP, _LAYER, _OFFSET, _KIND, _HANDLE, _END, _INIT_BYTES = range(9)
_INIT_AT = 128
_SLOTS, _SLOT_WORDS = 512, 4
_LOOKUPS, _OPENS, _WRITERS = 1, 2, 3
_OPENED, _CLOSED = 1, 2
_FIRST_BYTES = 1 << 16


class UnderWay(NamedTuple):
    """Where the request that was being served writes its frame: the layer and the log's size."""

    layer: str
    offset: int


class Kept:
    """The counts and notes; the process that has them mapped is the only one that writes them."""

    def __init__(self, fd: int | None = None) -> None:
        """Map what ``fd`` (a memfd) holds; None makes memory of one's own."""
        self._fd = os.memfd_create("branchkit-kept", os.MFD_CLOEXEC) if fd is None else fd
        if os.fstat(self._fd).st_size == 0:
            os.truncate(self._fd, _FIRST_BYTES)
        self._map = mmap.mmap(self._fd, 0)
        self._words = memoryview(self._map).cast("Q")
        if self._words[_END] == 0:
            self._words[_VERSION_AT], self._words[_END] = _VERSION, _SLOTS
        if self._words[_VERSION_AT] != _VERSION:
            raise WorkspaceError(
                f"the kept state has version {self._words[_VERSION_AT]}, this is {_VERSION}",
                hint="branchkit was updated while a store was mounted: run `branchkit umount`",
            )
        slots = range(_SLOTS, self._words[_END], _SLOT_WORDS)
        self._slots = {self._words[at]: at for at in slots if self._words[at]}
        self._free = [at for at in slots if not self._words[at]]
        found = self._slots.items()
        self._open = {node for node, at in found if self._words[at + _OPENS]}
        self._writing = {node for node, at in found if self._words[at + _WRITERS]}

    @property
    def init(self) -> bytes:
        """The kernel's INIT; empty when the mount is not one that can be taken over."""
        return bytes(self._map[_INIT_AT : _INIT_AT + self._words[_INIT_BYTES]])

    @init.setter
    def init(self, message: bytes) -> None:
        self._map[_INIT_AT : _INIT_AT + len(message)] = message
        self._words[_INIT_BYTES] = len(message)

    @property
    def pinned(self) -> bool:
        """Whether the daemon stays when its last client has gone."""
        return bool(self._words[_PINNED])

    @pinned.setter
    def pinned(self, value: bool) -> None:
        self._words[_PINNED] = value

    @property
    def cap_bytes(self) -> int | None:
        """The store's cap."""
        return self._words[_CAP] - 1 if self._words[_CAP] else None

    @cap_bytes.setter
    def cap_bytes(self, value: int | None) -> None:
        self._words[_CAP] = 0 if value is None else value + 1

    def begin(self, layer: str, offset: int) -> None:
        """A request that must not happen twice is about to write its frame at ``offset``."""
        self._words[_OFFSET] = offset
        self._words[_LAYER] = int(layer)

    def answered(self) -> None:
        """The request under way has its reply."""
        words = self._words
        if words[_LAYER]:
            words[_LAYER] = 0
        if words[_KIND]:
            words[_KIND] = 0

    def under_way(self) -> UnderWay | None:
        """What `begin` noted last, unless its request was answered."""
        layer = self._words[_LAYER]
        return UnderWay(str(layer), self._words[_OFFSET]) if layer else None

    def looked_up(self, node: int) -> None:
        """The kernel was told of ``node`` and will remember it."""
        at = self._slots.get(node)
        if at is None:
            at = self._slot(node)
        self._words[at + _LOOKUPS] += 1

    def forgotten(self, node: int, lookups: int) -> bool:
        """The kernel has given back that many lookups; whether that were all."""
        at = self._slots.get(node)
        if at is None:
            return True
        left = self._words[at + _LOOKUPS] - lookups
        self._words[at + _LOOKUPS] = max(left, 0)
        if left <= 0:
            self._give_back(node, at)
        return left <= 0

    def opened(self, handle: int) -> None:
        """A file was opened as ``handle``."""
        node = handle & NODE_MASK
        at = self._slots.get(node)
        if at is None:
            at = self._slot(node)
        words = self._words
        words[at + _OPENS] += 1
        self._open.add(node)
        if handle & WRITE_HANDLE:
            words[at + _WRITERS] += 1
            self._writing.add(node)
        words[_HANDLE], words[_KIND] = handle, _OPENED

    def closed(self, handle: int) -> bool:
        """The last close of ``handle``; whether its file is open no more."""
        node = handle & NODE_MASK
        at = self._slots.get(node)
        if at is None:
            return True
        self._words[_HANDLE], self._words[_KIND] = handle, _CLOSED
        self._count_down(node, at, handle)
        return not self._words[at + _OPENS]

    def take_back_open(self, node: int | None) -> None:
        """The open under way, of ``node`` if given, is going to be asked for once more."""
        handle = self._words[_HANDLE]
        opened = handle & NODE_MASK
        if self._words[_KIND] == _OPENED and node in (None, opened):
            self._words[_KIND] = 0
            self._count_down(opened, self._slots[opened], handle)

    def was_closed(self, handle: int) -> bool:
        """Whether ``handle`` is the one whose release was under way, and counted."""
        return self._words[_KIND] == _CLOSED and self._words[_HANDLE] == handle

    @property
    def unsettled(self) -> bool:
        """Whether anything was under way that the kernel may ask for again."""
        return bool(self._words[_LAYER] or self._words[_KIND])

    def holds(self, node: int) -> bool:
        """Whether the kernel remembers ``node`` or has it open."""
        return node in self._slots

    def open_in(self, number: int) -> bool:
        """Whether any file of branch ``number`` is open."""
        return any(node >> FID_BITS == number for node in self._open)

    def writers(self, number: int) -> list[int]:
        """The nodes of branch ``number`` that are open for writing."""
        return [node for node in self._writing if node >> FID_BITS == number]

    def open_branches(self) -> set[int]:
        """The numbers of all branches with open files."""
        return {node >> FID_BITS for node in self._open}

    def _slot(self, node: int) -> int:
        if not self._free:
            self._grow()
        at = self._free.pop()
        self._words[at] = node
        self._slots[node] = at
        return at

    def _grow(self) -> None:
        end = self._words[_END]
        if end == len(self._words):
            self._words.release()
            self._map.resize(2 * len(self._map))
            self._words = memoryview(self._map).cast("Q")
        more = min(len(self._words), end + 256 * _SLOT_WORDS)
        self._words[_END] = more
        self._free += range(more - _SLOT_WORDS, end - 1, -_SLOT_WORDS)

    def _count_down(self, node: int, at: int, handle: int) -> None:
        words = self._words
        if handle & WRITE_HANDLE and words[at + _WRITERS]:
            words[at + _WRITERS] -= 1
            if not words[at + _WRITERS]:
                self._writing.discard(node)
        if words[at + _OPENS]:
            words[at + _OPENS] -= 1
            if not words[at + _OPENS]:
                self._open.discard(node)
                self._give_back(node, at)

    def _give_back(self, node: int, at: int) -> None:
        if not (self._words[at + _LOOKUPS] or self._words[at + _OPENS]):
            self._words[at + _WRITERS] = 0
            self._words[at] = 0
            self._writing.discard(node)
            del self._slots[node]
            self._free.append(at)
