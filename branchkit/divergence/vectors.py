"""Hash vectors read off a journal's events: what the other modules of this folder compare."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from branchkit.divergence.align import TurnHashes, Vector
from branchkit.journal.events import (
    Checkpoint,
    ContextBuilt,
    Event,
    ModelReplied,
    ToolProposed,
    ToolResult,
)
from branchkit.journal.format import Json, value_hash


def vector(events: Iterable[Event], *, first_turn: int = 1, workspace: str | None = None) -> Vector:
    """The turns from ``first_turn`` on, as hashes.

    ``workspace`` is the tree's hash before the first turn; a turn that leaves it clean keeps it.
    An action is what the harness read out of the reply (names and arguments, white space left out
    by canonical JSON), an observation what came back for each call.
    """
    context: dict[int, str] = {}
    reply: dict[int, ModelReplied] = {}
    actions: dict[int, list[Json]] = defaultdict(list)
    observations: dict[int, list[Json]] = defaultdict(list)
    trees: dict[int, str] = {}
    for event in events:
        match event.payload:
            case ContextBuilt(context_hash=context_hash):
                context[event.turn] = context_hash
            case ModelReplied():
                reply[event.turn] = event.payload
            case ToolProposed(name=name, arguments=arguments, problem=problem):
                actions[event.turn].append([name, arguments, problem])
            case ToolResult(status=status, sha256=sha256, exit_code=exit_code):
                observations[event.turn].append([status, sha256, exit_code])
            case Checkpoint(tree_hash=tree_hash):
                trees[event.turn] = tree_hash
            case _:
                continue
    rows = []
    for turn in sorted(set(trees) | set(reply)):
        workspace = trees.get(turn, workspace)
        if turn in reply and turn >= first_turn:
            row = TurnHashes(
                turn=turn,
                context=context.get(turn, ""),
                action=value_hash(actions[turn]),
                observation=value_hash(observations[turn]),
                workspace=workspace,
                model=reply[turn].served_model,
                reply=value_hash(reply[turn].message),
            )
            rows.append(row)
    return tuple(rows)
