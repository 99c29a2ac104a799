"""Why a message is in a context, what of it was hidden, and what no longer stands there (R84)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import branchkit
from branchkit.boundary.model import ModelRequest
from branchkit.boundary.session import Session
from branchkit.branch.api import Run
from branchkit.journal.events import Compacted, Delivered, InputReceived, Message, ModelReplied
from branchkit.notebook.rewound_html import rewound_html

SAMPLE = Path(__file__).resolve().parents[2] / "sample_journals" / "branch_cleanup"
SUMMARY = "Summary: the first answers were one and two."


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    with branchkit.open(SAMPLE / "branch_cleanup.journal.jsonl") as opened:
        yield opened


@pytest.fixture
def compacted(tmp_path: Path) -> Iterator[Run]:
    """Two answers, then a compaction that replaces them, then a third answer."""

    def answer(request: ModelRequest) -> Message:
        return {"role": "assistant", "content": f"answer {request.turn}"}

    def loop(session: Session) -> None:
        messages = [session.input({"role": "user", "content": "count"})]
        for _ in range(2):
            messages.append(session.model(messages).message)
            messages.append(session.input({"role": "user", "content": "next"}))
        short: list[Message] = [{"role": "user", "content": SUMMARY}]
        session.model(session.compact(lambda: short, reason="too long"))

    path = tmp_path / "compacted.journal.jsonl"
    with branchkit.session(path, model=answer, tools=[]) as session:
        loop(session)
    with branchkit.open(path) as opened:
        yield opened


def test_each_message_names_the_event_that_holds_it(run: Run) -> None:
    found = run.rewind(23, workspace=False)
    origins = found.origins.part(0, len(found.context))
    kinds: dict[str, type] = {
        "user": InputReceived, "assistant": ModelReplied, "tool": Delivered
    }  # fmt: skip
    assert origins[0].kind == "harness"  # the system prompt stands in no event of its own
    for message, origin in zip(found.context[1:], origins[1:], strict=True):
        assert origin.seq is not None
        event = run.recorded.events[origin.seq]
        assert isinstance(event.payload, kinds[message["role"]])
        assert (origin.kind, origin.turn, origin.step_id) == (event.kind, event.turn, event.step_id)
        if isinstance(event.payload, Delivered):
            assert event.payload.call_id == message["tool_call_id"]


def test_what_truncation_hid_stands_with_its_message(run: Run) -> None:
    """The question of turn 23: which line was not shown, and by which rule."""
    found = run.rewind(23, workspace=False)
    [last] = found.origins.part(len(found.context) - 1, len(found.context))
    assert last.hidden == found.hidden[-1]
    assert (last.hidden.omitted_lines, last.hidden.rule) == (27, "head:12l")
    table = found.context_table()
    assert len(table) == len(found.context)
    assert list(table["hidden_lines"])[-1] == 27
    assert table["hidden_lines"].gt(0).sum() == len(found.hidden)
    hidden = re.findall(r'<span class="hid">([^<]*)</span>', rewound_html(found))
    shown = str(found.context[-1]["content"])
    assert any("release/2.1" in line and "protected" in line for line in hidden)
    assert len(hidden) == 27
    assert not any(line in shown.splitlines() for line in hidden)


def test_what_a_compaction_took_away_is_told(compacted: Run) -> None:
    found = compacted.rewind(3, workspace=False)
    assert [str(message["content"]) for message in found.context] == [SUMMARY]
    dropped = found.origins.dropped
    assert dropped is not None
    gone = [str(item.message["content"]) for item in dropped.messages]
    assert gone[:2] == ["count", "answer 1"]
    [origin] = found.origins.part(0, 1)
    assert origin.kind == "Compacted"
    assert isinstance(compacted.recorded.events[origin.seq or 0].payload, Compacted)
    assert found.origins.reason == f"replaced by event {origin.seq}, Compacted: too long"
    assert "answer 1" in rewound_html(found)
    assert compacted.rewind(2, workspace=False).origins.dropped is None


def test_the_end_after_a_compaction_holds_the_summary(tmp_path: Path) -> None:
    """The moment after the last reply: what was replaced is no more in the context."""
    path = tmp_path / "end.journal.jsonl"
    short: list[Message] = [{"role": "user", "content": SUMMARY}]
    answer: Message = {"role": "assistant", "content": "answer"}
    with branchkit.session(path, model=lambda _: answer, tools=[]) as session:
        session.model([session.input({"role": "user", "content": "count"})])
        session.compact(lambda: short, reason="too long")
        session.input({"role": "user", "content": "and on"})
    with branchkit.open(path) as run:
        context = run.rewind(2, workspace=False).context
    assert [str(message["content"]) for message in context] == [SUMMARY, "and on"]


def test_a_branch_names_its_parents_events(run: Run, tmp_path: Path) -> None:
    """A fork's context holds its parent's messages: the journal of each is named."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BRANCHKIT_STORE", str(tmp_path / "store"))
        found = run.fork(25, n=1)
        [branch] = found.branches
        with branchkit.open(branch.result.journal) as opened:
            table = opened.rewind(27, workspace=False).context_table()
        run.workspaces().stop()
    own = Path(branch.result.journal).name
    assert {own, run.recorded.path.name} == set(table["journal"])
    assert table["role"].iloc[0] == "system"
