"""The program that ``test_trace`` runs under strace: a real model client, a tool with effects."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import branchkit
from branchkit.boundary import recording
from branchkit.testing.effect_service import perform


def main(folder: Path, model_url: str, service_url: str) -> None:
    """Record one run; each call of ``order`` is one request to the service."""

    def order(name: str) -> str:
        return perform(service_url, name).receipt

    path = folder / "a.journal.jsonl"
    with branchkit.session(path, model=f"openai:any@{model_url}", tools=[order]) as session:
        messages = [session.input({"role": "user", "content": "order three things"})]
        while (answer := session.model(messages)).calls:
            messages += [answer.message, *(session.tool(call) for call in answer.calls)]


def act_first(commit: Callable[[], None], effect: Callable[[], Any]) -> Any:
    """The mutant: the effect, and only then what describes it."""
    result = effect()
    commit()
    return result


if __name__ == "__main__":
    if "act-first" in sys.argv:
        vars(recording)["send"] = act_first
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
