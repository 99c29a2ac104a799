"""Strategies for events of every kind, with whatever a model or a tool may have put into them."""

from __future__ import annotations

import functools
import typing
from collections.abc import Callable
from typing import Any

import msgspec
from hypothesis import strategies as st

from branchkit.journal.events import KINDS, Payload


def _deep(levels: int) -> Any:
    value: Any = 1
    for level in range(levels):
        value = [value] if level % 2 else {"k": value}
    return value


any_text = st.text(max_size=12) | st.sampled_from(
    ["\ud83d", "\ud83d\ude00", 'a"b\\c\n', '}{"event_hash":"sha256:', "\x00", "\ue000\U00010000"]
)
any_key = any_text | st.just("$json")
any_number = st.integers() | st.integers(-(2**80), 2**80) | st.floats()
any_json = st.recursive(
    st.none() | st.booleans() | any_number | any_text | st.sampled_from([_deep(9), _deep(300)]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(any_key, inner, max_size=3),
    max_leaves=8,
)
_BY_TYPE: dict[Any, st.SearchStrategy[Any]] = {
    str: any_text,
    int: st.integers() | st.integers(2**53 - 2, 2**66),
    float: st.floats(),
    bool: st.booleans(),
    Any: any_json,
    type(None): st.none(),
}


def _strategy(hint: Any) -> st.SearchStrategy[Any]:
    """Wild values of a type that the schema uses, so that a new field is covered by itself."""
    if hint in _BY_TYPE:
        return _BY_TYPE[hint]
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is list:
        return st.lists(_strategy(arguments[0]), max_size=3)
    if origin is dict:
        return st.dictionaries(any_key, _strategy(arguments[1]), max_size=3)
    if origin is typing.Literal:
        return st.sampled_from(arguments)
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return structs(hint)
    return st.one_of([_strategy(argument) for argument in arguments])


@functools.cache
def structs(kind: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    """Structs of ``kind`` with wild values in every field."""
    hints = typing.get_type_hints(kind)
    fields = {name: _strategy(hints[name]) for name in kind.__struct_fields__}
    make: Callable[..., Any] = kind
    return st.builds(make, **fields)


payloads: st.SearchStrategy[Payload] = st.sampled_from(sorted(KINDS)).flatmap(
    lambda name: structs(KINDS[name])
)
names = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters='"\\'), max_size=128
)
