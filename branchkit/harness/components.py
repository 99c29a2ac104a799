"""The parts of a harness by name, each a spec and, where the spec names a file, its text.

The text travels in the journal, so a fork on another machine needs no file of the recording one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from branchkit.boundary.calls import Call
from branchkit.boundary.session import Decision, Delivery
from branchkit.errors import UsageError
from branchkit.harness import parser as parsers
from branchkit.harness import policy as policies
from branchkit.harness import truncation as truncations
from branchkit.journal.events import Component, Message
from branchkit.journal.format import value_hash

DEFAULTS: dict[str, Component] = {
    "sampling": Component(spec="default"),
    "prompt": Component(spec="default", content="You are a careful agent. Use the tools."),
    "truncation": Component(spec="none"),
    "tools": Component(spec="standard"),
    "parser": Component(spec="native"),
    "policy": Component(spec="allow"),
}
NAMES = ("model", *DEFAULTS)


class Harness(NamedTuple):
    """The components, ready to run. The model and the tools are opened where they run."""

    components: Mapping[str, Component]
    sampling: dict[str, float]
    prompt: Callable[[str], Message]  # task -> system message
    deliver: Callable[[str], Delivery]
    read_calls: parsers.Parser
    decide: Callable[[Call], Decision]


def component(name: str, spec: str) -> Component:
    """The component that ``spec`` describes; ``@FILE`` in it is read now.

    Raises UsageError for an unknown name, a spec that makes no sense, or a file that is not there.
    """
    if name not in NAMES:
        raise UsageError(
            f"there is no component {name!r}", hint=f"components are {', '.join(NAMES)}"
        )
    before, at, path = spec.partition("@")
    # "openai:NAME@URL" has an @ too, and means no file.
    reads_file = at and not before.startswith("openai:")
    part = Component(spec=_without_folders(spec) if reads_file else spec)
    if reads_file:
        part = Component(spec=part.spec, content=_read(path))
    elif name == "prompt" and spec != "default":
        raise UsageError(f"prompt {spec!r} names no file", hint="write prompt=@FILE")
    build(dict(DEFAULTS) | {name: part})
    return part


def _without_folders(spec: str) -> str:
    before, _, path = spec.partition("@")
    return f"{before}@{Path(path).name}"


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}", hint="name a text file") from None


def build(components: Mapping[str, Component]) -> Harness:
    """The harness that these components make. Raises UsageError for a spec that makes no sense."""
    parts = DEFAULTS | dict(components)
    rule = truncations.parse(parts["truncation"].spec)

    def deliver(text: str) -> Delivery:
        cut = rule.cut(text)
        whole = cut.text == text
        return Delivery(
            str(rule), None if whole else cut.text, cut.omitted_lines, cut.omitted_bytes
        )

    prompt = parts["prompt"].content or ""

    return Harness(
        components=parts,
        sampling=parse_sampling(parts["sampling"].spec),
        prompt=lambda task: {"role": "system", "content": _with_task(prompt, task)},
        deliver=deliver,
        read_calls=parsers.parse(parts["parser"].spec),
        decide=policies.parse(parts["policy"].spec),
    )


def _with_task(prompt: str, task: str) -> str:
    """``prompt`` with the task for ``$task``; every other dollar of it is its own."""
    return re.sub(r"\$(?:task\b|\{task\})", lambda _: task, prompt)


def parse_sampling(spec: str) -> dict[str, float]:
    """``temperature:0.7,top_p:0.9`` as numbers by name. Raises UsageError."""
    if spec == "default":
        return {}
    settings: dict[str, float] = {}
    for part in spec.split(","):
        name, _, value = part.strip().partition(":")
        try:
            settings[name] = float(value)
        except ValueError:
            settings[name] = math.nan
        # "nan" and "inf" are numbers to Python, and no JSON.
        if not name or not math.isfinite(settings[name]):
            raise UsageError(
                f"sampling {part!r} is no NAME:NUMBER",
                hint="write temperature:0.7, or slip:0.2 for the stand-in",
            )
    return settings


def component_hash(part: Component) -> str:
    """What a swap is declared with in ``Forked``: the hash of spec and text."""
    return value_hash([part.spec, part.content])
