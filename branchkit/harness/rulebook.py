"""The stand-in: written rules over the text of a context, with a seeded slip rate.

It is not a model and is never called one. It lets every mechanism of branchkit be shown and tested
offline, with a known truth: what it does depends on nothing but what stands in its context, the
request's seed and ``slip``, the probability with which a rule takes its second choice.

A rulebook is TOML. The first ``[[rule]]`` that fits decides::

    [[rule]]
    why = "read the instructions first"
    unless = "CLEANUP.md"                     # regex that must not be found in the context
    call = "read_file"                        # or: say = "text of a last message"
    arguments = { path = "CLEANUP.md" }

    [[rule]]
    why = "delete what the last listing shows as merged"
    in = "list_branches"                      # search only the last result of this tool
    find = '^(?P<name>\\S+) +merged'          # each match is tried in turn ...
    unless = 'delete_branch.*"{name}"'        # ... until one is not excluded
    call = "delete_branch"
    arguments = { name = "{name}" }
    slip = { call = "show_branch", arguments = { name = "{name}" } }

``{group}`` stands for a named group of ``find``; within ``unless`` it is escaped. A rule may have
several ``unless``. Calls in the context are searched as ``name {"argument":"value"}``.
"""

from __future__ import annotations

import random
import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from branchkit.boundary.model import ModelReply, ModelRequest
from branchkit.errors import ModelError, UsageError
from branchkit.journal.events import Message
from branchkit.journal.format import canonical, digest


class Choice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to do: one call, or a last message."""

    call: str | None = None
    arguments: dict[str, Any] = {}
    say: str | None = None


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"within": "in"}):
    """When to do it. See the module's text."""

    why: str
    find: str | None = None
    within: str | None = None
    unless: list[str] | str = []
    call: str | None = None
    arguments: dict[str, Any] = {}
    say: str | None = None
    slip: Choice | None = None


class Rules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole rulebook."""

    rule: list[Rule]


class Rulebook:
    """A stand-in that follows ``text``; the same (context, seed, slip) gives the same reply."""

    def __init__(self, spec: str, text: str) -> None:
        self.spec = spec
        self._hash = digest(text.encode())
        try:
            self._rules = msgspec.convert(tomllib.loads(text), Rules).rule
            for rule in self._rules:
                _check_patterns(rule)
        except (tomllib.TOMLDecodeError, msgspec.ValidationError, re.error) as error:
            raise UsageError(f"{spec}: {error}", hint="see `rulebook` in the docs") from None

    def describe(self) -> dict[str, Any]:
        """What is recorded of it."""
        return {"stand_in": self.spec, "rules": self._hash}

    def close(self) -> None:
        """Nothing is held."""

    def reply(self, request: ModelRequest) -> ModelReply:
        """The reply of the first rule that fits. Raises ModelError if none does."""
        context = "\n".join(_lines(request.messages))
        slips = random.Random(request.seed).random() < float(request.sampling.get("slip", 0.0))
        for rule in self._rules:
            for groups in _matches(rule, request.messages, context):
                second = rule.slip if slips else None
                choice = second or Choice(rule.call, rule.arguments, rule.say)
                return self._reply(choice, groups, context)
        raise ModelError(
            f"no rule of {self.spec} fits this context", hint="add a last rule that says something"
        )

    def _reply(self, choice: Choice, groups: Mapping[str, str], context: str) -> ModelReply:
        message: Message = {"role": "assistant", "content": ""}
        if choice.call is not None:
            arguments = canonical(_filled(choice.arguments, groups)).decode()
            function = {"name": choice.call, "arguments": arguments}
            message["tool_calls"] = [{"id": "call", "type": "function", "function": function}]
        else:
            message["content"] = _filled(choice.say or "", groups)
        usage = {"prompt_tokens": len(context) // 4, "completion_tokens": 12}
        reason = "tool_calls" if choice.call is not None else "stop"
        return ModelReply(
            message=message,
            finish_reason=reason,
            usage=usage,
            served_model=f"{self.spec} (stand-in, no model)",
        )


def _check_patterns(rule: Rule) -> None:
    """Raise re.error now rather than in the middle of a run."""
    names = re.compile(rule.find, re.M).groupindex if rule.find is not None else {}
    for pattern in _patterns(rule):
        re.compile(_filled(pattern, dict.fromkeys(names, "x")), re.M)


def _patterns(rule: Rule) -> list[str]:
    return [rule.unless] if isinstance(rule.unless, str) else rule.unless


def _matches(rule: Rule, messages: list[Message], context: str) -> Iterator[dict[str, str]]:
    text = context if rule.within is None else _last_result(rule.within, messages)
    found: Iterator[dict[str, str]] = iter([{}])
    if rule.find is not None:
        found = (match.groupdict("") for match in re.finditer(rule.find, text, re.M))
    for groups in found:
        escaped = {name: re.escape(value) for name, value in groups.items()}
        if not any(re.search(_filled(one, escaped), context, re.M) for one in _patterns(rule)):
            yield groups


def _filled(value: Any, groups: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        # In one pass: the text of a branch or a file may look like a group of ours itself.
        return re.sub(r"\{(\w+)\}", lambda found: groups.get(found[1], found[0]), value)
    if isinstance(value, dict):
        return {key: _filled(item, groups) for key, item in value.items()}
    return [_filled(item, groups) for item in value] if isinstance(value, list) else value


def _lines(messages: list[Message]) -> Iterator[str]:
    for message in messages:
        if message.get("content"):
            yield str(message["content"])
        for call in message.get("tool_calls") or []:
            yield f"{call['function']['name']} {call['function']['arguments']}"


def _last_result(tool: str, messages: list[Message]) -> str:
    names = {
        call["id"]: call["function"]["name"]
        for message in messages
        for call in message.get("tool_calls") or []
    }
    for message in reversed(messages):
        if message["role"] == "tool" and names.get(message.get("tool_call_id", "")) == tool:
            return str(message["content"])
    return ""
