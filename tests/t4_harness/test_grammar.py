"""The pure half of ``local:smollm2``: tools → grammar, text → message (R57's live model).

The grammar uses no groups and no recursion, so it can be read back as a regular expression: the
tests generate texts from that, and ask it which texts the grammar admits.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import json
import random
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from branchkit.errors import ModelError
from branchkit.harness.grammar import (
    ActionGrammar,
    action_grammar,
    parse_action,
    render_action,
    render_finish,
)
from branchkit.harness.shapes import LIST_MAX_ITEMS, TEXT_MAX_CHARS

jsonschema: Any = importlib.import_module("jsonschema")  # comes with jupyterlab; ships no types

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\]|[a-z0-9]+|\{\d+,\d+\}|\|')


def rules_of(grammar: ActionGrammar) -> dict[str, list[list[str]]]:
    """Rule name → alternatives → tokens; fails on other syntax than ours."""
    rules = {}
    for line in grammar.gbnf.strip().split("\n"):
        name, body = line.split(" ::= ", 1)
        assert not _TOKEN.sub("", body).strip(), body
        tokens = _TOKEN.findall(body)
        bars = [-1, *(i for i, token in enumerate(tokens) if token == "|"), len(tokens)]
        rules[name] = [tokens[a + 1 : b] for a, b in itertools.pairwise(bars)]
    return rules


def plain(literal: str) -> str:
    return re.sub(r"\\(.)", r"\1", literal[1:-1])


def as_regex(grammar: ActionGrammar) -> str:
    """The language of ``grammar`` as a regular expression."""
    rules = rules_of(grammar)
    known: dict[str, str] = {}

    def expand(name: str) -> str:
        if name not in known:
            bodies = ("".join(one(token) for token in tokens) for tokens in rules[name])
            known[name] = f"(?:{'|'.join(bodies)})"
        return known[name]

    def one(token: str) -> str:
        if token[0] == '"':
            return f"(?:{re.escape(plain(token))})"
        return token if token[0] in "[{" else expand(token)

    return expand("root")


_CHARS = [*map(chr, range(0x80)), "\x85", "ß", "\u2028", "\ufffe", "🙂"]


@functools.cache
def members(char_class: str) -> list[str]:
    return [char for char in _CHARS if re.fullmatch(char_class, char)]


def random_text(grammar: ActionGrammar, draw: random.Random) -> str:
    """Some text of the language of ``grammar``; the shortest and longest repetitions preferred."""
    rules = rules_of(grammar)

    def expand(name: str) -> str:
        tokens = draw.choice(rules[name])
        texts = []
        for token, after in itertools.zip_longest(tokens, tokens[1:], fillvalue=""):
            times = 1
            if after.startswith("{"):
                least, most = map(int, after[1:-1].split(","))
                times = draw.choice((least, min(least + 1, most), min(least + 5, most), most))
            texts += [one(token) for _ in range(times)]
        return "".join(texts)

    def one(token: str) -> str:
        match token[0]:
            case '"':
                return plain(token)
            case "[":
                return draw.choice(members(token))
            case "{":
                return ""
            case _:
                return expand(token)

    return expand("root")


def tool(parameters: Any, name: str = "act", description: str = "") -> dict[str, Any]:
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


def of(schema: Any) -> dict[str, Any]:
    """A tool whose only argument ``x`` has this schema."""
    return tool({"type": "object", "properties": {"x": schema}, "required": ["x"]})


def admits(grammar: ActionGrammar, arguments: Any, name: str = "act") -> bool:
    return re.fullmatch(as_regex(grammar), render_action(name, arguments)) is not None


def admitted(schema: Any, *values: Any) -> list[bool]:
    grammar = action_grammar([of(schema)])
    return [admits(grammar, {"x": value}) for value in values]


@st.composite
def bounded(draw: st.DrawFn, least: str, most: str, values: st.SearchStrategy[Any]) -> Any:
    low, high = sorted((draw(values), draw(values)))
    return draw(st.sampled_from(({}, {least: low}, {most: high}, {least: low, most: high})))


COUNTS = st.integers(0, 5)
LEAVES = st.one_of(
    st.sampled_from(({"type": "boolean"}, {"type": "null"})),
    bounded("minLength", "maxLength", COUNTS).map(lambda b: {"type": "string", **b}),
    bounded("minimum", "maximum", st.integers(-2000, 2000)).map(lambda b: {"type": "integer", **b}),
    bounded("minimum", "maximum", st.floats(-50, 50)).map(lambda b: {"type": "number", **b}),
    bounded("exclusiveMinimum", "maximum", st.sampled_from((-3, 0, 1, 7.5, 40))).map(
        lambda b: {"type": "number", **b} if len(set(b.values())) == len(b) else {"type": "number"}
    ),
    st.lists(
        st.text(max_size=4) | st.integers() | st.none() | st.booleans(), min_size=1, max_size=4
    ).map(lambda values: {"enum": values}),
    st.text(max_size=4).map(lambda value: {"const": value}),
)
NAMES = st.sampled_from(("path", "lines", "größe", 'a "b"\\n', "x-y", ""))


@st.composite
def objects(draw: st.DrawFn, children: st.SearchStrategy[Any]) -> Any:
    properties = draw(st.dictionaries(NAMES, children, max_size=3))
    required = [name for name in properties if draw(st.booleans())]
    return {"type": "object", "properties": properties, "required": required}


def wider(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    lists = st.tuples(children, bounded("minItems", "maxItems", st.integers(0, 3))).map(
        lambda pair: {"type": "array", "items": pair[0], **pair[1]}
    )
    choices = st.lists(children, min_size=1, max_size=2).map(lambda some: {"anyOf": some})
    return st.one_of(lists, choices, objects(children))


SCHEMAS = st.recursive(LEAVES, wider, max_leaves=5)


@settings(
    max_examples=120, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(st.lists(objects(SCHEMAS), min_size=1, max_size=3), st.integers(0))
def test_each_text_of_the_grammar_is_a_valid_action(schemas: list[Any], seed: int) -> None:
    tools = {f"tool_{i}": schema for i, schema in enumerate(schemas)}
    grammar = action_grammar([tool(schema, name) for name, schema in tools.items()])
    draw = random.Random(seed)
    for _ in range(5):
        check_text(random_text(grammar, draw), tools)


def check_text(text: str, tools: dict[str, Any]) -> None:
    """``text`` is one action, valid for the schema of its tool."""
    message = parse_action(text)
    assert message is not None
    if calls := message.get("tool_calls"):
        name, arguments = calls[0]["function"]["name"], calls[0]["function"]["arguments"]
        jsonschema.validate(json.loads(arguments), tools[name])
        assert json.loads(text) == {"tool": name, "arguments": json.loads(arguments)}
    else:
        assert text == render_finish(message["content"]) or "\\" in text
        assert len(message["content"]) <= TEXT_MAX_CHARS


@given(st.integers(-3000, 3000), st.integers(0, 1200), st.integers(-3100, 4300))
def test_an_integer_is_admitted_exactly_within_its_bounds(low: int, width: int, value: int) -> None:
    schema = {"type": "integer", "minimum": low, "maximum": low + width}
    inside = low <= value <= low + width
    assert admitted(schema, low, low + width, value) == [True, True, inside]
    assert admitted(schema, low - 1, low + width + 1) == [False, False]


def test_optional_properties_come_in_any_subset_and_no_other() -> None:
    names = ("a", "b", "c", "d")
    schema = {"type": "object", "properties": {name: {"const": 1} for name in names}}
    grammar = action_grammar([tool({**schema, "required": ["c"]})])
    for size in range(len(names) + 1):
        for some in itertools.combinations(names, size):
            assert admits(grammar, dict.fromkeys(some, 1)) == ("c" in some), some
    assert not admits(grammar, {"c": 1, "e": 1})


def test_strings_are_free_but_bounded() -> None:
    free = {"type": "string"}
    texts = ("", "ls -la | grep 'x' > \"y\"\n", "größe 日本 🙂", "a\\b\tc", "x" * TEXT_MAX_CHARS)
    assert admitted(free, *texts) == [True] * len(texts)
    assert admitted(free, "x" * (TEXT_MAX_CHARS + 1), "\x00", "\x7f") == [False] * 3
    # A schema that demands more than our bound is obeyed.
    assert admitted({"type": "string", "minLength": 300}, "x" * 299, "x" * 300) == [False, True]


def test_an_enum_admits_its_values_and_nothing_else() -> None:
    values = ["main", 'a"b', "zurück\n", 3, None, {"k": [1]}]
    assert admitted({"enum": values}, *values) == [True] * len(values)
    assert admitted({"enum": values}, "dev", 4, "") == [False] * 3
    assert admitted({"type": "string", "enum": ["a", 1, None]}, "a", 1, None) == [
        True,
        False,
        False,
    ]


def test_schemas_as_pydantic_writes_them() -> None:
    parameters = {
        "$defs": {
            "Mode": {"enum": ["r", "w"], "type": "string"},
            "Node": {
                "type": "object",
                "properties": {
                    "name": {"type": "string"},
                    "children": {"type": "array", "items": {"$ref": "#/$defs/Node"}},
                },
                "required": ["name"],
            },
        },
        "type": "object",
        "properties": {
            "mode": {"allOf": [{"$ref": "#/$defs/Mode"}], "default": "r"},
            "lines": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
            "tree": {"$ref": "#/$defs/Node"},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        },
        "required": ["tree"],
    }
    grammar = action_grammar([tool(parameters)])
    nested = {"name": "a", "children": [{"name": "b", "children": []}, {"name": "c"}]}
    good = {"mode": "w", "lines": None, "tree": nested, "labels": {"k": "v"}}
    jsonschema.validate(good, parameters)
    assert admits(grammar, good)
    assert not admits(grammar, {**good, "mode": "x"})
    assert not admits(grammar, {"mode": "w", "labels": {}})
    assert grammar.loosened == ()


def test_what_a_grammar_cannot_hold_is_named() -> None:
    schema = {"type": "string", "pattern": "^a+$", "description": "letters"}
    assert action_grammar([of(schema)]).loosened == ("act.x: pattern",)


@pytest.mark.parametrize(
    "parameters", [None, {}, {"type": "object"}, {"type": "object", "properties": {}}]
)
def test_a_tool_without_arguments(parameters: Any) -> None:
    grammar = action_grammar([tool(parameters)])
    assert admits(grammar, {})
    assert not admits(grammar, {"a": 1})
    assert grammar.signatures == ("act()",)


def test_lists_and_free_objects_are_bounded() -> None:
    full = list(range(LIST_MAX_ITEMS))
    assert admitted({"type": "array"}, full, [*full, 8]) == [True, False]
    assert admitted({}, {"any": [1, "a"]}, [True, None], -2.5) == [False, True, True]
    assert admitted({"type": "object"}, {"any": 1, "b": "c"}, {}) == [True, True]


def test_signatures_are_short() -> None:
    schema = {
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "mode": {"enum": ["r", "w"]},
            "lines": {"type": "array", "items": {"type": "integer"}},
        },
        "required": ["path"],
    }
    made = action_grammar([tool(schema, "read", "Read a file.\nLong explanation.")])
    assert made.signatures == (
        'read(path: string, mode?: "r"|"w", lines?: [integer]) - Read a file.',
    )


@pytest.mark.parametrize(
    "schema",
    [
        False,
        {"enum": []},
        {"type": "integer", "minimum": 3, "maximum": 2},
        {"type": "string", "minLength": 2, "maxLength": 1},
        {"type": "array", "items": False, "minItems": 1},
        {"type": "number", "exclusiveMinimum": 1, "exclusiveMaximum": 1},
        {"$ref": "#/properties/x"},
        {"$ref": "#/nowhere"},
        {"type": "text"},
        {"const": float("nan")},
        7,
    ],
)
def test_a_schema_that_admits_nothing_is_refused_by_name(schema: Any) -> None:
    with pytest.raises(ModelError, match="act"):
        action_grammar([of(schema)])


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(ModelError, match="two tools are named 'act'"):
        action_grammar([tool({}), tool({})])


@given(st.dictionaries(st.text(), st.none() | st.text() | st.integers() | st.lists(st.booleans())))
def test_a_call_survives_rendering_and_parsing(arguments: dict[str, Any]) -> None:
    message = parse_action(render_action("act", arguments))
    assert message is not None
    assert message["content"] is None
    [call] = message["tool_calls"]
    assert call["id"] == "call_0"
    assert call["type"] == "function"
    assert json.loads(call["function"]["arguments"]) == arguments


@given(st.text())
def test_finishing_survives_rendering_and_parsing(answer: str) -> None:
    assert parse_action(render_finish(answer)) == {"role": "assistant", "content": answer}


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "hello", "3", '{"finish": 1}', '{"tool": "act", "argum', '{"tool": "act"}'),
        '{"tool": "act", "arguments": {}, "finish": "x"}',
        '{"tool": "act", "arguments": []}',
    ],
)
def test_a_text_that_is_no_action_is_none(text: str) -> None:
    assert parse_action(text) is None
