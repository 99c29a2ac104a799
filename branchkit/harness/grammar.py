"""One grammar per set of tools: each text that it admits is one call, valid for its tool's schema.

    tools ──shapes──▶ Shape ──▶ GBNF, which the sampler must obey
                        └─────▶ the one line per tool that the model reads
    text ──parse_action──▶ assistant message in OpenAI chat shape

An action is ``{"tool": NAME, "arguments": {...}}`` or ``{"finish": TEXT}`` with fixed white space,
so that equal actions are equal texts. Pure. GBNF is described in llama.cpp's grammars/README.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, assert_never

import msgspec

from branchkit.errors import ModelError
from branchkit.harness.shapes import (
    LIST_MAX_ITEMS,
    TEXT_MAX_CHARS,
    Choice,
    Entries,
    Fields,
    Items,
    Literals,
    Number,
    SchemaReader,
    Shape,
    Text,
    Whole,
    json_text,
)

KEY_MAX_CHARS = 40
SIGNATURE_MAX_CHARS = 60
ABOUT_MAX_CHARS = 80

_TOOL = '{"tool": '
_ARGUMENTS = ', "arguments": '
_FINISH = '{"finish": '

# Any character that JSON allows unescaped, without DEL, C1 controls and surrogates; a letter of an
# escape otherwise. No \uXXXX: a lone surrogate could not be written to a journal.
_PLAIN = r"[\x20\x21\x23-\x5B\x5D-\x7E\u00A0-\uD7FF\uE000-\uFFFD\U00010000-\U0010FFFF]"
_ESCAPE = r'"\\" [\x22\x5Cnt]'


class ActionGrammar(msgspec.Struct, frozen=True, kw_only=True):
    """The grammar of one action, the lines that tell the tools, and what could not be enforced."""

    gbnf: str
    signatures: tuple[str, ...]
    loosened: tuple[str, ...]  # "search.query: pattern"


def action_grammar(tools: Sequence[dict[str, Any]]) -> ActionGrammar:
    """The grammar of exactly one action with ``tools`` (OpenAI shape), or of finishing.

    Raises ModelError for a tool that admits no arguments at all or is named twice.
    """
    shapes: dict[str, Shape] = {}
    signatures: list[str] = []
    loosened: list[str] = []
    for tool in tools:
        function = tool["function"]
        name = function["name"]
        if name in shapes:
            raise ModelError(f"two tools are named {name!r}", hint="give each tool its own name")
        reader = SchemaReader(name, function.get("parameters") or {})
        shapes[name] = reader.arguments()
        loosened += reader.loosened
        signatures.append(_signature(name, function.get("description") or "", shapes[name]))
    return ActionGrammar(
        gbnf=_Rules().action(shapes), signatures=tuple(signatures), loosened=tuple(loosened)
    )


def render_action(name: str, arguments: Any) -> str:
    """The text of a call, byte for byte as the grammar would have it written."""
    return json_text({"tool": name, "arguments": arguments})


def render_finish(text: str) -> str:
    """The text of finishing."""
    return json_text({"finish": text})


def parse_action(text: str) -> dict[str, Any] | None:
    """The assistant message that ``text`` stands for; None if it is no action (cut by a limit)."""
    try:
        action = json.loads(text)
    except json.JSONDecodeError:
        return None
    match action:
        case {"finish": str(answer), **rest} if not rest:
            return {"role": "assistant", "content": answer}
        case {"tool": str(name), "arguments": dict(arguments), **rest} if not rest:
            function = {"name": name, "arguments": json_text(arguments)}
            call = {"id": "call_0", "type": "function", "function": function}
            return {"role": "assistant", "content": None, "tool_calls": [call]}
        case _:
            return None


def _signature(name: str, about: str, shape: Shape) -> str:
    """``bash(command: string, timeout?: integer) - Run a command``."""
    fields = shape.fields if isinstance(shape, Fields) else ()
    arguments = ", ".join(
        f"{field.name}{'' if field.required else '?'}: {_kind(field.shape)}" for field in fields
    )
    line = about.strip().splitlines()[0][:ABOUT_MAX_CHARS] if about.strip() else ""
    return f"{name}({arguments})" + (f" - {line}" if line else "")


def _kind(shape: Shape) -> str:
    match shape:
        case Literals(texts):
            whole = "|".join(texts)
            return whole if len(whole) <= SIGNATURE_MAX_CHARS else f"{texts[0]}|..."
        case Text():
            return "string"
        case Whole():
            return "integer"
        case Number():
            return "number"
        case Items(item):
            return f"[{_kind(item)}]"
        case Entries() | Fields():
            return "object"
        case Choice(options):
            whole = "|".join(_kind(option) for option in options)
            return whole if len(whole) <= SIGNATURE_MAX_CHARS else "any"
        case _:
            assert_never(shape)


class _Rules:
    """GBNF rules under construction; equal bodies share one rule.

    Only rule references, quoted literals, classes and {m,n} are used, no groups: the tests read the
    grammar back as a regular expression and generate from it.
    """

    def __init__(self) -> None:
        self._names: dict[str, str] = {}  # body → name

    def action(self, shapes: dict[str, Shape]) -> str:
        """The whole grammar: one call of a tool in ``shapes``, or finishing."""
        text = self._item(Text(0, TEXT_MAX_CHARS))
        alternatives = [f'{_quoted(_FINISH)} {text} "}}"']
        if shapes:
            heads = {name: _quoted(json_text(name) + _ARGUMENTS) for name in shapes}
            call = self._rule([f"{heads[name]} {self._item(shapes[name])}" for name in shapes])
            alternatives.insert(0, f'{_quoted(_TOOL)} {call} "}}"')
        rules = {"root": " | ".join(alternatives)} | {n: body for body, n in self._names.items()}
        return "".join(f"{name} ::= {body}\n" for name, body in rules.items())

    def _rule(self, alternatives: Sequence[str]) -> str:
        body = " | ".join(alternatives)
        return self._names.setdefault(body, f"r{len(self._names)}")

    def _item(self, shape: Shape) -> str:
        """One reference or literal that stands for ``shape``."""
        match shape:
            case Literals(texts):
                quoted = [_quoted(text) for text in texts]
                return quoted[0] if len(quoted) == 1 else self._rule(quoted)
            case Text(least, most):
                return self._string(least, most)
            case Whole(least, most):
                return self._rule([*_signed(least, most)])
            case Number(least, most):
                return self._rule([*self._decimal(least, most)])
            case Items(item, least, most):
                return self._list("[", self._item(item), "]", least, most)
            case Entries(value):
                key = self._string(1, KEY_MAX_CHARS)
                pair = self._rule([f'{key} ": " {self._item(value)}'])
                return self._list("{", pair, "}", 0, LIST_MAX_ITEMS)
            case Fields():
                return self._object(shape)
            case Choice(options):
                return self._rule([self._item(option) for option in options])
            case _:
                assert_never(shape)

    def _string(self, least: int, most: int) -> str:
        quote = _quoted('"')
        if not most:
            return _quoted('""')
        char = self._rule([_PLAIN, _ESCAPE])
        return self._rule([f"{quote} {char}{{{least},{most}}} {quote}"])

    def _list(self, opens: str, item: str, closes: str, least: int, most: int) -> str:
        empty = [_quoted(opens + closes)] if not least else []
        if not most:
            return empty[0]
        more = ""
        if most > 1:
            next_item = self._rule([f'", " {item}'])
            more = f" {next_item}{{{max(least - 1, 0)},{most - 1}}}"
        return self._rule([*empty, f"{_quoted(opens)} {item}{more} {_quoted(closes)}"])

    def _object(self, shape: Fields) -> str:
        """Properties in order, optional ones left out at will; two rules a property at most.

        ``first`` continues when nothing stands before, ``later`` when a comma is due.
        """
        first = later = '""'
        for field in reversed(shape.fields):
            name = _quoted(json_text(field.name) + ": ")
            pair = f"{name} {self._item(field.shape)}"
            skip_first, skip_later = ([], []) if field.required else ([first], [later])
            first = self._rule([f"{pair} {later}", *skip_first])
            later = self._rule([f'", " {pair} {later}', *skip_later])
        return self._rule([f'"{{" {first} "}}"'])

    def _decimal(self, least: int, most: int) -> Iterator[str]:
        """Whole numbers in the bounds, and up to three decimals where those stay inside."""
        yield from _signed(least, most)
        point = self._rule(['"." [0-9]{1,3}'])
        if most > max(least, 0):
            yield from (f"{digits} {point}" for digits in _digits(max(least, 0), most - 1))
        if least < min(most, -1):
            whole = _digits(max(1, -most), -least - 1)
            yield from (f'"-" {digits} {point}' for digits in whole)


def _signed(least: int, most: int) -> Iterator[str]:
    if least < 0:
        yield from (f'"-" {digits}' for digits in _digits(max(1, -most), -least))
    if most >= 0:
        yield from _digits(max(least, 0), most)


def _digits(least: int, most: int) -> Iterator[str]:
    """Sequences that together admit exactly the numbers ``least``..``most``, 0 <= least."""
    low = least
    while low <= most:
        size = len(str(low))
        high = min(most, 10**size - 1)
        yield from _same_size(str(low), str(high))
        low = high + 1


def _same_size(low: str, high: str) -> Iterator[str]:
    if not low:
        yield ""
        return
    head, rest = low[0], len(low) - 1
    if head == high[0]:
        yield from (f'"{head}" {tail}'.rstrip() for tail in _same_size(low[1:], high[1:]))
        return
    bottom, top = int(head), int(high[0])
    if low[1:].strip("0"):  # a ragged lower end
        yield from (f'"{head}" {tail}' for tail in _same_size(low[1:], "9" * rest))
        bottom += 1
    ragged_top = bool(high[1:].strip("9"))
    if bottom <= top - ragged_top:
        yield f"[{bottom}-{top - ragged_top}]" + (f" [0-9]{{{rest},{rest}}}" if rest else "")
    if ragged_top:
        yield from (f'"{top}" {tail}' for tail in _same_size("0" * rest, high[1:]))


def _quoted(text: str) -> str:
    """A GBNF literal of ``text``."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
