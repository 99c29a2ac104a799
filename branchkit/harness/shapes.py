"""Shapes: what a JSON schema of a tool admits, as far as a grammar can hold it.

References, allOf, anyOf, oneOf, type lists, enums, bounds and recursion are resolved here; strings,
lists and numbers without bounds get some, so that a small model cannot ramble. What a grammar
cannot hold (pattern, format, multipleOf, ...) is loosened, and named. Pure.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import unquote

from branchkit.errors import ModelError

TEXT_MAX_CHARS = 200
LIST_MAX_ITEMS = 8
WHOLE_MAX = 999_999_999
NUMBER_MAX = 999_999
REF_MAX_DEPTH = 3  # how often a recursive schema is unfolded

_ENFORCED = {
    *("$ref", "$defs", "definitions", "allOf", "anyOf", "oneOf", "enum", "const", "type"),
    *("properties", "required", "additionalProperties", "items", "minItems", "maxItems"),
    *("minLength", "maxLength", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
}
_ANNOTATIONS = {
    *("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"),
    *("$schema", "$id", "$comment", "nullable"),
}


class Literals(NamedTuple):
    """One of these JSON texts."""

    texts: tuple[str, ...]


class Text(NamedTuple):
    """A string of so many characters."""

    least: int
    most: int


class Whole(NamedTuple):
    """An integer between the two, both included."""

    least: int
    most: int


class Number(NamedTuple):
    """A decimal between two whole bounds, both included."""

    least: int
    most: int


class Items(NamedTuple):
    """A list of so many items of one shape."""

    item: Shape
    least: int
    most: int


class Entries(NamedTuple):
    """An object with up to LIST_MAX_ITEMS keys of its own choice."""

    value: Shape


class Field(NamedTuple):
    """One property of an object."""

    name: str
    required: bool
    shape: Shape


class Fields(NamedTuple):
    """An object with these properties, in this order."""

    fields: tuple[Field, ...]


class Choice(NamedTuple):
    """Any one of several shapes."""

    options: tuple[Shape, ...]


Shape: TypeAlias = Literals | Text | Whole | Number | Items | Entries | Fields | Choice

_SCALAR = Choice(
    (
        Text(0, TEXT_MAX_CHARS),
        Number(-NUMBER_MAX, NUMBER_MAX),
        Literals(("true", "false", "null")),
    )
)
_ANYTHING = Choice((*_SCALAR.options, Items(_SCALAR, 0, LIST_MAX_ITEMS), Entries(_SCALAR)))


class Impossible(Exception):
    """A schema that admits nothing (or nothing within our bounds); the way round it is outside."""


class SchemaReader:
    """Shapes of one tool's JSON schemas; ``loosened`` grows with what they do not hold."""

    def __init__(self, tool: str, parameters: dict[str, Any]) -> None:
        self._tool = tool
        self._root = parameters
        self.loosened: list[str] = []

    def arguments(self) -> Shape:
        """The shape of the whole arguments object."""
        schema, depth = self._flat(self._root, ())
        # {"type": "object"} alone is how people write a tool without arguments.
        schema = {"type": "object", "properties": {}, **schema}
        try:
            return self._shape(schema, depth, self._tool)
        except Impossible:
            raise ModelError(
                f"no arguments satisfy the schema of tool {self._tool!r}",
                hint="correct its parameters, or leave the tool out for this model",
            ) from None

    def _flat(self, schema: Any, depth: tuple[str, ...]) -> tuple[dict[str, Any], tuple[str, ...]]:
        """``schema`` with its references and allOf parts merged in, and the references followed."""
        if schema is False:
            raise Impossible
        if schema is True:
            return {}, depth
        if not isinstance(schema, dict):
            raise ModelError(f"tool {self._tool!r}: {schema!r} stands where a JSON schema must be")
        flat = {key: value for key, value in schema.items() if key not in ("$ref", "allOf")}
        if (ref := schema.get("$ref")) is not None:
            if depth.count(ref) >= REF_MAX_DEPTH:
                raise Impossible
            target, depth = self._flat(self._resolve(ref), (*depth, ref))
            flat = _merge(target, flat)
        for part in schema.get("allOf", ()):
            target, depth = self._flat(part, depth)
            flat = _merge(flat, target)
        return flat, depth

    def _resolve(self, ref: str) -> Any:
        found: Any = self._root
        try:
            if not ref.startswith("#"):
                raise KeyError(ref)
            for part in ref.removeprefix("#").split("/")[1:]:
                key = unquote(part).replace("~1", "/").replace("~0", "~")
                found = found[int(key)] if isinstance(found, list) else found[key]
        except (KeyError, IndexError, ValueError, TypeError):
            raise ModelError(
                f"tool {self._tool!r} refers to {ref!r}, which its schema does not hold",
                hint="references must point into the tool's own parameters",
            ) from None
        return found

    def _shape(self, schema: Any, depth: tuple[str, ...], where: str) -> Shape:
        flat, depth = self._flat(schema, depth)
        self._note(flat, where)
        if "const" in flat or "enum" in flat:
            values = [flat["const"]] if "const" in flat else flat["enum"]
            return _literals(values, flat.get("type"), where)
        for key in ("anyOf", "oneOf"):
            if key in flat:
                return self._choice(flat[key], _without(flat, key), depth, where)
        kind = flat.get("type", _implied(flat))
        if isinstance(kind, list):
            options = [{"type": one} for one in kind]
            return self._choice(options, _without(flat, "type"), depth, where)
        return self._typed(kind, flat, depth, where)

    def _note(self, flat: dict[str, Any], where: str) -> None:
        for key in flat:
            note = f"{where}: {key}"
            if key not in _ENFORCED and key not in _ANNOTATIONS and note not in self.loosened:
                self.loosened.append(note)

    def _typed(
        self, kind: str | None, flat: dict[str, Any], depth: tuple[str, ...], where: str
    ) -> Shape:
        match kind:
            case None:
                return _ANYTHING
            case "string":
                least, most = flat.get("minLength", 0), flat.get("maxLength", math.inf)
                return Text(*_bounded(least, most, TEXT_MAX_CHARS))
            case "integer":
                return _whole(flat)
            case "number":
                return _number(flat, where)
            case "boolean":
                return Literals(("true", "false"))
            case "null":
                return Literals(("null",))
            case "array":
                return self._items(flat, depth, where)
            case "object":
                return self._object(flat, depth, where)
            case _:
                raise ModelError(f"{where} has type {kind!r}, which JSON does not know")

    def _choice(
        self, options: Sequence[Any], rest: dict[str, Any], depth: tuple[str, ...], where: str
    ) -> Shape:
        shapes: list[Shape] = []
        for option in options:
            try:
                part, below = self._flat(option, depth)
                shapes.append(self._shape(_merge(rest, part), below, where))
            except Impossible:
                continue
        if not shapes:
            raise Impossible
        return shapes[0] if len(shapes) == 1 else Choice(tuple(shapes))

    def _items(self, flat: dict[str, Any], depth: tuple[str, ...], where: str) -> Shape:
        asked = flat.get("minItems", 0), flat.get("maxItems", math.inf)
        least, most = _bounded(*asked, LIST_MAX_ITEMS)
        try:
            item = self._shape(flat["items"], depth, f"{where}[]") if "items" in flat else _SCALAR
        except Impossible:
            if least:
                raise
            return Literals(("[]",))
        return Items(item, least, most)

    def _object(self, flat: dict[str, Any], depth: tuple[str, ...], where: str) -> Shape:
        required = flat.get("required", ())
        extra = flat.get("additionalProperties", True)
        properties = {**flat.get("properties", {})}
        for name in required:
            properties.setdefault(name, extra)
        if not properties and "properties" not in flat and extra is not False:
            return Entries(_SCALAR if extra is True else self._shape(extra, depth, f"{where}.*"))
        fields: list[Field] = []
        for name, schema in properties.items():
            try:
                shape = self._shape(schema, depth, f"{where}.{name}")
            except Impossible:
                if name in required:
                    raise
                continue
            fields.append(Field(name, name in required, shape))
        return Fields(tuple(fields))


def json_text(value: Any) -> str:
    """``value`` as the grammar would have it written. Raises ModelError for NaN and infinities."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        # A lone surrogate has no UTF-8; its escape has.
        surrogate = any("\ud800" <= char <= "\udfff" for char in text)
        return json.dumps(value, allow_nan=False) if surrogate else text
    except (ValueError, TypeError) as error:
        raise ModelError(f"{value!r} cannot be written as JSON: {error}") from None


def _without(schema: dict[str, Any], key: str) -> dict[str, Any]:
    return {k: v for k, v in schema.items() if k != key}


def _merge(left: dict[str, Any], right: dict[str, Any]) -> dict[str, Any]:
    """Both schemas at once, as near as one dict can say it: the right one wins."""
    both = {**left, **right}
    if "properties" in left and "properties" in right:
        both["properties"] = {**left["properties"], **right["properties"]}
    if "required" in left and "required" in right:
        both["required"] = [*dict.fromkeys([*left["required"], *right["required"]])]
    return both


def _implied(schema: dict[str, Any]) -> str | None:
    """The type that a schema without one means by its other words."""
    if {"properties", "required", "additionalProperties"} & schema.keys():
        return "object"
    return "array" if "items" in schema else None


_PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
    "array": (list,),
    "object": (dict,),
}


def _literals(values: Sequence[Any], kind: str | list[str] | None, where: str) -> Literals:
    if kind is not None:
        kinds = [kind] if isinstance(kind, str) else kind
        values = [value for value in values if any(_is(value, one) for one in kinds)]
    if not values:
        raise Impossible
    try:
        return Literals(tuple(dict.fromkeys(json_text(value) for value in values)))
    except ModelError as error:
        raise ModelError(f"{where}: {error.message}") from None


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool):  # which Python takes for an int
        return kind == "boolean"
    return isinstance(value, _PYTHON_TYPES.get(kind, ()))


def _bounded(least: int, most: float, ours: int) -> tuple[int, int]:
    """The asked bounds of a length, with ``ours`` as the upper one where that is possible."""
    if least > most:
        raise Impossible
    return int(least), int(max(least, min(most, ours)))


class _Range(NamedTuple):
    """The numbers that a schema admits: bounds as asked, and the whole numbers inside them."""

    minimum: float
    maximum: float
    above: float
    below: float
    least: int
    most: int

    def holds(self, value: float) -> bool:
        return self.minimum <= value <= self.maximum and self.above < value < self.below


def _range(flat: dict[str, Any], ours: int) -> _Range:
    minimum, maximum = flat.get("minimum", -math.inf), flat.get("maximum", math.inf)
    above, below = flat.get("exclusiveMinimum", -math.inf), flat.get("exclusiveMaximum", math.inf)
    # Draft 4 wrote a bool beside minimum and maximum.
    above = (minimum if above else -math.inf) if isinstance(above, bool) else above
    below = (maximum if below else math.inf) if isinstance(below, bool) else below
    lower = [math.ceil(minimum)] if minimum > -math.inf else []
    lower += [math.floor(above) + 1] if above > -math.inf else []
    upper = [math.floor(maximum)] if maximum < math.inf else []
    upper += [math.ceil(below) - 1] if below < math.inf else []
    # An open side gets our bound, or as much room beyond the other side.
    most = min(upper) if upper else max(ours, *(bound + ours for bound in lower), ours)
    least = max(lower) if lower else min(-ours, most - ours)
    return _Range(minimum, maximum, above, below, least, most)


def _whole(flat: dict[str, Any]) -> Whole:
    asked = _range(flat, WHOLE_MAX)
    if asked.least > asked.most:
        raise Impossible
    return Whole(asked.least, asked.most)


def _number(flat: dict[str, Any], where: str) -> Shape:
    """Decimals between whole bounds; eleven steps where no whole number lies inside."""
    asked = _range(flat, NUMBER_MAX)
    if asked.least <= asked.most:
        return Number(asked.least, asked.most)
    low, high = max(asked.minimum, asked.above), min(asked.maximum, asked.below)
    steps = [low + (high - low) * i / 10 for i in range(11)]
    inside = [step for step in (round(step, 6) for step in steps) if asked.holds(step)]
    return _literals(inside or [step for step in steps if asked.holds(step)], "number", where)
