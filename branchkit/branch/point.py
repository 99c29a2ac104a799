"""Where a branch begins: the state before reply t+1, with one component swapped (R59, R60).

Turns 1..t are taken from the record and cost nothing. The context of reply t+1 is assembled anew:
each result of those turns is delivered from its *full* recorded text under the rule of the branch,
the system prompt from the prompt of the branch; everything else stands as it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from branchkit.boundary.calls import reply_message
from branchkit.boundary.session import Base
from branchkit.branch.swap import Swap
from branchkit.errors import BlobMissing, UsageError
from branchkit.harness.components import DEFAULTS, Harness, build, component
from branchkit.journal.events import Component, Delivered, Event, Message
from branchkit.journal.format import canonical
from branchkit.record.context import Seen, as_in_parent, seen
from branchkit.record.record import Record
from branchkit.replay.recorded import Recorded


class ForkPoint(NamedTuple):
    """Everything a branch starts from. ``decision`` is reply t+1 where a what-if dictates it."""

    turn: int
    event: Event  # the parent's last event of turn t
    record: Record
    components: Mapping[str, Component]
    harness: Harness
    context: list[Message]
    base: Base
    snapshot: str | None
    decision: Message | None


def fork_point(
    recorded: Recorded,
    turn: int,
    swap: Swap | None,
    *,
    redeliver_from: int = 1,
    model: str | None = None,
) -> ForkPoint:
    """The state of ``rewind(turn + 1)`` under ``swap``.

    Results of turns from ``redeliver_from`` on are delivered anew. ``model`` replaces one that
    cannot be asked again. Raises TurnOutside, UsageError, BlobMissing (naming the turn whose
    full text is not there).
    """
    recorded.check_turn(turn, 0, recorded.turns)
    recorded = recorded.owner(turn)
    record = recorded.record_after(turn)
    components = DEFAULTS | dict(record.components)
    if model is not None:
        components["model"] = component("model", model)
    if swap is not None and swap.component in components | {"model": None}:
        components[swap.component] = swap.part
    harness = _without_slip(build(components), components, swap)
    base = recorded.context_before(turn + 1)
    edited = _edited(recorded, turn, base, swap, harness, redeliver_from)
    snapshot = record.snapshot_at(turn)
    return ForkPoint(
        turn=turn,
        event=recorded.last_event(turn),
        record=record,
        components=components,
        harness=harness,
        context=[item.message for item in edited],
        base=_base(recorded, turn, base),
        snapshot=snapshot.id if snapshot else None,
        decision=_decision(swap),
    )


def _without_slip(
    harness: Harness, components: Mapping[str, Component], swap: Swap | None
) -> Harness:
    """The stand-in's slip rate means nothing to a model in its place, so it goes with it."""
    model = components.get("model")
    by_rulebook = model is not None and model.spec.startswith("rulebook:")
    if by_rulebook or "slip" not in harness.sampling:
        return harness
    if swap is not None and swap.component == "sampling":
        raise UsageError("slip is the stand-in's alone", hint="write sampling=temperature:0.7")
    kept = {name: value for name, value in harness.sampling.items() if name != "slip"}
    return harness._replace(sampling=kept)


def _base(recorded: Recorded, turn: int, context: list[Seen]) -> Base:
    """The parent's newest context, which the branch's first ContextBuilt refers to.

    Messages of ``context`` that came after it (a fork at the run's end) stand in parent events.
    """
    own = recorded.contexts.turns
    built = own.get(turn + 1) or own.get(turn)
    held = len(recorded.contexts.at_seq(built.seq)) if built else 0
    named = as_in_parent(context)
    return Base(named[:held], built.seq if built else None, True, named[held:])


def _decision(swap: Swap | None) -> Message | None:
    if swap is None or swap.component != "decision":
        return None
    message = reply_message(orjson.loads(swap.part.content or ""))
    for call in message.get("tool_calls") or []:
        function = call["function"]
        if isinstance(function["arguments"], dict):  # a person writes them so; no provider takes it
            function["arguments"] = canonical(function["arguments"]).decode()
    return message


def _edited(
    recorded: Recorded,
    turn: int,
    context: list[Seen],
    swap: Swap | None,
    harness: Harness,
    redeliver_from: int,
) -> list[Seen]:
    match swap.component if swap else None:
        case "prompt":
            return _with_prompt(context, harness.prompt(recorded.record.task))
        case "truncation":
            return [_redelivered(recorded, item, harness, redeliver_from) for item in context]
        case "observation":
            assert swap is not None
            return _with_observation(recorded, turn, context, swap, harness)
        case _:
            return context


def _with_prompt(context: list[Seen], prompt: Message) -> list[Seen]:
    rest = context[1:] if context and context[0].message.get("role") == "system" else context
    return [seen(prompt), *rest]


class _Delivery(NamedTuple):
    """A delivery, and the run of the lineage whose event it is."""

    run: Recorded
    event: Event
    payload: Delivered


def _delivered(recorded: Recorded, item: Seen) -> _Delivery | None:
    """The delivery that a message of the context came from."""
    if item.seq is not None:
        run = recorded.parent if item.in_parent and recorded.parent else recorded
        event = run.events[item.seq]
        return (
            _Delivery(run, event, event.payload) if isinstance(event.payload, Delivered) else None
        )
    # No event that a branch could name: it was delivered anew by an earlier fork, or comes from
    # further up. Its call tells; turns that two runs share are in the older of them alone.
    call_id, older = item.message.get("tool_call_id"), recorded
    while call_id is not None:
        for event in older.events:
            if isinstance(event.payload, Delivered) and event.payload.call_id == call_id:
                return _Delivery(older, event, event.payload)
        if older.parent is None:
            return None
        older = older.parent
    return None


def _shown(delivery: _Delivery) -> str:
    """What of its result the model was shown. Raises BlobMissing."""
    text = delivery.payload.text
    return delivery.run.contexts.full_text(delivery.payload.call_id) if text is None else text


def _redelivered(recorded: Recorded, item: Seen, harness: Harness, first_turn: int) -> Seen:
    delivery = _delivered(recorded, item)
    if delivery is None or delivery.event.turn < first_turn:
        return item
    try:
        full = delivery.run.contexts.full_text(delivery.payload.call_id)
    except BlobMissing as error:
        turn = delivery.event.turn
        raise BlobMissing(
            f"turn {turn} cannot be delivered anew: {error.message}",
            hint=f"{error.hint}; or leave it as it was: --from {turn + 1}",
        ) from None
    cut = harness.deliver(full)
    return _said_anew(item, delivery, full if cut.text is None else cut.text)


def _said_anew(item: Seen, delivery: _Delivery, now: str) -> Seen:
    """``item`` with ``now`` as its result, made from the message that was first delivered."""
    first = delivery.run.contexts.seen(delivery.event.seq)
    made = _reworded(first, _shown(delivery), now)
    return item if made.message_hash == item.message_hash else made._replace(seq=None)


def _reworded(item: Seen, was: str, now: str) -> Seen:
    """The message with ``now`` where it said ``was``; itself if nothing changes."""
    if was == now:
        return item
    content = item.message.get("content")
    if isinstance(content, list):  # text parts, images between them stay
        parts = [_reworded_part(part, was, now) for part in content]
        return seen({**item.message, "content": parts})
    text = str(content or "")
    return seen({**item.message, "content": text.replace(was, now) if was else now})


def _reworded_part(part: Any, was: str, now: str) -> Any:
    if isinstance(part, dict) and isinstance(part.get("text"), str) and was:
        return {**part, "text": part["text"].replace(was, now)}
    return part


def _with_observation(
    recorded: Recorded, turn: int, context: list[Seen], swap: Swap, harness: Harness
) -> list[Seen]:
    found = []
    for index, item in enumerate(context):
        delivery = _delivered(recorded, item)
        if delivery is None or delivery.event.turn != turn:
            continue
        found.append(delivery.payload.call_id)
        if delivery.payload.call_id == swap.target:
            text = swap.part.content or ""
            cut = harness.deliver(text)
            anew = _said_anew(item, delivery, text if cut.text is None else cut.text)
            return [*context[:index], anew, *context[index + 1 :]]
    raise UsageError(
        f"turn {turn} has no call {swap.target}",
        hint=f"calls of turn {turn}: {', '.join(found) or 'none'}",
    )
