"""Tools: typed Python functions and the JSON Schema derived from them.

    @tool(effect="workspace")
    def delete_branch(name: str, force: bool = False) -> str:
        \"\"\"Delete a branch.

        name: the branch to delete
        \"\"\"

A tool returns text (other values are shown as JSON) or a ToolOutcome; ``raise ToolRefused(text)``
answers the model with an error. It runs in a process of its own for each call: what it wants to
remember it keeps in the workspace, because only that is rewound and forked. Prints go nowhere.

Effects: ``pure`` changes nothing, ``workspace`` changes files there, ``external`` may reach
anything else. ``bash`` is ``workspace`` inside a sandbox, which has no network, else ``external``.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
import types
import typing
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from branchkit.errors import UsageError

JSON: TypeAlias = "bool | int | float | str | list[JSON] | dict[str, JSON] | None"
Effect = Literal["pure", "workspace", "external"]
Status = Literal["completed", "error", "timeout", "aborted"]

STANDARD = ("bash", "read_file", "write_file", "edit_file", "list_dir", "grep")

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_PARAMETER_LINE = re.compile(r"\s*(\w+): (.+)")


class ToolOutcome(NamedTuple):
    """What the model is told. ``exit_code`` only for commands; ``aborted``: the server died."""

    status: Status
    text: str
    exit_code: int | None = None


class ToolRefused(Exception):
    """A tool cannot do what was asked; the message is the observation the model gets."""


class ToolSchema(msgspec.Struct, frozen=True):
    """What a model is told about a tool; ``parameters`` is a JSON Schema object."""

    name: str
    description: str
    parameters: dict[str, Any]
    effect: Effect

    def openai(self) -> dict[str, Any]:
        """The form that chat completion APIs take."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
        }
        return {"type": "function", "function": function}


@dataclass(frozen=True)
class Tool:
    """A function with its schema; calling it calls the function, without validation."""

    schema: ToolSchema
    function: Callable[..., object]
    arguments: type[msgspec.Struct]

    @property
    def name(self) -> str:
        """What the model calls it."""
        return self.schema.name

    def __call__(self, *args: Any, **kwargs: Any) -> object:
        """The function itself, so that one tool can use another."""
        return self.function(*args, **kwargs)

    def run(self, arguments: Mapping[str, JSON]) -> ToolOutcome:
        """Validate and call; whatever goes wrong is an outcome with status ``error``."""
        try:
            known = msgspec.convert(clean_value(dict(arguments)), self.arguments)
        except msgspec.ValidationError as error:
            return ToolOutcome("error", f"invalid arguments for {self.name}: {_said(error)}")
        values = {name: getattr(known, name) for name in self.arguments.__struct_fields__}
        try:
            return as_outcome(self.function(**values))
        except ToolRefused as error:
            return ToolOutcome("error", clean(str(error)))
        except Exception as error:  # noqa: BLE001  a tool's failure is an observation
            # No traceback: line numbers and paths of ours are noise to a model.
            return ToolOutcome("error", clean(f"{type(error).__name__}: {error}"))


def tool(*, effect: Effect) -> Callable[[Callable[..., object]], Tool]:
    """A decorator that turns a fully annotated function into a Tool."""
    if effect not in typing.get_args(Effect):
        raise UsageError(
            f"effect {effect!r} is unknown", hint=f"one of {', '.join(typing.get_args(Effect))}"
        )

    def decorate(function: Callable[..., object]) -> Tool:
        return _describe(function, effect)

    return decorate


def load_tools(source: str) -> list[Tool]:
    """The @tool functions that ``source``, the text of a Python module, defines, in its order.

    It runs ``source``: outside a sandbox only if you trust it.
    """
    checksum = zlib.crc32(source.encode("utf-8", "surrogatepass"))  # hashlib costs 5 ms of start
    module = types.ModuleType(f"branchkit_tools_{checksum:08x}")
    sys.modules[module.__name__] = module  # dataclasses and msgspec look types up there
    try:
        exec(compile(source, "tools.py", "exec"), module.__dict__)
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(
            f"the tools module cannot be loaded: {type(error).__name__}: {error}",
            hint="it must be Python text that imports `tool` from branchkit.harness.tools",
        ) from error
    found = [
        value
        for value in module.__dict__.values()
        if isinstance(value, Tool) and value.function.__module__ == module.__name__
    ]
    if not found:
        raise UsageError(
            "the tools module defines no tool",
            hint="decorate each function: @tool(effect='workspace')",
        )
    return found


def schemas_of(tools: Iterable[Tool]) -> list[ToolSchema]:
    """The schemas in the order of the tools."""
    return [each.schema for each in tools]


def clean(text: str) -> str:
    """``text`` with U+FFFD for each lone surrogate, so that it can be encoded."""
    if not _LONE_SURROGATE.search(text):
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def clean_value(value: Any) -> Any:
    """A JSON value with every string in it cleaned."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list):
        return [clean_value(item) for item in value]
    if isinstance(value, dict):
        return {clean(str(key)): clean_value(item) for key, item in value.items()}
    return value


def as_outcome(value: object) -> ToolOutcome:
    """What a tool returned, as an outcome: text as it is, anything else as sorted JSON."""
    if isinstance(value, ToolOutcome):
        return value._replace(text=clean(value.text))
    if value is None:
        return ToolOutcome("completed", "")
    if isinstance(value, bytes):
        return ToolOutcome("completed", value.decode("utf-8", "replace"))
    if not isinstance(value, str):
        value = json.dumps(value, sort_keys=True, ensure_ascii=False, indent=2)
    return ToolOutcome("completed", clean(value))


def _describe(function: Callable[..., object], effect: Effect) -> Tool:
    name = function.__name__
    fields = _fields(function)
    description, said = _split_docstring(inspect.getdoc(function) or "", set(fields))
    arguments = msgspec.defstruct(
        name,
        [(each, *rest) for each, rest in fields.items()],
        kw_only=True,
        forbid_unknown_fields=True,
    )
    parameters = _parameters(arguments, said)
    return Tool(ToolSchema(name, description, parameters, effect), function, arguments)


def _fields(function: Callable[..., object]) -> dict[str, tuple[Any, ...]]:
    """Parameter name → (type,) or (type, default)."""
    name = function.__name__
    hints = typing.get_type_hints(function, include_extras=True)
    fields: dict[str, tuple[Any, ...]] = {}
    for each, parameter in inspect.signature(function).parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise UsageError(f"tool {name}: parameter {each} cannot be given by name")
        if each not in hints:
            raise UsageError(
                f"tool {name}: parameter {each} has no type", hint=f"for example {each}: str"
            )
        required = parameter.default is parameter.empty
        fields[each] = (hints[each],) if required else (hints[each], parameter.default)
    return fields


def _parameters(arguments: type[msgspec.Struct], said: dict[str, str]) -> dict[str, Any]:
    """The JSON Schema of one call; shared types of the tool's author stand under $defs."""
    try:
        schema = msgspec.json.schema(arguments)
    except TypeError as error:
        raise UsageError(
            f"tool {arguments.__name__}: a parameter's type has no JSON Schema: {error}",
            hint="use str, int, float, bool, list, dict, Literal, Optional or a dataclass",
        ) from error
    shared = schema["$defs"]
    parameters: dict[str, Any] = shared.pop(arguments.__name__)
    del parameters["title"]
    for each, text in said.items():
        parameters["properties"][each]["description"] = text
    if shared:
        parameters["$defs"] = shared
    return parameters


def _split_docstring(text: str, names: set[str]) -> tuple[str, dict[str, str]]:
    """The description without its ``name: …`` lines, and these lines by parameter."""
    said, rest = {}, []
    for line in text.splitlines():
        match = _PARAMETER_LINE.fullmatch(line)
        if match and match[1] in names:
            said[match[1]] = match[2]
        else:
            rest.append(line)
    return "\n".join(rest).strip(), said


def _said(error: msgspec.ValidationError) -> str:
    """msgspec's message in the words of a call: `$.force` is the argument `force`."""
    text = re.sub(r" - at `\$\.?([^`]*)`", r" (argument `\1`)", str(error))
    text = text.replace(" (argument ``)", "")
    return text.replace("Object missing required field", "missing argument").replace(
        "Object contains unknown field", "unknown argument"
    )
