"""What the types of a kind's fields say about writing and reading it: which guards it needs.

Most fields hold texts and numbers of branchkit's own. Where a payload holds nothing else, its JSON
can be written and read without looking for what only other people's values contain, in half the
time. All of it follows from the field types, so a new kind or field is covered by itself.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from branchkit.journal.format import is_wild
from branchkit.journal.payloads import Payload


class Shape(NamedTuple):
    """``names`` and ``values``: the fields that count for the logical hash, in order.

    ``plain``: they hold no struct. ``open``: those that hold any JSON, keys that are not ours, or
    floats, which JSON has many ways to write. ``unsure``: the same of all fields, the volatile too.
    ``told``: the fields that may hold words of somebody else. ``defaults``: what a field is where
    it is left out. ``wild``: an escape may stand in the payload and still look like a value of the
    field's type. ``decoder``: of the payload's JSON text.
    """

    names: tuple[str, ...]
    values: Callable[[Payload], tuple[Any, ...]]
    plain: bool
    open: tuple[str, ...]
    unsure: tuple[str, ...]
    told: tuple[str, ...]
    defaults: tuple[tuple[str, Any], ...]
    wild: bool
    decoder: msgspec.json.Decoder[Payload]


@functools.cache  # not when this is imported: it takes msgspec some milliseconds
def shape(kind: type[Payload]) -> Shape:
    """The shape of ``kind``."""
    found = msgspec.inspect.type_info(kind)
    assert isinstance(found, msgspec.inspect.StructType)
    types = {field.name: field.type for field in found.fields}
    names = tuple(sorted(types.keys() - kind.VOLATILE))
    return Shape(
        names,
        # Of one name attrgetter makes no tuple.
        operator.attrgetter(*names) if len(names) > 1 else lambda payload: _values(payload, names),
        plain=not any(_holds(types[name], _STRUCT) for name in names),
        open=tuple(name for name in names if _holds(types[name], _ANY | _FLOAT)),
        unsure=tuple(name for name in types if _holds(types[name], _ANY | _FLOAT)),
        told=tuple(name for name in types if not _is_ours(name, types[name])),
        defaults=tuple(
            (field.name, [] if field.default is msgspec.NODEFAULT else field.default)
            for field in found.fields
            if not field.required
        ),
        wild=any(_holds(one, _ANY) for one in types.values()),
        decoder=msgspec.json.Decoder(kind),
    )


def decoded(kind: type[Payload], text: bytes) -> Payload | None:
    """The payload at once from its JSON text, where that is easy.

    None where it is not: an escape, an integer that is a float, anything that is not as expected.
    """
    found = shape(kind)
    try:
        # In a field of another type an escape is an object, and found by that.
        return None if found.wild and is_wild(text) else found.decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _values(payload: Payload, names: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(getattr(payload, name) for name in names)


def _is_ours(name: str, found: msgspec.inspect.Type) -> bool:
    """Whether a field holds only what branchkit makes itself: numbers, own words, hashes."""
    if name.endswith("_hash") or name in ("sha256", "idempotency_key"):
        return True
    if isinstance(found, msgspec.inspect.UnionType):
        return all(_is_ours("", one) for one in found.types)
    return type(found) in _NO_TEXT


_NO_TEXT: frozenset[type] = frozenset(
    {
        msgspec.inspect.IntType, msgspec.inspect.FloatType, msgspec.inspect.BoolType,
        msgspec.inspect.NoneType, msgspec.inspect.LiteralType,
    }
)  # fmt: skip
_FLOAT: frozenset[type] = frozenset({msgspec.inspect.FloatType})
_STRUCT: frozenset[type] = frozenset({msgspec.inspect.StructType})
_ANY: frozenset[type] = _STRUCT | {msgspec.inspect.AnyType, msgspec.inspect.DictType}


def _holds(found: msgspec.inspect.Type, wanted: frozenset[type]) -> bool:
    match found:
        case msgspec.inspect.ListType(item_type=item):
            return _holds(item, wanted)
        case msgspec.inspect.UnionType(types=types):
            return any(_holds(one, wanted) for one in types)
        case msgspec.inspect.DictType(value_type=value) if type(found) not in wanted:
            return _holds(value, wanted)
        case _:
            return type(found) in wanted
