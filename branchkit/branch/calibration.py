"""``calibrate``: two recordings that do the same, and what of their results differs all the same.

The answer is a list of masks that ``compare --volatile`` takes: an observation that differs only in
what is masked is then no difference, neither by itself nor in the contexts that show it. Replays
need none of this: there every result comes from the tape.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from branchkit.divergence.align import TurnHashes, Vector, first_divergence
from branchkit.divergence.vectors import vector
from branchkit.divergence.volatile import Learned, Mask, Observed, learn, masked
from branchkit.errors import InputRefused
from branchkit.journal.events import Event, ToolProposed, ToolResult
from branchkit.journal.format import Json, value_hash
from branchkit.record.context import ContextHash, Seen, plain_tools
from branchkit.record.effective import effective
from branchkit.replay.recorded import Recorded


class Calibration(NamedTuple):
    """What was learned from the turns before ``until``, where the two parted (None: they did not).

    ``calls`` were compared; ``workspace`` is the first turn whose files differ though all calls up
    to it were the same: no mask covers files.
    """

    learned: Learned
    calls: int
    until: int | None
    workspace: int | None

    def to_json(self) -> dict[str, Json]:
        """The file that ``compare --volatile`` reads, and the fields of ``calibrate --json``."""
        return {
            "masks": [dict(mask._asdict()) for mask in self.learned.masks],
            "calls": self.calls,
            "differing": list(self.learned.differing),
            "left": list(self.learned.left),
            "until": self.until,
            "workspace": self.workspace,
        }

    def __repr__(self) -> str:
        until = "to their ends" if self.until is None else f"until turn {self.until}"
        lines = [
            f"{self.calls} calls are the same {until}, {len(self.learned.differing)} of them with "
            "another result"
        ]
        lines += [f"  {mask.tool}: {mask.pattern}" for mask in self.learned.masks]
        if self.learned.left:
            lines.append(f"no mask covers {', '.join(self.learned.left)}")
        if self.workspace is not None:
            lines.append(
                f"from turn {self.workspace} on the files differ too; no mask covers files"
            )
        return "\n".join(lines)


def calibrate(one: Recorded, other: Recorded) -> Calibration:
    """What differs between results of calls that both recordings made in the same order."""
    first, second = _vector(one), _vector(other)
    until = first_divergence(first, second)
    pairs = list(_observed(one, other, until))
    files = {row.turn: row.workspace for row in second}
    differing = (
        row.turn
        for row in first
        if (until is None or row.turn < until) and row.workspace != files.get(row.turn)
    )
    return Calibration(learn(pairs), len(pairs), until, next(differing, None))


def load_masks(path: Path) -> tuple[Mask, ...]:
    """The masks of a file that ``calibrate`` wrote. Raises InputRefused."""
    try:
        return tuple(Mask(**mask) for mask in json.loads(path.read_text("utf-8"))["masks"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InputRefused(
            f"{path} holds no masks: {error}", hint="make it: branchkit calibrate A B -o FILE"
        ) from None


def masked_vector(recorded: Recorded, rows: Vector, masks: Sequence[Mask]) -> Vector:
    """``rows`` of this run with observations and contexts hashed as if masked; see ``volatile``."""
    if not masks:
        return rows
    hashes = ContextHash(plain_tools(recorded.started.tools))
    results = _results(recorded, effective(recorded.events))
    found = []
    for row in rows:
        seen = [_masked(item, tool, masks) for item, tool in _with_tools(recorded, row.turn)]
        texts: list[Json] = [
            [result.payload.status, masked(masks, tool, text), result.payload.exit_code]
            for tool, text, result in results
            if result.turn == row.turn and isinstance(result.payload, ToolResult)
        ]
        found.append(_replaced(row, hashes.of(seen), value_hash(texts)))
    return tuple(found)


def _replaced(row: TurnHashes, context: str, observation: str) -> TurnHashes:
    return row._replace(context=context, observation=observation)


def _vector(recorded: Recorded) -> Vector:
    return vector(effective(recorded.events))


def _observed(one: Recorded, other: Recorded, until: int | None) -> Iterator[Observed]:
    sides = [
        {
            result.step_id: (tool, text)
            for tool, text, result in _results(side, effective(side.events))
            if until is None or result.turn < until
        }
        for side in (one, other)
    ]
    for place, (tool, text) in sides[0].items():
        if place in sides[1]:
            yield Observed(place, tool, text, sides[1][place][1])


def _results(recorded: Recorded, events: Sequence[Event]) -> list[tuple[str, str, Event]]:
    """Tool, whole text and event of every result."""
    names = {
        event.payload.call_id: event.payload.name
        for event in events
        if isinstance(event.payload, ToolProposed)
    }
    return [
        (names.get(event.payload.call_id, ""), _text(recorded, event.payload), event)
        for event in events
        if isinstance(event.payload, ToolResult)
    ]


def _text(recorded: Recorded, result: ToolResult) -> str:
    if result.text is not None or result.blob is None:
        return result.text or ""
    try:
        return recorded.blobs(result.blob).decode(errors="replace")
    except KeyError:  # the whole text is nowhere: its hash says at least whether it differs
        return result.sha256


def _with_tools(recorded: Recorded, turn: int) -> Iterator[tuple[Seen, str]]:
    """The messages of the context of ``turn``, each with the tool whose result it is, or ""."""
    names: dict[str, str] = {}
    for item in recorded.contexts.at_turn(turn):
        for call in item.message.get("tool_calls") or []:
            names[str(call.get("id"))] = str((call.get("function") or {}).get("name"))
        yield item, names.get(str(item.message.get("tool_call_id")), "")


def _masked(item: Seen, tool: str, masks: Sequence[Mask]) -> Seen:
    content = item.message.get("content")
    if not tool or not isinstance(content, str):
        return item
    message = {**item.message, "content": masked(masks, tool, content)}
    return Seen(message, value_hash(message))
