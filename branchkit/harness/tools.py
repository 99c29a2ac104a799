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

An external call may be cut off before its answer comes. What the tool says of itself decides how
that is settled (docs/durability.md):

    def find(arguments: dict[str, Any], key: str) -> ProbeAnswer:
        row = shop.order(reference=key)
        return ProbeAnswer("completed", row.receipt) if row else ProbeAnswer("not_done")

    @tool(effect="external", key=True, key_ttl_s=86400, probe=find)
    def order(article: str, key: Key) -> str: ...

``key``: the server does a request once for each key. The parameter of type ``Key`` is given by
branchkit and is no part of the schema; it is the same when the call is sent again after a crash. A
tool without ``key=True`` may take a ``Key`` too, to leave a mark that its probe can look for.
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

from branchkit.boundary.contract import Contract, Probe, is_no_answer
from branchkit.boundary.contract import Key as Key
from branchkit.boundary.contract import KeyMismatch as KeyMismatch
from branchkit.boundary.contract import NoAnswer as NoAnswer
from branchkit.boundary.contract import ProbeAnswer as ProbeAnswer
from branchkit.errors import UsageError

JSON: TypeAlias = "bool | int | float | str | list[JSON] | dict[str, JSON] | None"
Effect = Literal["pure", "workspace", "external"]
Status = Literal["completed", "error", "timeout", "aborted", "unanswered", "mismatch"]

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
    key: bool = False  # the server does a request once for each key
    key_ttl_s: float | None = None  # how long it remembers a key; None: for ever
    probe: bool = False

    def declared(self) -> dict[str, Any]:
        """The OpenAI form with what branchkit declares beside it: effect and how to settle."""
        beside = {"settle": self.contract._asdict()} if any(self.contract) else {}
        return self.openai() | {"effect": self.effect} | beside

    @property
    def contract(self) -> Contract:
        """How a call of it is settled."""
        return Contract(self.key, self.key_ttl_s, self.probe)

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
    key_parameter: str | None = None
    probe: Probe | None = None

    @property
    def name(self) -> str:
        """What the model calls it."""
        return self.schema.name

    def __call__(self, *args: Any, **kwargs: Any) -> object:
        """The function itself, so that one tool can use another."""
        return self.function(*args, **kwargs)

    def run(self, arguments: Mapping[str, JSON], key: str = "") -> ToolOutcome:
        """Validate and call; whatever goes wrong is an outcome with status ``error``.

        Of an external tool, an exception that means "no answer came" is ``unanswered``: the request
        may have arrived.
        """
        try:
            known = msgspec.convert(clean_value(dict(arguments)), self.arguments)
        except msgspec.ValidationError as error:
            return ToolOutcome("error", f"invalid arguments for {self.name}: {_said(error)}")
        values = {name: getattr(known, name) for name in self.arguments.__struct_fields__}
        if self.key_parameter is not None:
            values[self.key_parameter] = Key(key)
        try:
            return as_outcome(self.function(**values))
        except ToolRefused as error:
            return ToolOutcome("error", clean(str(error)))
        except KeyMismatch as error:
            return ToolOutcome("mismatch", clean(str(error)))
        except Exception as error:  # noqa: BLE001  a tool's failure is an observation
            unknown = self.schema.effect == "external" and is_no_answer(error)
            # No traceback: line numbers and paths of ours are noise to a model.
            text = clean(f"{type(error).__name__}: {error}")
            return ToolOutcome("unanswered" if unknown else "error", text)

    def ask(self, arguments: Mapping[str, JSON], key: str) -> ProbeAnswer:
        """What the tool's probe sees of a call; ``unknown`` if there is none, or it fails."""
        if self.probe is None:
            return ProbeAnswer("unknown", f"{self.name} has no probe")
        try:
            answer = ProbeAnswer(*self.probe(dict(arguments), key))
        except Exception as error:  # noqa: BLE001  a probe that fails has seen nothing
            return ProbeAnswer("unknown", clean(f"{type(error).__name__}: {error}"))
        return ProbeAnswer(answer.state, as_outcome(answer.result).text)


def tool(
    *,
    effect: Effect,
    key: bool = False,
    key_ttl_s: float | None = None,
    probe: Probe | None = None,
) -> Callable[[Callable[..., object]], Tool]:
    """A decorator that turns a fully annotated function into a Tool.

    ``key``, ``key_ttl_s`` and ``probe`` say how an external call in doubt is settled.
    """
    if effect not in typing.get_args(Effect):
        raise UsageError(
            f"effect {effect!r} is unknown", hint=f"one of {', '.join(typing.get_args(Effect))}"
        )
    if effect != "external" and (key or probe):
        raise UsageError(
            f"a tool whose effect is {effect} has no key and no probe",
            hint="they settle external calls; files are restored from the last checkpoint",
        )

    def decorate(function: Callable[..., object]) -> Tool:
        contract = Contract(key, key_ttl_s, probe is not None)
        return _describe(function, effect, contract, probe)

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


def _describe(
    function: Callable[..., object], effect: Effect, contract: Contract, probe: Probe | None
) -> Tool:
    name = function.__name__
    fields = _fields(function)
    keys = [each for each, rest in fields.items() if rest[0] is Key]
    if len(keys) > 1 or (contract.key and not keys):
        raise UsageError(
            f"tool {name} takes {len(keys)} parameters of type Key",
            hint="with key=True it needs one: def pay(amount: int, key: Key) -> str",
        )
    for each in keys:
        del fields[each]
    description, said = _split_docstring(inspect.getdoc(function) or "", set(fields))
    arguments = msgspec.defstruct(
        name,
        [(each, *rest) for each, rest in fields.items()],
        kw_only=True,
        forbid_unknown_fields=True,
    )
    parameters = _parameters(arguments, said)
    schema = ToolSchema(name, description, parameters, effect, *contract)
    return Tool(schema, function, arguments, keys[0] if keys else None, probe)


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
