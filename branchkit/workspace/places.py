"""Where the bytes of a file lie: in the base, in host files of layers, or nowhere (zeros).

A big file that is written in a new layer is not copied: the layer's host file holds what was
written, at the same offsets (or its log does, if that is little), and `Pieces` says which bytes
those are. One lookup finds the owner
of a byte however many layers the file has been written in. Pure: nothing is read here.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from operator import itemgetter
from typing import NamedTuple

SEGMENT_BYTES = 4 << 20
CROWD = 512  # runs in a segment; from here on it is better copied whole


class Hosted(NamedTuple):
    """In the host file that layer ``layer`` has for ``fid``."""

    layer: str
    fid: int


class Logged(NamedTuple):
    """In the log of layer ``layer``, ``shift`` bytes further on than in the file."""

    layer: str
    shift: int


class InBase(NamedTuple):
    """In the base, under ``path``; it had this size and time when it was met."""

    path: str
    size: int
    mtime_ns: int


Place = Hosted | Logged | InBase
_Run = tuple[int, Place | None]  # where it starts in its segment; it ends where the next one does
_NOTHING: tuple[_Run, ...] = ((0, None),)
_start = itemgetter(0)


class Piece(NamedTuple):
    """The bytes from ``start`` to before ``stop`` of a file lie in ``place``."""

    start: int
    stop: int
    place: Place | None  # None: zeros


class Pieces:
    """A map from bytes to places; what is behind the end of the file is mapped to zeros.

    Segments are never changed, only replaced, so a copy costs one pointer for each 4 MiB and
    shares the rest.
    """

    __slots__ = ("_segments",)

    def __init__(self, place: Place, size: int) -> None:
        """All of a file of ``size`` bytes in one place."""
        full, rest = divmod(size, SEGMENT_BYTES)
        self._segments: list[tuple[_Run, ...]] = [((0, place),)] * full
        if rest:
            self._segments.append(((0, place), (rest, None)))

    def copy(self) -> Pieces:
        """A map that can be changed without changing this one."""
        new = Pieces.__new__(Pieces)
        new._segments = self._segments.copy()
        return new

    def claim(self, start: int, stop: int, place: Place | None) -> None:
        """From now on these bytes lie in ``place``."""
        segments = self._segments
        last = -(-stop // SEGMENT_BYTES)
        if last > len(segments) and start < stop:
            segments.extend([_NOTHING] * (last - len(segments)))
        while start < stop:
            number, at = divmod(start, SEGMENT_BYTES)
            end = min(at + stop - start, SEGMENT_BYTES)
            segments[number] = _claimed(segments[number], at, end, place)
            start += end - at

    def cut(self, size: int) -> None:
        """Everything from ``size`` on is zeros, should the file grow over it again."""
        number, at = divmod(size, SEGMENT_BYTES)
        del self._segments[number + (at > 0) :]
        if at and number < len(self._segments):
            self.claim(size, (number + 1) * SEGMENT_BYTES, None)

    def is_crowded(self, offset: int) -> bool:
        """Whether the segment with the byte at ``offset`` consists of too many runs."""
        number = offset // SEGMENT_BYTES
        return number < len(self._segments) and len(self._segments[number]) > CROWD

    def within(self, start: int, stop: int) -> Iterator[Piece]:
        """The pieces that make up these bytes, in order, each as long as possible."""
        open_piece: Piece | None = None
        for piece in self._runs(start, stop):
            if open_piece is not None and open_piece.place == piece.place:
                open_piece = open_piece._replace(stop=piece.stop)
                continue
            if open_piece is not None:
                yield open_piece
            open_piece = piece
        if open_piece is not None:
            yield open_piece

    def _runs(self, start: int, stop: int) -> Iterator[Piece]:
        while start < stop:
            number, at = divmod(start, SEGMENT_BYTES)
            known = number < len(self._segments)
            segment = self._segments[number] if known else _NOTHING
            base = number * SEGMENT_BYTES
            for index in range(bisect_right(segment, at, key=_start) - 1, len(segment)):
                behind = segment[index + 1][0] if index + 1 < len(segment) else SEGMENT_BYTES
                end = min(base + behind, stop)
                yield Piece(start, end, segment[index][1])
                start = end
                if start == stop:
                    break


def _claimed(
    segment: tuple[_Run, ...], start: int, stop: int, place: Place | None
) -> tuple[_Run, ...]:
    first = bisect_left(segment, start, key=_start)
    last = bisect_right(segment, stop, key=_start)
    behind = segment[last - 1][1]
    new = segment[:first]
    if not new or new[-1][1] != place:
        new += ((start, place),)
    if stop < SEGMENT_BYTES and behind != place:
        new += ((stop, behind),)
    return new + segment[last:]
