"""``branchkit.wire``: a harness that talks to models through an SDK, recorded and replayed.

with branchkit.wire("run.journal.jsonl") as wire:
    agent(openai.OpenAI(http_client=wire.client()))
with branchkit.wire("run.journal.jsonl", "replay") as wire:
    agent(openai.OpenAI(http_client=wire.client()))      # nothing is sent
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal

from branchkit.boundary.intercept import Wire
from branchkit.boundary.model import ModelReply, ModelRequest
from branchkit.durable.own_loop import session
from branchkit.errors import ModelError, UsageError
from branchkit.harness.tools import Tool


@contextmanager
def wire(
    journal: Path | str,
    mode: Literal["record", "replay"] = "record",
    *,
    everywhere: bool = False,
    tools: Sequence[Tool | Callable[..., object]] = (),
    task: str = "",
    seed: int = 0,
) -> Iterator[Wire]:
    """A run whose model requests come from an SDK: OpenAI's, Anthropic's, or what uses them.

    Hand ``wire.client()`` or ``wire.async_client()`` to the SDK, or say ``everywhere`` and every
    client of httpx2 and httpx goes through the run while the block lasts. Chat completions,
    Responses and Messages are understood, streamed or whole; another request is refused.
    ``wire.session`` records tools, time and entropy, as for a loop of your own (R52).

    In replay nothing is sent, and what is asked otherwise than recorded raises Diverged.
    Raises UsageError, JournalLocked, JournalDamaged.
    """
    if mode not in ("record", "replay"):
        raise UsageError(f"mode {mode!r} is neither record nor replay", hint='record or "replay"')
    live = mode == "record"
    model = _ByWire() if live else None
    with session(journal, mode, model=model, tools=tools, task=task, seed=seed) as current:
        found = Wire(current, live=live)
        with found.everywhere() if everywhere else nullcontext():
            yield found


class _ByWire:
    """The model of such a run: it is never asked by the session itself."""

    spec = "wire"

    def describe(self) -> dict[str, Any]:
        return {"model": "asked by the harness, through its HTTP transport"}

    def reply(self, request: ModelRequest) -> ModelReply:
        raise ModelError(
            "this run asks its model over the wire",
            hint="use the SDK's client, or branchkit.session(model=...)",
        )

    def close(self) -> None:
        """Nothing is held."""
