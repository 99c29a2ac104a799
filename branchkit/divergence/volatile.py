"""What varies in observations though nothing behaves differently: found, and left out (R7, R62).

A tool that prints the time or a process id gives another observation in every run. Two recordings
that do the same show which words those are: a **mask** is a pattern of one line of a tool's
results, learned from a line that differs. What it matches counts as equal, and nothing else does.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher as _Matcher
from typing import NamedTuple

_WORD = re.compile(r"\s+|[^\s]+")
# The narrowest that fits both readings of a word; a mask takes no more than it has to.
_SHAPES = (r"\d+", r"[0-9a-f]+", r"[0-9A-Fa-f-]+", r"[\d.,:TZ+/-]+", r"\S+")


class Mask(NamedTuple):
    """``pattern`` matches whole lines of results of ``tool``."""

    tool: str
    pattern: str


class Observed(NamedTuple):
    """The results of one call in two recordings; ``place`` names it (``t0004.1``)."""

    place: str
    tool: str
    one: str
    other: str


class Learned(NamedTuple):
    """``masks`` make equal what they can; ``left`` are the places that differ all the same."""

    masks: tuple[Mask, ...]
    differing: tuple[str, ...]
    left: tuple[str, ...]


def learn(pairs: Iterable[Observed]) -> Learned:
    """Masks from results of calls that both recordings made, in order, without repeats."""
    masks: dict[Mask, None] = {}
    differing = [pair for pair in pairs if pair.one != pair.other]
    for pair in differing:
        masks.update(dict.fromkeys(_masks(pair)))
    found = tuple(masks)
    left = [
        pair.place
        for pair in differing
        if masked(found, pair.tool, pair.one) != masked(found, pair.tool, pair.other)
    ]
    return Learned(found, tuple(pair.place for pair in differing), tuple(left))


def masked(masks: Sequence[Mask], tool: str, text: str) -> str:
    """``text`` with every line that a mask of its tool matches replaced by the mask's pattern."""
    mine = [(re.compile(mask.pattern), mask.pattern) for mask in masks if mask.tool == tool]
    if not mine:
        return text
    return "\n".join(_line(line, mine) for line in text.split("\n"))


def _line(line: str, masks: Sequence[tuple[re.Pattern[str], str]]) -> str:
    return next((said for pattern, said in masks if pattern.fullmatch(line)), line)


def _masks(pair: Observed) -> Iterator[Mask]:
    """One mask a differing line; none where lines were added or lost: that is behaviour."""
    lines, others = pair.one.split("\n"), pair.other.split("\n")
    if len(lines) != len(others):
        return
    for line, other in zip(lines, others, strict=True):
        pattern = _pattern(line, other) if line != other else None
        if pattern is not None:
            yield Mask(pair.tool, pattern)


def _pattern(line: str, other: str) -> str | None:
    """A pattern of both lines, word by word; None where their words do not correspond."""
    words, others = _WORD.findall(line), _WORD.findall(other)
    parts: list[str] = []
    for kind, begin, end, start, stop in _Matcher(None, words, others, False).get_opcodes():
        if kind == "equal":
            parts.append(re.escape("".join(words[begin:end])))
        elif kind == "replace" and end - begin == stop - start:
            pairs = zip(words[begin:end], others[start:stop], strict=True)
            parts += [_shape(one, two) for one, two in pairs]
        else:
            return None
    return "".join(parts)


def _shape(one: str, two: str) -> str:
    """The narrowest pattern of both words."""
    if one == two:
        return re.escape(one)
    if one.isspace() or two.isspace():
        return r"\s+" if one.isspace() and two.isspace() else r".+"
    return next(shape for shape in _SHAPES if re.fullmatch(shape, one) and re.fullmatch(shape, two))
