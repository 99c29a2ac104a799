"""The records of a Claude Code file as items of a graph, and the active path through it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from branchkit.imports.claude_blocks import CALLS, blocks_of
from branchkit.imports.graph import Graph, Item, Node
from branchkit.imports.reader import Entry
from branchkit.journal.format import Json

MAIN = "main"
_OWN_IDS = ("uuid", "sessionId", "leafUuid", "messageId")
_NEVER_NODES = ("file-history-snapshot", "summary")


def is_record(value: dict[str, Json]) -> bool:
    """Whether an object is a record of its own and no part of one."""
    return isinstance(value.get("type"), str) and any(key in value for key in _OWN_IDS)


def items_of(entries: Iterable[Entry]) -> tuple[list[Item], list[Item]]:
    """The nodes of the conversation itself, and those of runs that it started in the same file.

    A file of nothing but such a run is a conversation of its own.
    """
    items = [item for entry in entries if (item := _item(entry)) is not None]
    if any(item.chain == MAIN and _speaks(item.value) for item in items):
        main = [item for item in items if item.chain == MAIN]
        return main, [item for item in items if item.chain != MAIN]
    main = [item._replace(chain=MAIN) for item in items]
    return (main, []) if any(_speaks(item.value) for item in main) else ([], [])


def path_of(graph: Graph, main: Sequence[Item]) -> list[Node]:
    """The nodes of the active path in file order.

    Parallel results and the lines of one reply hang side by side; all of a reply's are taken.
    """
    speaking = [item for item in main if _speaks(item.value)]
    taken = {node.item.id for node in graph.path_to(speaking[-1].id)}
    replies = {_reply_id(item.value) for item in main if item.id in taken} - {""}
    taken |= {item.id for item in main if _reply_id(item.value) in replies}
    calls = {
        block["id"]
        for item in main
        if item.id in taken and item.value.get("type") == "assistant"
        for block in blocks_of(item.value)
        if block.get("type") in CALLS and isinstance(block.get("id"), str)
    }
    for item in main:
        if item.value.get("type") == "user" and any(
            block.get("type") == "tool_result" and str(block.get("tool_use_id")) in calls
            for block in blocks_of(item.value)
        ):
            taken.add(item.id)
    nodes = (graph.nodes[item.id] for item in {item.id: item for item in main}.values())
    return [node for node in nodes if node.item.id in taken]


def _speaks(value: dict[str, Any]) -> bool:
    return value.get("type") in ("user", "assistant") and bool(blocks_of(value))


def _reply_id(value: dict[str, Any]) -> str:
    if value.get("type") != "assistant":
        return ""
    return str(value["message"].get("id") or "")


def _item(entry: Entry) -> Item | None:
    value = entry.value
    if not isinstance(value, dict) or value.get("type") in _NEVER_NODES:
        return None
    value = _old_layout(value)
    own = value.get("uuid")
    speaks = _speaks(value)
    if value.get("type") in ("user", "assistant") and not speaks:
        return None
    if not isinstance(own, str):
        if not speaks:
            return None
        own = f"line {entry.line} byte {entry.offset}"
    side = value.get("isSidechain") is True
    chain = f"side {value.get('agentId') or ''}" if side else MAIN
    return Item(own, _parent(value), chain, value, entry.line)


def _parent(value: dict[str, Any]) -> str | None:
    parent = value.get("parentUuid", "")
    if parent is None and value.get("subtype") == "compact_boundary":
        parent = value.get("logicalParentUuid", "")
    if parent is None and value.get("type") in ("user", "assistant"):
        # A reply or a result cannot begin a conversation.
        kinds = {block.get("type") for block in blocks_of(value)}
        return "" if value["type"] == "assistant" or "tool_result" in kinds else None
    return parent if parent is None or isinstance(parent, str) else ""


def _old_layout(value: dict[str, Any]) -> dict[str, Any]:
    """Records of the first versions, where calls and results were no content blocks."""
    if value.get("type") == "tool_use" and "message" not in value:
        block = {"type": "tool_use", "name": value.get("name"), "input": value.get("input")}
        message: dict[str, Any] = {"role": "assistant", "content": [block]}
        return {**value, "type": "assistant", "message": message}
    if value.get("type") == "tool_result" and "message" not in value:
        block = {"type": "tool_result", "content": value.get("output")}
        return {**value, "type": "user", "message": {"role": "user", "content": [block]}}
    return value
