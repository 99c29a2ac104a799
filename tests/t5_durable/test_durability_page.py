"""docs/durability.md says what the code does: its crash points, its words, its examples."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import branchkit
from branchkit.boundary.contract import Contract
from branchkit.harness.tools import load_tools
from branchkit.record.record import NO_ANSWER, CallState

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "durability.md").read_text(encoding="utf-8")


def test_every_crash_point_is_named() -> None:
    """R21: those of a call, of a checkpoint and of a recovery; the table is the list of them."""
    sources = [
        path.read_text(encoding="utf-8")
        for folder in ("boundary", "durable")
        for path in (ROOT / "branchkit" / folder).glob("*.py")
    ]
    points = set(re.findall(r'crash_point\("([a-z_.]+)"\)', "\n".join(sources)))
    table = PAGE.split("| crash point |")[1].split("\n\n")[0]
    named = {name for row in table.splitlines()[2:] for name in re.findall("`([^`]+)`", row)}
    assert named == points


def test_the_examples_are_python_and_name_what_is_there() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 4
    for block in blocks:
        tree = ast.parse(block.replace("…", "None"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                assert node.value.id != "branchkit" or hasattr(branchkit, node.attr), node.attr
    (tool,) = load_tools(next(block for block in blocks if "ProbeAnswer" in block))
    assert tool.schema.contract == Contract(key=True, key_ttl_s=86400, probe=True)
    assert list(tool.schema.parameters["properties"]) == ["article"]


def test_the_three_words() -> None:
    """R27."""
    rows = re.findall(r"^\| \*([a-z ]+)\* \|", PAGE, re.MULTILINE)
    sent = CallState("c", "act", 1, 0, 1, 2, effect="external")
    states = [CallState("c", "act", 1, 0), sent, sent._replace(result=3, status="completed")]
    assert rows == [state.word for state in states]
    for status in NO_ANSWER:
        assert sent._replace(result=3, status=status).word == "in doubt"
