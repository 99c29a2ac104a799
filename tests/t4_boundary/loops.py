"""Loops of a user's own for the boundary's tests, and journals re-chained after a change."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import branchkit
from branchkit.boundary.model import ModelRequest
from branchkit.boundary.session import Session
from branchkit.journal.chain import seal
from branchkit.journal.events import Event, Message, Payload
from branchkit.journal.file import read
from branchkit.journal.format import ZERO_HASH

Agent = Callable[[Session], Any]
Function = Callable[[ModelRequest], Message]


def proposes(*calls: tuple[str, dict[str, Any] | str], text: str = "") -> Message:
    """An assistant message with calls; arguments may be text that is no JSON."""
    wanted = [
        {
            "id": f"c{number}",
            "type": "function",
            "function": {
                "name": name,
                "arguments": given if isinstance(given, str) else json.dumps(given),
            },
        }
        for number, (name, given) in enumerate(calls)
    ]
    return {"role": "assistant", "content": text, "tool_calls": wanted}


def says(text: str) -> Message:
    """An assistant message without calls."""
    return {"role": "assistant", "content": text}


def scripted(*replies: Message) -> Function:
    """A model that gives ``replies`` in turn."""
    return lambda request: replies[request.turn - 1]


def plain_loop(session: Session, task: str = "go") -> str:
    """The tool-calling loop that everybody writes."""
    messages = [session.input({"role": "user", "content": task})]
    while (answer := session.model(messages)).calls:
        messages += [answer.message, *(session.tool(call) for call in answer.calls)]
    return answer.text


def record(path: Path, agent: Agent, model: Function, tools: Sequence[Any] = ()) -> Any:
    """What ``agent`` returned while it was recorded."""
    with branchkit.session(path, model=model, tools=tools) as session:
        return agent(session)


def replay(path: Path, agent: Agent) -> Any:
    """What ``agent`` returns on the tape; None where the tape ends before it."""
    results = []
    with branchkit.session(path, "replay") as session:
        results.append(agent(session))
    return results[0] if results else None


def events_of(path: Path) -> list[Event]:
    """The events of an intact journal."""
    events, damage = read(path)
    assert not damage
    return events


def rechained(
    target: Path, events: Iterable[Event], change: Callable[[Event], Payload] | None = None
) -> Path:
    """A journal of ``events``, numbered and chained anew: no hash tells that it was touched."""
    head, lines = ZERO_HASH, []
    for seq, event in enumerate(events):
        sealed = seal(
            event.payload if change is None else change(event),
            seq=seq,
            turn=event.turn,
            step_id=event.step_id,
            recorded_at=event.recorded_at,
            run_id=event.run_id,
            prev_event_hash=head,
        )
        head = sealed.event.event_hash
        lines.append(sealed.line)
    target.write_bytes(b"".join(lines))
    return target
