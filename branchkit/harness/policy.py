"""Policies: which call is allowed, denied, or held for a person.

A spec is ``allow``, or rules separated by commas, the first that fits decides:
``deny:delete_branch``, ``hold:bash``, ``allow:*``. What no rule names is allowed.
"""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Literal, NamedTuple

from branchkit.boundary.calls import Call
from branchkit.boundary.session import Decision
from branchkit.errors import UsageError


class Rule(NamedTuple):
    """One rule: what happens to calls of tools whose name fits the pattern."""

    decision: Literal["allow", "deny", "hold"]
    pattern: str


def parse(spec: str) -> Callable[[Call], Decision]:
    """The policy that ``spec`` describes. Raises UsageError."""
    rules = [] if spec == "allow" else [_rule(part.strip()) for part in spec.split(",")]

    def decide(call: Call) -> Decision:
        for rule in rules:
            if fnmatchcase(call.name, rule.pattern):
                return Decision(rule.decision, spec, f"rule {rule.decision}:{rule.pattern}")
        return Decision("allow", spec)

    return decide


def _rule(text: str) -> Rule:
    word, _, pattern = text.partition(":")
    match word:
        case "allow" | "deny" | "hold" if pattern:
            return Rule(word, pattern)
        case _:
            raise UsageError(
                f"{text!r} is no policy rule",
                hint="write allow, or rules like deny:delete_*,hold:bash",
            )
