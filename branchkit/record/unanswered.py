"""Calls that a run left without an answer when it was cut off, and the messages that stand in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from branchkit.record.context import Seen, seen, tool_message

NOT_DELIVERED = "[the run ended before this call was answered: what became of it is not known]"


def unanswered(context: Sequence[Seen]) -> list[Seen]:
    """A message for each call of the last reply in ``context`` that none answers.

    No provider takes a call without its answer. The messages stand in no event of the run that was
    cut off; the context that a branch begins with holds them.
    """
    missing: list[str] = []
    for item in context:
        if item.message.get("role") == "assistant":
            missing = _call_ids(item.message.get("tool_calls"))
        elif item.message.get("tool_call_id") in missing:
            missing.remove(item.message["tool_call_id"])
    return [seen(tool_message(call_id, NOT_DELIVERED)) for call_id in missing]


def _call_ids(calls: Any) -> list[str]:
    """The ids of what is a call in ``calls``: the messages of an import may hold anything."""
    found = (
        [call.get("id") for call in calls if isinstance(call, dict)]
        if isinstance(calls, list)
        else []
    )
    return [call_id for call_id in found if isinstance(call_id, str)]
