"""The loop in README is what it says: recorded, then replayed with the model's server gone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from branchkit.testing.model_server import ModelServer, call, say

README = Path(__file__).resolve().parent.parent / "README.md"


def test_the_loop_of_the_readme_is_recorded_and_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R50, and at most 15 lines of it."""
    code = re.search(r"```python\n(.*?)```", README.read_text("utf-8"), re.S)
    assert code is not None
    assert len([line for line in code[1].splitlines() if line.strip()]) <= 15
    monkeypatch.chdir(tmp_path)
    record, replay = code[1].split("with branchkit.session(")[1:]
    names: dict[str, Any] = {}
    with ModelServer([call("add", a=2, b=3), say("It is 5.")]) as server:
        exec(code[1].partition("with branchkit")[0], names)
        spec = f"openai:any@{server.url}"
        exec("with branchkit.session(" + record.replace("openai:NAME", spec), names)
        assert server.count == 2
    exec("with branchkit.session(" + replay, names)
    assert "It is 5." in (tmp_path / "sum.journal.jsonl").read_text("utf-8")
