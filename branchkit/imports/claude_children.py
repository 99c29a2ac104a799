"""Runs that a Claude Code session started: in the same file, or in its ``subagents`` folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from branchkit.imports.claude_blocks import CALLS, blocks_of
from branchkit.imports.claude_records import MAIN, is_record, items_of
from branchkit.imports.graph import Graph, Item, build_graph
from branchkit.imports.reader import read_lines
from branchkit.imports.run import Child, ImportedCall, object_of, text_of


def children_inside(
    graph: Graph, side: Sequence[Item], calls: Sequence[ImportedCall]
) -> list[Child]:
    """The children whose records stand among those of the session, in the order they began."""
    by_root: dict[str, list[Item]] = {}
    root_of: dict[str, str] = {}
    for item in side:
        walked, at = [item.id], item.id
        while at not in root_of:
            parent = graph.nodes[at].parent
            if parent is None or parent in walked or graph.nodes[parent].item.chain == MAIN:
                root_of[at] = at
            else:
                walked.append(parent)
                at = parent
        root_of |= dict.fromkeys(walked, root_of[at])
        by_root.setdefault(root_of[at], []).append(item)
    children = []
    for root, items in by_root.items():
        value = graph.nodes[root].item.value
        prompt = text_of(object_of(value.get("message")).get("content"))
        agent = str(value.get("agentId") or root)
        call = _asking(calls, prompt) or _answered_by(calls, agent)
        child = _child(items, call, agent)
        if child.turns:
            children.append(child)
    return children


def children_beside(path: Path, calls: Sequence[ImportedCall]) -> list[Child]:
    """The children in ``NAME/subagents/agent-*.jsonl``; other files there are no sessions."""
    children = []
    for file in sorted((path.with_suffix("") / "subagents").glob("agent-*.jsonl")):
        agent = file.stem.removeprefix("agent-")
        items, _ = items_of(read_lines(file.read_bytes(), is_record).entries)
        meta = _meta(file.with_suffix(".meta.json"))
        call = str(meta.get("toolUseId") or "") or _answered_by(calls, agent)
        # A graph, so that a record that was written twice counts once.
        unique = [node.item for node in build_graph(items).nodes.values()]
        children.append(_child(unique, call, agent, str(meta.get("agentType") or "")))
    return children


def _meta(path: Path) -> dict[str, Any]:
    try:
        value = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return {}
    return value if isinstance(value, dict) else {}


def _child(items: Sequence[Item], call: str, agent: str, agent_type: str = "") -> Child:
    replies = dict.fromkeys(
        str(item.value["message"].get("id") or item.id)
        for item in items
        if item.value.get("type") == "assistant"
    )
    made = [
        str(block.get("id") or "")
        for item in items
        if item.value.get("type") == "assistant"
        for block in blocks_of(item.value)
        if block.get("type") in CALLS
    ]
    return Child(call, agent, agent_type, len(replies), made)


def _asking(calls: Sequence[ImportedCall], prompt: str) -> str:
    """The call that was made with this prompt."""
    for call in calls:
        if prompt and (call.arguments or {}).get("prompt") == prompt:
            return call.provider_id
    return ""


def _answered_by(calls: Sequence[ImportedCall], agent: str) -> str:
    """The call whose result names the agent."""
    for call in calls:
        if call.text and agent in call.text:
            return call.provider_id
    return ""
