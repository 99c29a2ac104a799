"""What truncation kept from the model: results of which a context holds only a part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from branchkit.errors import BlobMissing
from branchkit.harness import truncation
from branchkit.journal.events import Delivered, Event
from branchkit.record.context import Seen
from branchkit.record.seeking import Asked
from branchkit.replay.recorded import Recorded


class Hidden(NamedTuple):
    """A result of which the model saw only a part."""

    call_id: str
    rule: str
    omitted_lines: int
    omitted_bytes: int
    full_text: str | None  # None: the blob is not here


def hidden_before(recorded: Recorded, turn: int, context: Sequence[Seen]) -> Sequence[Hidden]:
    """What truncation kept from the model in the turns before reply ``turn``."""
    if recorded.parent and turn <= recorded.fork_turn:
        return hidden_before(recorded.parent, turn, context)
    cuts = recorded.cuts_before(turn)
    if recorded.parent:
        return [*_hidden_anew(recorded, context), *(cut_of(recorded, event) for event in cuts)]
    if not isinstance(cuts, Asked):
        return [cut_of(recorded, event) for event in cuts]
    return Asked(
        len(cuts), lambda start, stop: [cut_of(recorded, event) for event in cuts[start:stop]]
    )


def cut_of(recorded: Recorded, event: Event) -> Hidden:
    """What the model was not shown of a result. ``event`` is the ``Delivered`` that cut it."""
    cut = event.payload
    assert isinstance(cut, Delivered)
    full = _full_text(recorded, cut.call_id)
    return Hidden(cut.call_id, cut.rule, cut.omitted_lines, cut.omitted_bytes, full)


def _hidden_anew(recorded: Recorded, context: Sequence[Seen]) -> Iterator[Hidden]:
    """What a branch was not shown of results of its prefix, which it may have delivered anew."""
    rule = recorded.record.components["truncation"].spec
    lineage = [recorded]
    while lineage[-1].parent is not None:
        lineage.append(lineage[-1].parent)
    delivered = {
        event.payload.call_id: (run, event.payload)
        for run in reversed(lineage[1:])
        for event in run.events
        if isinstance(event.payload, Delivered) and event.turn <= recorded.fork_turn
    }
    for item in context:
        run, first = delivered.get(item.message.get("tool_call_id", ""), (recorded, None))
        if first is None:
            continue
        full, shown = _full_text(run, first.call_id), item.message.get("content")
        if first.text is not None and shown == first.text:
            yield Hidden(first.call_id, first.rule, first.omitted_lines, first.omitted_bytes, full)
        elif full is not None and (cut := truncation.parse(rule).cut(full)).text == shown != full:
            yield Hidden(first.call_id, rule, cut.omitted_lines, cut.omitted_bytes, full)


def _full_text(recorded: Recorded, call_id: str) -> str | None:
    try:
        return recorded.contexts.full_text(call_id)
    except BlobMissing:
        return None
