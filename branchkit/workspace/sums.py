"""The hash of a file's content, made so that a small change of a big file costs little.

A file of up to 1 MiB has the SHA-256 of its content. A bigger one has a Merkle hash, which is the
same for equal content whatever its history:

    leaf    = SHA-256 of a chunk of 64 KiB (the last one may be shorter)
    segment = SHA-256 of the leaves of up to 64 chunks, one after the other
    content = SHA-256 of all segments, one after the other

So content, segments and leaves are each the address of what they are the hash of: a pack holds big
files as blobs of that form, and two versions of one share all that did not change.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import lru_cache

from branchkit.workspace.places import SEGMENT_BYTES

BIG_BYTES = 1 << 20
CHUNK_BYTES = 1 << 16
LEAF_BYTES = 32
LEAVES = SEGMENT_BYTES // CHUNK_BYTES

Segments = tuple[bytes, ...]  # of each segment its leaves

_ZEROS = bytes(CHUNK_BYTES)


def content_hash(segments: Sequence[bytes]) -> bytes:
    """The hash of a big file from the leaves of its segments."""
    return hashlib.sha256(segment_hashes(segments)).digest()


def segment_hashes(segments: Sequence[bytes]) -> bytes:
    """The hashes of ``segments``, one after the other."""
    return b"".join(_segment_hash(segment) for segment in segments)


def _segment_hash(segment: bytes) -> bytes:
    whole_zero = zero_leaves(SEGMENT_BYTES)  # a sparse file has millions of these
    return _zero_hash() if segment is whole_zero else hashlib.sha256(segment).digest()


@lru_cache(maxsize=1)
def _zero_hash() -> bytes:
    return hashlib.sha256(zero_leaves(SEGMENT_BYTES)).digest()


def leaf(chunk: bytes) -> bytes:
    """The hash of one chunk."""
    if chunk == _ZEROS:  # a comparison costs a twentieth of a hash
        return zero_leaf(CHUNK_BYTES)
    return hashlib.sha256(chunk).digest()


@lru_cache(maxsize=16)
def zero_leaf(size: int) -> bytes:
    """The hash of a chunk of ``size`` zeros."""
    return hashlib.sha256(bytes(size)).digest()


@lru_cache(maxsize=16)
def zero_leaves(size: int) -> bytes:
    """The leaves of a segment of ``size`` zeros."""
    full, rest = divmod(size, CHUNK_BYTES)
    return zero_leaf(CHUNK_BYTES) * full + (zero_leaf(rest) if rest else b"")


def split(leaves: bytes) -> Segments:
    """All leaves of a file, one after the other, as segments."""
    step = LEAVES * LEAF_BYTES
    return tuple(leaves[at : at + step] for at in range(0, len(leaves), step))


def leaves_bytes(number: int, size: int) -> int:
    """How long the leaves of segment ``number`` of a file of ``size`` bytes are together."""
    stop = min(size, (number + 1) * SEGMENT_BYTES)
    return -(-(stop - number * SEGMENT_BYTES) // CHUNK_BYTES) * LEAF_BYTES


class Sums:
    """The leaves of a file that are known, and which of them are no longer true.

    A segment of which nothing is known is empty. ``fresh`` ones were hashed for this very record.
    """

    __slots__ = ("_stale", "fresh", "segments")

    def __init__(self, segments: Segments = (), stale: frozenset[int] = frozenset()) -> None:
        self.segments = segments
        self._stale = set(stale)
        self.fresh: set[int] = set()

    def copy(self) -> Sums:
        """The same, to be changed on its own."""
        return Sums(self.segments, frozenset(self._stale))

    def _known(self) -> int:
        return len(self.segments) * LEAVES

    def learn(self, number: int, leaves: bytes) -> None:
        """Take note of the leaves of a segment (a log says so after a restart)."""
        missing = (b"",) * (number + 1 - len(self.segments))
        segments = [*self.segments, *missing]
        segments[number] = leaves
        self.segments = tuple(segments)
        self._stale = {each for each in self._stale if each // LEAVES != number}

    def changed(self, start: int, stop: int, old_size: int, size: int) -> None:
        """These bytes were written, and the file's size went from ``old_size`` to ``size``."""
        if size != old_size:
            self._keep(min(size, old_size) // CHUNK_BYTES)
        if start < stop:
            known = self._known()
            self._stale.update(range(start // CHUNK_BYTES, min(known, -(-stop // CHUNK_BYTES))))

    def _keep(self, chunks: int) -> None:
        if chunks >= self._known():
            return
        number, more = divmod(chunks, LEAVES)
        cut = (self.segments[number][: more * LEAF_BYTES],) if more else ()
        self.segments = self.segments[:number] + cut
        self._stale = {each for each in self._stale if each < chunks}

    def refreshed(
        self,
        size: int,
        whole: Callable[[int, int], bytes | None],
        one: Callable[[int, int], bytes],
    ) -> Sums:
        """All leaves of the file, which has ``size`` bytes now.

        ``one`` makes the leaf of a chunk from its bounds; ``whole`` may know all leaves of a
        segment without looking at its chunks.
        """
        segments = list(self.segments)
        count = -(-size // SEGMENT_BYTES)
        segments += [b""] * (count - len(segments))
        spoilt = {chunk // LEAVES for chunk in self._stale}
        fresh = set(self.fresh)
        for number, old in enumerate(segments):
            if number in spoilt or len(old) != leaves_bytes(number, size):
                start = number * SEGMENT_BYTES
                stop = min(start + SEGMENT_BYTES, size)
                found = None if old else whole(start, stop)
                segments[number] = found or self._segment(old, start, stop, one)
                if not found:
                    fresh.add(number)
        done = Sums(tuple(segments))
        done.fresh = fresh
        return done

    def _segment(
        self, old: bytes, start: int, stop: int, one: Callable[[int, int], bytes]
    ) -> bytes:
        leaves = []
        for number, at in enumerate(range(start, stop, CHUNK_BYTES)):
            known = old[number * LEAF_BYTES : (number + 1) * LEAF_BYTES]
            if not known or at // CHUNK_BYTES in self._stale:
                known = one(at, min(at + CHUNK_BYTES, stop))
            leaves.append(known)
        return b"".join(leaves)
