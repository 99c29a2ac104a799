"""What format a file is in, by its content; its name counts for nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from branchkit.errors import InputRefused
from branchkit.imports import claude_code, miniswe, sweagent
from branchkit.imports.claude_code import read_claude_code
from branchkit.imports.claude_records import is_record
from branchkit.imports.miniswe import is_miniswe, read_miniswe
from branchkit.imports.reader import BOM, Entry, Reading, read_document, read_lines
from branchkit.imports.run import ImportedRun
from branchkit.imports.sweagent import is_sweagent, read_sweagent
from branchkit.journal.events import Issue
from branchkit.journal.format import Json

FORMATS = (claude_code.NAME, miniswe.NAME, sweagent.NAME)
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_HINT = f"files of {', '.join(FORMATS)} can be imported"


class Found(NamedTuple):
    """A recognised file; ``read`` gives its run, or raises InputRefused."""

    format: str
    read: Callable[[], ImportedRun]


def recognise(data: bytes, path: Path, wanted: str | None = None) -> Found:
    """The reader for ``data``. ``wanted`` says it where the content does not.

    Raises InputRefused, naming what the file looks like.
    """
    if not data.strip(b"\0 \t\r\n"):
        raise InputRefused(f"{path.name} is empty", hint="was the run saved at all?")
    if data.startswith(_UTF16):
        raise InputRefused(
            f"{path.name} is UTF-16 text", hint="convert it: iconv -f UTF-16 -t UTF-8"
        )
    if wanted == claude_code.NAME or (wanted is None and _is_session(data)):
        reading = read_lines(data, is_record)
        return Found(claude_code.NAME, lambda: read_claude_code(reading, path))
    try:
        value, issues = read_document(data)
    except InputRefused as error:
        raise InputRefused(f"{path.name}: {error.message}", hint=error.hint) from None
    return _document(value, issues, path, wanted)


def _document(value: Json, issues: list[Issue], path: Path, wanted: str | None) -> Found:
    def with_issues(read: Callable[[Any], ImportedRun]) -> ImportedRun:
        run = read(value)
        run.issues[:0] = issues
        return run

    if is_sweagent(value) and wanted in (None, sweagent.NAME):
        return Found(sweagent.NAME, lambda: with_issues(read_sweagent))
    if is_miniswe(value) and wanted in (None, miniswe.NAME):
        return Found(miniswe.NAME, lambda: with_issues(read_miniswe))
    lines = value.get("loglines") if isinstance(value, dict) else None
    if isinstance(lines, list):
        entries = [Entry(line, number, 0) for number, line in enumerate(lines, start=1)]
        reading = Reading(entries, issues)
        return Found(claude_code.NAME, lambda: read_claude_code(reading, path))
    raise InputRefused(f"{path.name} {_looks_like(value, wanted)}", hint=_HINT)


def _is_session(data: bytes) -> bool:
    """Whether one of the first lines is a record of a Claude Code session."""
    for line in data.removeprefix(BOM).split(b"\n", 64)[:64]:
        if not line.strip(b"\0 \t\r"):
            continue
        try:
            value = orjson.loads(line)
        except orjson.JSONDecodeError:
            entries = read_lines(line, is_record).entries
            value = entries[0].value if entries else None
        if isinstance(value, dict) and is_record(value):
            return True
    return False


def _looks_like(value: Json, wanted: str | None) -> str:
    if wanted is not None:
        return f"is not in the format {wanted}"
    if isinstance(value, list):
        return "is a list, but not one of mini-swe-agent's messages"
    if not isinstance(value, dict):
        return "holds no object"
    if "event_hash" in value:
        return "is a branchkit journal already"
    if "payload" in value and "type" in value:
        return "looks like a Codex rollout, which cannot be imported yet"
    if "messages" in value:
        return "holds messages, but not of a harness that is known"
    return f"has the keys {', '.join(sorted(value)[:6])}, which belong to no known format"
