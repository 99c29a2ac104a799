"""Canonical JSON (RFC 8785), the hash of it, and the escape for what RFC 8785 cannot hold (R6).

Everything that is hashed goes through ``canonical``. The fast path is orjson; whatever orjson would
write otherwise than RFC 8785 is recognised in its output and handed to ``rfc8785``, which stays the
oracle (``tests/t1_journal/test_format.py`` compares the two on random values).

I-JSON cannot hold lone surrogates, NaN, infinities or integers beyond 2^53 - 1, yet real runs hold
all of them. Such a value is stored as ``{"$json": "<its JSON text, ASCII>"}``, and so are an object
whose own key is ``$json`` and what is nested deeper than MAX_NESTING, so that reading gives back
exactly what was written. Two spellings of one JSON value are one value here too: 1.0 is 1, and a
surrogate pair that arrived as two code points is the character that it spells.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

import orjson
import rfc8785

_sha256 = hashlib.sha256

Json = Any  # a JSON value: None | bool | int | float | str | list | dict

SCHEMA_VERSION = 1
HASH_PREFIX = "sha256:"
ZERO_HASH = HASH_PREFIX + "0" * 64
ESCAPE_KEY = "$json"
MAX_SAFE_INTEGER = 2**53 - 1
MAX_NESTING = 254  # levels of arrays and objects; orjson writes no more, and it must not depend on
# which of the two encoders was asked

_ORJSON_OPTIONS = (
    orjson.OPT_SORT_KEYS
    | orjson.OPT_STRICT_INTEGER
    | orjson.OPT_PASSTHROUGH_DATETIME
    | orjson.OPT_PASSTHROUGH_DATACLASS
    | orjson.OPT_PASSTHROUGH_SUBCLASS
)
# Where orjson's text may differ from RFC 8785: integral floats ("1.0") and exponents. A regular
# expression for the latter took most of the time of an event. Without its digits a number with an
# exponent ends in "e,"; so does "true,", so a hit is looked at once more, with all digits alike.
_INTEGRAL = re.compile(rb"\.0(?:[,}\]]|\Z)")
_COMMAS = bytes.maketrans(b"}]", b",,")
_NUMERIC = b"0123456789+-"
_SHAPE = bytes.maketrans(b"0123456789+-}]", b"0" * 12 + b",,")
_EXPONENT = re.compile(rb"0e0+,")
# RFC 8785 writes a float of 2^53 and more as plain digits; a real integer of that size is escaped.
_DIGITS = bytes.maketrans(b"0123456789", b"0" * 10)
_LONG_NUMBER = b"0" * 16
# orjson sorts keys by code point, RFC 8785 by UTF-16 unit. They can differ only where a key holds a
# character >= U+E000, whose UTF-8 starts at 0xEE.
_BELOW_HIGH = bytes(range(0xEE))


def canonical(value: Json) -> bytes:
    """``value`` as RFC 8785 bytes.

    Raises ValueError for what RFC 8785 cannot hold: ``escape`` it first.
    """
    try:
        text = orjson.dumps(value, option=_ORJSON_OPTIONS)
    except TypeError:
        if _is_deeper(value, MAX_NESTING):
            raise ValueError(f"nested deeper than {MAX_NESTING} levels") from None
        return _by_oracle(value)
    if _has_suspect_number(text):
        return _by_oracle(value)
    if not text.isascii() and text.translate(None, _BELOW_HIGH) and _has_high_key(value):
        return _by_oracle(value)
    # orjson writes NaN as null without a word; only a round trip tells.
    if b"null" in text and orjson.loads(text) != value:
        return _by_oracle(value)
    return text


def closed_canonical(value: Json) -> bytes | None:
    """``canonical`` without its guards, for a value without floats and without keys of others.

    None where that is not enough: a lone surrogate, an integer beyond 2^53.
    """
    try:
        return orjson.dumps(value, option=_ORJSON_OPTIONS)
    except TypeError:
        return None


def _by_oracle(value: Json) -> bytes:
    try:
        return rfc8785.dumps(value)
    except rfc8785.CanonicalizationError as error:
        raise ValueError(str(error)) from None


def _has_suspect_number(text: bytes) -> bool:
    if _INTEGRAL.search(text):
        return True
    if b"e," not in text.translate(_COMMAS, _NUMERIC) + b",":
        return False
    return _EXPONENT.search(text.translate(_SHAPE) + b",") is not None


def _has_high_key(value: Json) -> bool:
    if isinstance(value, dict):
        return any(max(key, default="") >= "\ue000" or _has_high_key(value[key]) for key in value)
    return isinstance(value, list | tuple) and any(_has_high_key(item) for item in value)


def _is_deeper(value: Json, levels: int) -> bool:
    if not isinstance(value, Mapping | list | tuple):
        return False
    if levels == 0:
        return True
    for item in value.values() if isinstance(value, Mapping) else value:
        if _is_deeper(item, levels - 1):
            return True
    return False


def digest(data: bytes) -> str:
    """``sha256:`` + 64 hex digits of ``data``."""
    return HASH_PREFIX + _sha256(data).hexdigest()


def value_hash(value: Json) -> str:
    """The hash of any JSON value, escaped where RFC 8785 cannot hold it."""
    return digest(escaped_canonical(value))


def escaped_canonical(value: Json) -> bytes:
    """``value`` as canonical bytes, with ``escape`` applied only where it is needed."""
    try:
        data = canonical(value)
    except ValueError:
        return canonical(escape(value))
    return canonical(escape(value)) if b'"$json"' in data else data


def escape(value: Json, levels: int = MAX_NESTING) -> Json:
    """``value`` with everything that I-JSON cannot hold replaced by ``{"$json": text}``.

    Raises TypeError for what is not JSON, ValueError for what Python cannot write as JSON text
    (integers of more than 4,300 digits, nesting beyond the interpreter's stack).
    """
    match value:
        case bool() | None:
            return value
        case str():
            text = _joined(value)
            return text if _is_unicode(text) else _as_text(text)
        case int():
            return value if abs(value) <= MAX_SAFE_INTEGER else _as_text(value)
        case float():
            return value if math.isfinite(value) else _as_text(value)
        case Mapping():
            joined = _with_joined_keys(value)
            if levels <= 1 or ESCAPE_KEY in joined or not all(map(_is_unicode, joined)):
                return _as_text(joined)
            return {key: escape(item, levels - 1) for key, item in joined.items()}
        case list() | tuple():
            return _as_text(value) if levels <= 1 else [escape(item, levels - 1) for item in value]
        case _:
            raise TypeError(f"{type(value).__name__} is not JSON")


def _as_text(value: Json) -> Json:
    try:
        return {ESCAPE_KEY: json.dumps(_normalised(value), sort_keys=True)}
    except RecursionError:
        raise ValueError("nested too deeply to be written as JSON text") from None


def _normalised(value: Json) -> Json:
    """``value`` as ``json.loads(json.dumps(value))`` would give it back, or an error."""
    if isinstance(value, str):
        return _joined(value)
    if isinstance(value, Mapping):
        result = {}  # no comprehensions here: each would take a second frame a level
        for key, item in _with_joined_keys(value).items():
            result[key] = _normalised(item)
        return result
    if isinstance(value, list | tuple):
        items = []
        for item in value:
            items.append(_normalised(item))
        return items
    if value is None or isinstance(value, bool | int | float):
        return value
    raise TypeError(f"{type(value).__name__} is not JSON")


def _with_joined_keys(value: Mapping[str, Json]) -> dict[str, Json]:
    joined: dict[str, Json] = {}
    for key, item in value.items():
        if not isinstance(key, str):
            raise TypeError("an object with a key that is no string is not JSON")
        if (name := _joined(key)) in joined:
            raise ValueError(f"two keys of one object spell {name!r}")
        joined[name] = item
    return joined


def _joined(text: str) -> str:
    # Chunks of a stream can leave the halves of one character as two code points. JSON text cannot
    # tell them from the character, so a hash taken before writing would differ from one after.
    if _is_unicode(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def unescape(value: Json) -> Json:
    """The value that ``escape`` was given."""
    if isinstance(value, dict):
        if value.keys() == {ESCAPE_KEY}:
            return json.loads(value[ESCAPE_KEY])
        return {key: unescape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [unescape(item) for item in value]
    if type(value) is int and abs(value) > MAX_SAFE_INTEGER:
        return float(value)
    return value


def parse(line: bytes) -> Json:
    """One line of canonical JSON as a value, escapes resolved. Raises ValueError."""
    value = orjson.loads(line)
    return unescape(value) if is_wild(line) else value


def is_wild(text: bytes) -> bool:
    """Whether canonical JSON may hold what only ``unescape`` turns into the value it stands for."""
    return b'"$json"' in text or _LONG_NUMBER in text.translate(_DIGITS)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def accumulate(before: str, item_hash: str) -> str:
    """The hash of an append-only list after one more item, in constant time.

    Hashing a whole list after each append is quadratic (62 s for 10,000 messages); this is the
    definition of context and record hashes from the first version on.
    """
    # A journal may claim any text to be a hash: half a character too.
    text = (before + item_hash).encode("utf-8", "surrogatepass")
    return HASH_PREFIX + _sha256(text).hexdigest()


def accumulated(before: str, item_hashes: Iterable[str]) -> list[str]:
    """``accumulate`` over one item after the other: the hash after each."""
    found = []
    for item_hash in item_hashes:
        before = HASH_PREFIX + _sha256((before + item_hash).encode()).hexdigest()
        found.append(before)
    return found
