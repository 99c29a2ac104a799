"""docs/crash-tests.md: its example runs as it stands there, and it names every layer."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest
from crash import LAYERS

from branchkit.testing.effect_client import NO_REPLY
from branchkit.testing.effect_service import Switches, audit

PAGE = Path(__file__).parents[2] / "docs" / "crash-tests.md"


def test_the_example_does_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reply is lost, so the example ends there; the effect is counted all the same."""
    monkeypatch.chdir(tmp_path)
    page = PAGE.read_text(encoding="utf-8")
    block = next(one for one in re.findall(r"(?:^    .*\n|^\n)+", page, re.M) if "switch(" in one)
    with pytest.raises(NO_REPLY):
        exec(compile(textwrap.dedent(block), PAGE.name, "exec"), {})
    assert audit("effects.sqlite").rows == 1


def test_every_layer_and_switch_is_named() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for name in (*LAYERS, *Switches._fields):
        assert f"`{name}`" in page, name
