"""One record graph for files whose records name their parents (FORMATS §2.4).

Graph first, filter later. Only records with an id of their own are nodes; a repeated id is one
record; a parent that was never written is replaced by the record before it in the same chain, and
so is one that is not named at all.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from branchkit.journal.events import Issue


class Item(NamedTuple):
    """A record as the file has it. ``parent`` None: it says that it has none; "": it does not say.

    ``chain`` tells conversations in one file apart, so that a child never continues its parent.
    """

    id: str
    parent: str | None
    chain: str
    value: dict[str, Any]
    line: int


class Node(NamedTuple):
    """A record with its real parent."""

    item: Item
    parent: str | None


class Graph(NamedTuple):
    """The nodes by id in file order, and what was repaired."""

    nodes: dict[str, Node]
    issues: list[Issue]

    def path_to(self, leaf: str) -> list[Node]:
        """The nodes from the root to ``leaf``."""
        path: list[Node] = []
        seen: set[str] = set()
        at: str | None = leaf
        while at is not None and at not in seen:
            seen.add(at)
            path.append(self.nodes[at])
            at = self.nodes[at].parent
        return path[::-1]


def build_graph(items: Iterable[Item]) -> Graph:
    """The graph of ``items``, which come in file order."""
    issues: list[Issue] = []
    unique: dict[str, Item] = {}
    for item in items:
        if item.id in unique:
            issues.append(Issue(code="duplicate_record", line=item.line, id=item.id))
        else:
            unique[item.id] = item
    unnamed = {item.chain for item in unique.values()} - {
        item.chain for item in unique.values() if item.parent in unique
    }
    nodes: dict[str, Node] = {}
    last: dict[str, str] = {}  # chain -> the newest record of it
    reported: set[str] = set()
    for item in unique.values():
        parent = item.parent
        if parent and (parent not in unique or parent == item.id):
            if parent not in reported:
                issues.append(Issue(code="dangling_parent", line=item.line, id=parent))
                reported.add(parent)
            parent = ""
        # A chain in which nobody names a parent that exists is a list.
        if parent == "" or (parent is None and item.chain in unnamed):
            parent = last.get(item.chain)
        nodes[item.id] = Node(item, parent)
        last[item.chain] = item.id
    return Graph(nodes, issues)
