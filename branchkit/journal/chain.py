"""The hash chain over raw lines: sealing an event, and checking a line without parsing it.

``event_hash`` is the key that sorts first, so every line starts with the same 88 bytes and the hash
input is ``{`` plus the rest of the line. Verification therefore needs no parser (10-30 times faster
than parse and re-canonicalise). The remaining envelope keys sort after ``payload``, so ``seq`` and
the back link stand at the end of the line, where a short search finds them.
"""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple

from branchkit.errors import InputRefused
from branchkit.journal.events import (
    Event,
    Payload,
    check_payload,
    decode_payload,
    parse_payload,
    payload_json,
)
from branchkit.journal.format import (
    HASH_PREFIX,
    SCHEMA_VERSION,
    Json,
    closed_canonical,
    escaped_canonical,
    parse,
)
from branchkit.journal.shapes import Shape, shape

HEAD = b'{"event_hash":"' + HASH_PREFIX.encode()
HEAD_BYTES = 88  # HEAD, 64 hex digits, quote and comma
# No name behind the payload holds a quote, so the last place where this stands is the envelope's.
TAIL_KEY = b'"prev_event_hash":"'
TAIL = re.compile(
    rb'"prev_event_hash":"(sha256:[0-9a-f]{64})",'
    rb'"recorded_at":"([^"\\\x00-\x1f]*)","run_id":"([^"\\\x00-\x1f]*)",'
    rb'"schema_version":(0|[1-9]\d*),"seq":(0|[1-9]\d*),'
    rb'"step_id":"([^"\\\x00-\x1f]*)","turn":(0|[1-9]\d*)\}'
)
PREV, AT, RUN, VERSION, SEQ, STEP, TURN = range(1, 8)  # groups of TAIL
_KIND = re.compile(rb'"kind":"([A-Za-z]+)","payload":')
# What stands behind the payload must be findable without a parser: no quote, no escape, and short.
_NAMES = re.compile(r"(?:[^\"\\\x00-\x1f\x7f\ud800-\udfff]{0,128}\x00){3}")
_ENVELOPE = {
    "event_hash", "kind", "payload", "prev_event_hash", "recorded_at", "run_id", "schema_version",
    "seq", "step_id", "turn",
}  # fmt: skip
_VERSION = str(SCHEMA_VERSION).encode()
_FOREIGN = "the hash is right, so the line was written so: not by branchkit"


class Sealed(NamedTuple):
    """An event together with the line that stands for it, newline included."""

    event: Event
    line: bytes


class Link(NamedTuple):
    """What a raw line says of its place in the chain."""

    seq: int
    turn: int
    event_hash: str
    prev_event_hash: str


def seal(
    payload: Payload,
    *,
    seq: int,
    turn: int,
    step_id: str,
    recorded_at: str,
    run_id: str,
    prev_event_hash: str,
) -> Sealed:
    """The event with its hash, and its line.

    Raises ValueError or TypeError for what could not be read back: a payload of another shape than
    its kind's, a value that is not JSON, a name with quotes, escapes or more than 128 characters.
    """
    names = (recorded_at, run_id, step_id)
    if not _NAMES.fullmatch(f"{recorded_at}\0{run_id}\0{step_id}\0"):
        raise ValueError(f"one of {names} cannot be a name in an envelope")
    if seq < 0 or turn < 0:
        raise ValueError(f"seq {seq} and turn {turn} must not be negative")
    kind = type(payload).__name__
    plain = payload_json(payload)
    check_payload(kind, plain)
    # The rest of the envelope is put together in canonical order and holds nothing to escape.
    told = _told(plain, shape(type(payload)))
    body = (
        b'"kind":"%b","payload":%b,"prev_event_hash":"%b","recorded_at":"%b","run_id":"%b",'
        b'"schema_version":%d,"seq":%d,"step_id":"%b","turn":%d}'
    ) % (
        kind.encode(), told, prev_event_hash.encode(), recorded_at.encode(), run_id.encode(),
        SCHEMA_VERSION, seq, step_id.encode(), turn,
    )  # fmt: skip
    hexdigest = hashlib.sha256(b"{" + body).hexdigest()
    line = b'%b%b",%b\n' % (HEAD, hexdigest.encode(), body)
    event = Event(
        seq, turn, step_id, payload, recorded_at, run_id, prev_event_hash, HASH_PREFIX + hexdigest
    )
    return Sealed(event, line)


def _told(plain: dict[str, Json], fields: Shape) -> bytes:
    """The payload ``plain`` as canonical bytes, without what is as a reader will take it to be."""
    for name, default in fields.defaults:
        if plain[name] == default:
            del plain[name]
    for name in fields.unsure:
        value = plain.get(name)
        # A duration of a usual length has one spelling.
        if value is not None and not (type(value) is float and 1e-3 <= value < 1e9 and value % 1):
            break
    else:
        text = closed_canonical(plain)
        if text is not None:
            return text
    # In a list, because nesting is counted from the envelope on.
    return escaped_canonical([plain])[1:-1]


def line_problem(line: bytes) -> str | None:
    """Why ``line`` (without newline) is not an intact event, or None if its hash is right."""
    if not line.startswith(HEAD) or len(line) <= HEAD_BYTES:
        if line.startswith(b"\xef\xbb\xbf"):
            return "bom"
        return "nul_run" if b"\0" in line else "not_an_event"
    stated = line[len(HEAD) : HEAD_BYTES - 2]
    digest = hashlib.sha256(b"{")
    digest.update(memoryview(line)[HEAD_BYTES:])
    if digest.hexdigest().encode() == stated and line[HEAD_BYTES - 2 : HEAD_BYTES] == b'",':
        return None
    # Inside a string the quotes of HEAD would be escaped, and a value never begins after a value.
    if line.find(b"}" + HEAD, HEAD_BYTES) > 0:
        return "two_events_on_a_line"
    return "nul_run" if b"\0" in line else "hash_mismatch"


def link(line: bytes) -> Link | None:
    """The place of an intact line in the chain; None if its envelope is not one of ours."""
    match = _tail(line)
    if match is None:
        return None
    event_hash = HASH_PREFIX + line[len(HEAD) : HEAD_BYTES - 2].decode()
    return Link(int(match[SEQ]), int(match[TURN]), event_hash, match[PREV].decode())


def _tail(line: bytes) -> re.Match[bytes] | None:
    start = line.rfind(TAIL_KEY)
    return None if start < 0 else TAIL.fullmatch(line, start)


def parse_line(line: bytes) -> Event:
    """The typed event of an intact line. Raises InputRefused for another kind, version or shape."""
    tail = _tail(line)
    if tail is None:
        return _parsed_with_care(line)
    event_hash = HASH_PREFIX + line[len(HEAD) : HEAD_BYTES - 2].decode()
    return parse_placed(line, tail, int(tail[SEQ]), int(tail[TURN]), event_hash)


def parse_placed(line: bytes, tail: re.Match[bytes], seq: int, turn: int, event_hash: str) -> Event:
    """``parse_line`` where the match of TAIL, and what it says of the place, is known already."""
    return _parsed(line, tail, seq, turn, event_hash) or _parsed_with_care(line)


def _parsed(
    line: bytes, tail: re.Match[bytes], seq: int, turn: int, event_hash: str
) -> Event | None:
    """The event of a line as branchkit writes them, most of them; None: look at it with care."""
    kind = _KIND.match(line, HEAD_BYTES)
    if kind is None or tail[VERSION] != _VERSION:
        return None
    payload = decode_payload(kind[1].decode(), line[kind.end() : tail.start() - 1])
    if payload is None:
        return None
    prev, at, run, step = tail.group(PREV, AT, RUN, STEP)
    try:
        return Event(
            seq, turn, step.decode(), payload, at.decode(), run.decode(), prev.decode(), event_hash
        )
    except UnicodeDecodeError:
        return None


def _parsed_with_care(line: bytes) -> Event:
    try:
        value = parse(line)
    except (ValueError, TypeError, RecursionError) as error:
        raise InputRefused(f"not canonical JSON: {error}", hint=_FOREIGN) from None
    if not isinstance(value, dict) or value.keys() != _ENVELOPE:
        raise InputRefused("the envelope has other keys than an event's", hint=_FOREIGN)
    payload = parse_payload(value["kind"], value["schema_version"], value["payload"])
    place = link(line)
    if place is None:
        raise InputRefused("the envelope is not one that branchkit writes", hint=_FOREIGN)
    return Event(
        place.seq,
        place.turn,
        value["step_id"],
        payload,
        value["recorded_at"],
        value["run_id"],
        place.prev_event_hash,
        place.event_hash,
    )
