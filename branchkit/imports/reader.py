"""The records of a damaged file, and what was repaired where (FORMATS: one reader for all).

Two shapes: JSONL (``read_lines``) and one JSON document (``read_document``). Nothing stops at the
first bad byte, and nothing is made up: where a line does not parse as a whole, only an object that
the format knows as a record of its own (``is_record``) is taken out of it; what is left over is
reported with its size. Numbers and strings that strict parsers refuse (NaN, long integers, lone
surrogates) are kept; ``journal/format.py`` says how they are written.

Codes: ``bom nul_run missing_newline torn_prefix torn_line raw_newline raw_control lone_surrogate
invalid_utf8 truncated_json``.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from typing import NamedTuple

import orjson

from branchkit.errors import InputRefused
from branchkit.imports.cut import complete_part, open_string
from branchkit.journal.events import Issue
from branchkit.journal.format import Json
from branchkit.journal.redact import redactor

BOM = b"\xef\xbb\xbf"
IsRecord = Callable[[dict[str, Json]], bool]

_SPACE = " \t\r\n"
_NUL_RUN = re.compile(rb"\0+")
_LONG_NUMBER = re.compile(rb"[0-9]{19}")  # orjson turns integers beyond 64 bits into floats
_OBJECT = re.compile(r'\{[ \t]*"')
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_LAX = json.JSONDecoder(strict=False)
# A line that is truly torn must not eat the rest of the file, nor the time to try.
_MOST_JOINED_LINES = 5000
_MOST_TRIES = 50


class Entry(NamedTuple):
    """One value with the line (from 1) and the byte (from 0) where it begins."""

    value: Json
    line: int
    offset: int


class Reading(NamedTuple):
    """What a file holds, in its order."""

    entries: list[Entry]
    issues: list[Issue]


class _Parsed(NamedTuple):
    value: Json
    codes: list[str]


def read_lines(data: bytes, is_record: IsRecord) -> Reading:
    """The values of JSONL text ``data`` without secrets (R11); lines that are empty hold none."""
    entries, issues = _Lines(data, is_record).read()
    clean = redactor(os.environ).value
    return Reading([entry._replace(value=clean(entry.value)) for entry in entries], issues)


def read_document(data: bytes) -> tuple[Json, list[Issue]]:
    """The value of a JSON document, as far as it goes, without secrets (R11).

    Raises InputRefused, naming the place.
    """
    value, issues = _document(data)
    return redactor(os.environ).value(value), issues


def _document(data: bytes) -> tuple[Json, list[Issue]]:
    issues: list[Issue] = []
    body = data[_skip_bom(data, issues) :]
    bare = body.strip(b"\0")
    if len(bare) < len(body):
        issues.append(Issue(code="nul_run", bytes=len(body) - len(bare)))
    try:
        parsed = _parse(bare)
    except ValueError:
        value, issue = _shortened(bare)
        return value, [*issues, issue]
    return parsed.value, [*issues, *(Issue(code=code) for code in parsed.codes)]


def _shortened(data: bytes) -> tuple[Json, Issue]:
    """What is complete of a document that was cut off, or that has something after its end."""
    text = data.decode("utf-8", "surrogateescape")
    try:
        value, end = _LAX.raw_decode(text, len(text) - len(text.lstrip()))
        rest = len(text[end:].encode("utf-8", "surrogateescape"))
        return value, Issue(code="torn_line", bytes=rest, detail="after the end of the document")
    except (ValueError, RecursionError) as error:
        part = complete_part(text)
        if part is None:
            raise InputRefused(
                f"this is not JSON: {error}", hint="the file is damaged in its middle, or no JSON"
            ) from None
        lost = len(text[part.length :].encode("utf-8", "surrogateescape"))
        return part.value, Issue(
            code="truncated_json", bytes=lost, detail="the incomplete end was left out"
        )


class _Lines:
    """One pass over the lines of a file."""

    def __init__(self, data: bytes, is_record: IsRecord) -> None:
        self._is_record = is_record
        self._entries: list[Entry] = []
        self._issues: list[Issue] = []
        self._offset = _skip_bom(data, self._issues)
        self._lines = data[self._offset :].split(b"\n")
        self._index = 0

    def read(self) -> Reading:
        while self._index < len(self._lines):
            raw = self._lines[self._index]
            if raw and not raw.isspace():
                self._line(raw)
            self._offset += len(self._lines[self._index]) + 1
            self._index += 1
        return Reading(self._entries, self._issues)

    def _line(self, raw: bytes) -> None:
        try:
            self._add(_parse(raw), 0)
        except ValueError:
            position = 0
            for run in _NUL_RUN.finditer(raw):
                self._piece(raw, position, run.start())
                self._issue("nul_run", run.start(), run.end())
                position = run.end()
            self._piece(raw, position, len(raw))

    def _piece(self, raw: bytes, start: int, end: int) -> None:
        """Take the records out of ``raw[start:end]``, which holds no NUL."""
        # Latin-1, so that positions are bytes; the structure of JSON is ASCII.
        text = raw[:end].decode("latin-1")
        position, found = start, False
        while (position := _skip_space(text, position)) < end:
            place = self._next_record(raw, text, position)
            if place is None:
                if not self._joined(raw, position):
                    self._issue("torn_line", position, end)
                return
            begin, stop, parsed = place
            if begin > position:
                self._issue("torn_prefix", position, begin)
            elif found:
                self._issue("missing_newline", begin, begin)
            self._add(parsed, begin)
            position, found = stop, True

    def _next_record(self, raw: bytes, text: str, start: int) -> tuple[int, int, _Parsed] | None:
        for match in _OBJECT.finditer(text, start):
            try:
                _, stop = _LAX.raw_decode(text, match.start())
                parsed = _parse(raw[match.start() : stop])
            except (ValueError, RecursionError):
                continue
            # A cut record may end with a complete object that was only a part of it.
            if isinstance(parsed.value, dict) and self._is_record(parsed.value):
                return match.start(), stop, parsed
        return None

    def _joined(self, raw: bytes, start: int) -> bool:
        """Whether the rest of the line goes on after a line break inside a string."""
        rest = raw[start:]
        if not rest.startswith(b"{") or not open_string(rest):
            return False
        is_open, joined, tries = True, [rest], 0
        for line in self._lines[self._index + 1 : self._index + 1 + _MOST_JOINED_LINES]:
            if line.startswith(b'{"'):
                return False
            joined.append(line)
            is_open ^= open_string(line)
            if is_open:
                continue
            if (tries := tries + 1) > _MOST_TRIES:
                return False
            try:
                parsed = _parse(b"\n".join(joined))
            except ValueError:
                continue
            if not isinstance(parsed.value, dict) or not self._is_record(parsed.value):
                return False
            last = self._index + len(joined) - 1
            self._add(parsed, start, f"lines {self._index + 1} to {last + 1}")
            self._offset += sum(len(used) + 1 for used in self._lines[self._index : last])
            self._index = last
            return True
        return False

    def _add(self, parsed: _Parsed, at: int, detail: str = "") -> None:
        self._entries.append(Entry(parsed.value, self._index + 1, self._offset + at))
        for code in parsed.codes:
            self._issues.append(Issue(code=code, line=self._index + 1, detail=detail))

    def _issue(self, code: str, start: int, end: int) -> None:
        self._issues.append(
            Issue(
                code=code,
                line=self._index + 1,
                bytes=end - start if end > start else None,
                detail=f"at byte {self._offset + start}",
            )
        )


def _skip_bom(data: bytes, issues: list[Issue]) -> int:
    if not data.startswith(BOM):
        return 0
    issues.append(Issue(code="bom", line=1, bytes=len(BOM), detail="at byte 0"))
    return len(BOM)


def _skip_space(text: str, position: int) -> int:
    while position < len(text) and text[position] in _SPACE:
        position += 1
    return position


def _parse(data: bytes) -> _Parsed:
    """The value of ``data``, with the codes of what a strict parser would refuse in it."""
    if not _LONG_NUMBER.search(data):
        try:
            return _Parsed(orjson.loads(data), [])
        except orjson.JSONDecodeError:
            pass  # refused for more reasons than that it is no JSON: see below
    codes = []
    try:
        text = data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        text = data.decode("utf-8", "surrogateescape")
        codes.append("invalid_utf8")
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except ValueError:
        value, control = _with_control_characters(text)
        codes.append(control)
    if not codes and has_lone_surrogate(value):
        codes.append("lone_surrogate")
    return _Parsed(value, codes)


def _with_control_characters(text: str) -> tuple[Json, str]:
    try:
        value = _LAX.decode(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    broken = any("\n" in match[0] or "\r" in match[0] for match in _STRING.finditer(text))
    return value, "raw_newline" if broken else "raw_control"


def has_lone_surrogate(value: Json) -> bool:
    """Whether some string in ``value`` is no Unicode text."""
    ahead = [value]
    while ahead:
        item = ahead.pop()
        if isinstance(item, dict):
            ahead.extend(item)
            ahead.extend(item.values())
        elif isinstance(item, list):
            ahead.extend(item)
        elif isinstance(item, str):
            try:
                item.encode()
            except UnicodeEncodeError:
                return True
    return False
