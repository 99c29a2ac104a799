"""docs/cadence.md prints what the code prints."""

from __future__ import annotations

import textwrap
from pathlib import Path

from branchkit.durable.cadence import explain

PAGE = Path(__file__).parents[2] / "docs" / "cadence.md"


def test_the_page_has_what_explain_prints() -> None:
    """R32: the worked example, word for word."""
    assert textwrap.indent(str(explain()), "    ") in PAGE.read_text(encoding="utf-8")
