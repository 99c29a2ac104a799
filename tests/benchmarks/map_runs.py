"""A comparison of any size for the benchmark of the map: real journals, many rows of each.

A row costs the page the same whether its journal is its own or shared, so a few journals stand for
all branches; what a click reads is a journal of full length.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from journal_runs import look

import branchkit
from branchkit.boundary.model import ModelRequest
from branchkit.branch.comparison import ArmPlan, Comparison, ForkFacts
from branchkit.branch.run import Result
from branchkit.branch.swap import Swap
from branchkit.harness.components import component
from branchkit.journal.events import Message
from branchkit.replay.recorded import Recorded

JOURNALS = 20
ARM = "truncation=none"


def record(path: Path, turns: int, *, leaves_at: int | None, which: int) -> None:
    """A run that from turn ``leaves_at`` on does something else than the parent."""

    def answer(request: ModelRequest) -> Message:
        other = leaves_at is not None and request.turn >= leaves_at
        number = request.turn + (which * 10_000 if other else 0)
        call = {"name": "look", "arguments": f'{{"number":{number}}}'}
        told = {"id": f"call_{request.turn}", "type": "function", "function": call}
        return {"role": "assistant", "content": None, "tool_calls": [told]}

    with branchkit.session(path, "record", model=answer, tools=[look], task="look") as session:
        messages: list[Any] = [session.input({"role": "user", "content": "look at all of it"})]
        for _ in range(turns):
            reply = session.model(messages)
            messages += [reply.message, *(session.tool(call) for call in reply.calls)]


def make(folder: Path, turns: int) -> None:
    """The parent and ``JOURNALS`` branches that leave it at turns spread over its length."""
    record(folder / "parent.journal.jsonl", turns, leaves_at=None, which=0)
    for which in range(JOURNALS):
        leaves_at = None if which == 0 else 1 + which * turns // JOURNALS
        name = folder / f"branch-{which:02}.journal.jsonl"
        record(name, turns, leaves_at=leaves_at, which=which)


def comparison(folder: Path, branches: int) -> Comparison:
    """Half of the branches in the control arm, half in another."""
    parent = folder / "parent.journal.jsonl"
    plans = [
        ArmPlan("control", None, branches // 2),
        ArmPlan(ARM, Swap("truncation", "none", component("truncation", "none")), branches // 2),
    ]
    results = [
        Result(
            plan.name, number, number, str(folder / f"branch-{number % JOURNALS:02}.journal.jsonl"),
            "completed", "", number % 3 == 0, "", None,
        )
        for plan in plans
        for number in range(plan.n)
    ]  # fmt: skip
    declared = {"component": "truncation", "spec": "none"}
    arms = [("control", None, branches // 2), (ARM, declared, branches // 2)]
    facts = ForkFacts(str(parent), 0, "true", 0, branches // 2, arms, [], True, "", "")
    return Comparison(Recorded.open(parent), facts, plans, results)


if __name__ == "__main__":
    make(Path(sys.argv[1]), int(sys.argv[2]))
