"""Truncation rules: which part of a tool's result the model gets to see (pure).

    none            everything
    head:40l        the first 40 lines          head:4000b   the first 4000 bytes of UTF-8
    tail:40l        the last 40 lines           tail:4000b   …
    middle:40l      the first 20 and the last 20: the middle is cut out

A text that is cut ends with one marker line that says how much is missing; a text that fits is
returned as it is. Lines end at ``\\n`` alone. Bytes are counted in UTF-8 and characters stay whole.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, NamedTuple

from branchkit.errors import UsageError

GAP = "[...]\n"  # stands where the middle was

_SPEC = re.compile(r"(head|tail|middle):([1-9][0-9]{0,11})([lb])")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


class Cut(NamedTuple):
    """The text for the model, and how much of the original it lacks (a part line counts)."""

    text: str
    omitted_lines: int
    omitted_bytes: int


class Parts(NamedTuple):
    """A text in three: ``head + omitted + tail`` is the original."""

    head: str
    omitted: str
    tail: str


@dataclass(frozen=True)
class Truncation:
    """One rule. ``str(rule)`` is its spec; ``limit`` is in lines or bytes, as ``unit`` says."""

    keep: Literal["all", "head", "tail", "middle"]
    limit: int = 0
    unit: Literal["l", "b"] = "l"

    def __str__(self) -> str:
        return "none" if self.keep == "all" else f"{self.keep}:{self.limit}{self.unit}"

    def split(self, text: str) -> Parts:
        """Where the rule cuts ``text``; ``omitted`` is empty if it fits."""
        if self.keep == "all":
            return Parts(text, "", "")
        return _split_lines(text, self) if self.unit == "l" else _split_bytes(text, self)

    def cut(self, text: str) -> Cut:
        """What the model sees of ``text``: within the limit, plus the marker if it was cut."""
        head, omitted, tail = self.split(text)
        if not omitted:
            return Cut(text, 0, 0)
        lines = omitted.count("\n") + (not omitted.endswith("\n"))
        size_bytes = len(_encode(omitted))
        gap = _ended(head) + GAP if head and tail else head
        kept = _LONE_SURROGATE.sub("\ufffd", _ended(gap + tail))
        return Cut(f"{kept}{self._marker(lines, size_bytes)}", lines, size_bytes)

    def _marker(self, lines: int, size_bytes: int) -> str:
        where = {"head": "more", "tail": "earlier", "middle": "middle"}.get(self.keep, "")
        count, word = (lines, "line") if self.unit == "l" else (size_bytes, "byte")
        return f"[{count} {where} {word}{'' if count == 1 else 's'} cut by {self}]"


def parse(spec: str) -> Truncation:
    """The rule that ``spec`` writes; UsageError with the grammar if it writes none."""
    if spec == "none":
        return Truncation("all")
    match = _SPEC.fullmatch(spec)
    if match is None:
        raise UsageError(
            f"truncation {spec!r} is not a rule",
            hint="none, or head|tail|middle:N and l (lines) or b (bytes): head:40l, tail:4000b",
        )
    keep, limit, unit = match.groups()
    return Truncation(keep, int(limit), unit)  # type: ignore[arg-type]  # the pattern holds them


def _ended(text: str) -> str:
    return text if not text or text.endswith("\n") else text + "\n"


def _shares(rule: Truncation) -> tuple[int, int]:
    """How much of the limit goes to the head and how much to the tail; the odd one to the head."""
    if rule.keep == "middle":
        return rule.limit - rule.limit // 2, rule.limit // 2
    return (rule.limit, 0) if rule.keep == "head" else (0, rule.limit)


def _split_lines(text: str, rule: Truncation) -> Parts:
    lines = text.split("\n")
    # What follows the last \n is a line only if there is something there.
    pieces = [line + "\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
    if len(pieces) <= rule.limit:
        return Parts(text, "", "")
    first, last = _shares(rule)
    end = len(pieces) - last
    return Parts("".join(pieces[:first]), "".join(pieces[first:end]), "".join(pieces[end:]))


def _split_bytes(text: str, rule: Truncation) -> Parts:
    data = _encode(text)
    if len(data) <= rule.limit:
        return Parts(text, "", "")
    first, last = _shares(rule)
    end = len(data) - last
    while _inside_character(data, first):
        first -= 1
    while _inside_character(data, end):
        end += 1
    return Parts(_decode(data[:first]), _decode(data[first:end]), _decode(data[end:]))


def _inside_character(data: bytes, position: int) -> bool:
    return position < len(data) and data[position] & 0xC0 == 0x80


def _encode(text: str) -> bytes:
    # A lone surrogate takes three bytes, as does the U+FFFD that will be shown in its place.
    return text.encode("utf-8", "surrogatepass")


def _decode(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")
