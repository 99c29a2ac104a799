"""A swap: the one thing that is different in an arm, as a declared value with a hash (R59, H09).

``component=SPEC`` replaces a part of the harness from the fork on. Two what-ifs replace no part:
``observation=CALL:@FILE`` gives a call of turn t another result, ``decision=@FILE`` another reply.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import orjson

from branchkit.boundary.calls import reply_message
from branchkit.errors import UsageError
from branchkit.harness.components import NAMES, component, component_hash
from branchkit.journal.events import Component

WHAT_IFS = ("observation", "decision")
SWAPPABLE = ("model", "sampling", "prompt", "truncation", "policy", "parser", *WHAT_IFS)


class Swap(NamedTuple):
    """One replaced component. ``target`` is the call that an observation belongs to."""

    component: str
    spec: str
    part: Component
    target: str | None = None

    @property
    def name(self) -> str:
        """What the arm is called."""
        return f"{self.component}={self.spec}"

    def declared(self) -> dict[str, str]:
        """How ``Forked`` records it."""
        return {
            "component": self.component,
            "spec": self.spec,
            "hash": component_hash(self.part),
        }


def parse_swap(text: str, recorded: Mapping[str, Component]) -> Swap:
    """The swap that ``COMPONENT=SPEC`` says; files named by ``@`` are read now.

    Raises UsageError for an unknown component, two components in one arm, or a bad spec.
    """
    name, equals, spec = text.partition("=")
    name = name.strip()
    if not equals or not spec:
        raise UsageError(
            f"{text!r} is no swap", hint="write COMPONENT=SPEC, such as truncation=head:40l"
        )
    if name not in SWAPPABLE:
        raise UsageError(
            f"there is no component {name!r} to swap",
            hint=f"components are {', '.join(SWAPPABLE)}",
        )
    if second := _second_component(spec):
        raise UsageError(
            f"{text!r} swaps {name} and {second} in one arm: a difference would have two causes",
            hint="give two --swap, which makes two arms",
        )
    if name in WHAT_IFS:
        return _what_if(name, spec)
    # A stand-in that the run brought with it needs no file to be named again. A spec that names a
    # file means the file as it is now, also where the recorded one had the same name.
    own = recorded.get(name)
    same = own is not None and own.spec == spec and "@" not in spec
    part = own if own is not None and same else component(name, spec)
    return Swap(name, part.spec, part)


def _second_component(spec: str) -> str | None:
    for piece in spec.replace(";", ",").split(","):
        name = piece.partition("=")[0].strip()
        if "=" in piece and name in (*NAMES, *WHAT_IFS):
            return name
    return None


def _what_if(name: str, spec: str) -> Swap:
    before, at, path = spec.partition("@")
    target = before.removesuffix(":") if name == "observation" else None
    if not at or (name == "observation" and not target):
        form = "observation=CALL:@FILE" if name == "observation" else "decision=@FILE"
        raise UsageError(f"{name}={spec} is incomplete", hint=f"write {form}")
    try:
        content = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}", hint="name a text file") from None
    if name == "decision":
        _check_decision(path, content)
    part = Component(spec=f"{before}@{Path(path).name}", content=content)
    return Swap(name, part.spec, part, target)


def _check_decision(path: str, content: str) -> None:
    try:
        message = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise UsageError(
            f"{path} is not JSON: {error}", hint="give one assistant message"
        ) from None
    problem = ""
    try:
        if reply_message(message)["role"] != "assistant":
            problem = "its role is another"
    except ValueError as error:
        problem = str(error)
    if problem:
        raise UsageError(
            f"{path} is not an assistant message: {problem}",
            hint='{"role": "assistant", "content": "", "tool_calls": [...]}',
        )
