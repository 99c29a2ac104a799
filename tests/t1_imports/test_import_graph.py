"""The record graph: what is missing falls back to file order, what repeats counts once (R80)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from branchkit.imports.graph import Graph, Item, build_graph


def item(own: str, parent: str | None, line: int, chain: str = "main") -> Item:
    return Item(own, parent, chain, {"n": line}, line)


def ids(graph: Graph, leaf: str) -> list[str]:
    return [node.item.id for node in graph.path_to(leaf)]


def facts(graph: Graph) -> list[tuple[str, int | None, str | None]]:
    return [(issue.code, issue.line, issue.id) for issue in graph.issues]


def test_a_missing_parent_is_the_record_before_in_the_same_chain() -> None:
    graph = build_graph(
        [
            item("a", None, 1),
            item("s", None, 2, "side"),
            item("b", "ghost", 3),
            item("c", "ghost", 4),
            item("d", "c", 5),
        ]
    )
    assert ids(graph, "d") == ["a", "b", "c", "d"]
    assert facts(graph) == [("dangling_parent", 3, "ghost")]


def test_a_repeated_record_counts_once() -> None:
    graph = build_graph([item("a", None, 1), item("b", "a", 2), item("a", "b", 3)])
    assert ids(graph, "b") == ["a", "b"]
    assert graph.nodes["a"].item.line == 1
    assert facts(graph) == [("duplicate_record", 3, "a")]


def test_a_file_that_names_no_parents_is_a_list() -> None:
    graph = build_graph([item("a", None, 1), item("b", None, 2), item("c", "", 3)])
    assert (ids(graph, "c"), facts(graph)) == (["a", "b", "c"], [])


def test_an_edited_first_question_is_another_root() -> None:
    graph = build_graph([item("a", None, 1), item("b", "a", 2), item("c", None, 3)])
    assert ids(graph, "c") == ["c"]


names = st.sampled_from("abcdef")


@given(st.lists(st.tuples(names, st.none() | names | st.just("")), min_size=1))
def test_every_path_ends(pairs: list[tuple[str, str | None]]) -> None:
    """Circles, forward references and repeats: a path is finite and each node is on it once."""
    graph = build_graph(item(own, parent, line) for line, (own, parent) in enumerate(pairs, 1))
    for leaf in graph.nodes:
        path = ids(graph, leaf)
        assert path[-1] == leaf
        assert len(set(path)) == len(path)
