"""A run cut off anywhere: every prefix of its journal opens, is classified, goes on (R15, D06)."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loops import events_of, proposes, replay, says
from test_crash_and_resume import checked
from world import World, held

import branchkit
from branchkit import disk
from branchkit.boundary.calls import Call
from branchkit.boundary.model import ModelRequest
from branchkit.boundary.session import Decision, Session
from branchkit.boundary.settlement import Waiting
from branchkit.durable.answers import approve, settle
from branchkit.durable.plan import plan
from branchkit.durable.states import calls, rows
from branchkit.errors import UsageError
from branchkit.journal.events import (
    Event,
    Message,
    Outcome,
    Payload,
    Resumed,
    Settled,
    ToolAuthorized,
    ToolIntent,
    ToolProposed,
    ToolResult,
)
from branchkit.journal.file import Writer, read, verify
from branchkit.record.effective import effective
from branchkit.record.fold import fold

TURNS = 12
NAMES = ("pure", "keyed", "probed", "plain")


class Run:
    """A run of twelve turns with two calls each, of every kind; one is held for a person."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "a.journal.jsonl"
        self.world = World(folder)
        self.tools = [self.world.tool(kind, kind) for kind in NAMES]  # type: ignore[arg-type]

    def model(self, request: ModelRequest) -> Message:
        checked(request)
        if request.turn == TURNS:
            return says("done")
        names = NAMES[request.turn % 4], NAMES[(request.turn + 1) % 4]
        return proposes(*((name, {}) for name in names))

    def loop(self, session: Session) -> str:
        messages = [session.input({"role": "user", "content": f"go {session.uuid4()}"})]
        while (answer := session.model(messages)).calls:
            messages.append(answer.message)
            messages += [session.tool(call, decide=self.decide) for call in answer.calls]
        return answer.text

    def decide(self, call: Call) -> Decision:
        return held(call) if call.call_id == "t0006.2" else Decision("allow")

    def go(self, mode: Any) -> str | None:
        model, tools = self.model, self.tools
        try:
            with branchkit.session(self.path, mode, model=model, tools=tools) as session:
                return self.loop(session)
        except Waiting:
            return None

    def to_the_end(self, mode: Any) -> None:
        """Go on, with a person who answers everything."""
        while self.go(mode) is None:
            record = fold(None, read(self.path)[0])
            for call_id in record.pending_approvals:
                approve(self.path, call_id, by="me")
            for row in rows(record):
                if row.state == "in doubt":
                    done = row.key in self.world.marks(row.name)
                    outcome: Outcome = "completed" if done else "not sent"
                    settle(self.path, row.call_id, outcome, result="plain done", by="me")
            mode = "resume"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The journal of the run, as one process wrote it that was never interrupted but to ask."""
    run = Run(tmp_path_factory.mktemp("whole"))
    run.to_the_end("record")
    return run.path.read_bytes()


def test_cut_after_every_event(
    tmp_path: Path, whole: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R15, G03, G04: it resumes to the end, settles first, and every context that it sends holds
    an answer to each call (``checked`` in the model). The prefix is never changed.

    BRANCHKIT_ALL_CUTS=1 takes all of them (half a minute); else the first turn, the one that a
    person answers in, and every eleventh event of the others.
    """
    # Nothing crashes here, and the prefixes are given: a barrier for each event costs minutes.
    monkeypatch.setattr(disk, "fdatasync", lambda fd: None)
    lines = whole.splitlines(keepends=True)
    turns = [event.turn for event in read_lines(tmp_path, whole)]
    every = "BRANCHKIT_ALL_CUTS" in os.environ
    for cut in range(1, len(lines)):
        if not every and turns[cut] not in (1, 6) and cut % 11:
            continue
        folder = tmp_path / str(cut)
        folder.mkdir()
        run = Run(folder)
        prefix = b"".join(lines[:cut])
        run.path.write_bytes(prefix)
        # What the calls of the prefix did is done; of those not answered, every second one.
        for row in calls(run.path):
            if row.state == "completed" or (row.state == "in doubt" and cut % 2):
                run.world.do(row.name, row.key, once=row.name == "keyed")
        try:
            run.to_the_end("resume")
        except UsageError as error:
            assert "has ended" in error.message  # noqa: PT017  the last cut but one
            continue
        assert run.path.read_bytes().startswith(prefix)
        assert all(row.state == "completed" for row in calls(run.path))
        _check_settled_first(events_of(run.path), cut)
        for row in calls(run.path):
            if row.name != "pure":
                assert run.world.marks(row.name).count(row.key) == 1, (cut, row.call_id)
        assert [run.world.count(name) for name in NAMES[1:]] == [5, 6, 6]
        assert replay(run.path, run.loop) == "done"


def read_lines(folder: Path, whole: bytes) -> list[Event]:
    path = folder / "whole.journal.jsonl"
    path.write_bytes(whole)
    return events_of(path)


def _check_settled_first(events: list[Event], cut: int) -> None:
    """Whatever was in doubt at the cut is settled before the next intent, reply or result."""
    doubtful = [row.call_id for row in rows(fold(None, events[:cut])) if row.state == "in doubt"]
    for event in events[cut:]:
        match event.payload:
            case Settled(call_id=call_id) | ToolResult(call_id=call_id) if call_id in doubtful:
                doubtful.remove(call_id)
            case ToolIntent():
                assert not doubtful
            case _:
                continue


def test_cut_within_an_event(tmp_path: Path, whole: bytes) -> None:
    """R15: a torn event was told to nobody: it is set aside, and the run is where it was before."""
    run = Run(tmp_path)
    ends = list(itertools.accumulate(len(line) for line in whole.splitlines(keepends=True)))
    for start, end in list(itertools.pairwise(ends))[::6]:
        for at in (start + 1, (start + end) // 2, end - 1):
            run.path.write_bytes(whole[:at])
            events = read(run.path)[0]
            Writer(run.path, run_id=events[0].run_id, now=lambda: "").close()
            whole_again = whole[:end] if at == end - 1 else whole[:start]
            assert run.path.read_bytes() == whole_again
            assert verify(run.path).ok


def test_what_every_prefix_says_of_its_calls(whole: bytes, tmp_path: Path) -> None:
    """R21, A04: one of three words for each call, at most one call in doubt, and it is the last."""
    events = read_lines(tmp_path, whole)
    for cut in range(1, len(events) + 1):
        found = rows(fold(None, events[:cut]))
        doubtful = [row for row in found if row.state == "in doubt"]
        assert doubtful == found[-1:] if doubtful else True
        for row in found:
            assert row.acted is {"not sent": False, "in doubt": None, "completed": True}[row.state]
            assert row.could_have_left or row.state == "not sent"


# ---- the classifier, over every set of events ----

KEY = "t0001.1"
PIECES: list[Payload] = [
    ToolProposed(call_id=KEY, name="act", arguments={}),
    *(
        ToolAuthorized(call_id=KEY, decision=said, policy="p", reason="")
        for said in ("allow", "deny", "hold")
    ),
    *(
        ToolIntent(call_id=KEY, name="act", request_hash="", effect=effect, idempotency_key="k")
        for effect in ("pure", "workspace", "external")
    ),
    *(
        ToolResult(call_id=KEY, status=status, sha256="0" * 64, bytes=0)
        for status in ("completed", "error", "timeout", "aborted", "denied", "unanswered")
    ),
    *(
        Settled(call_id=KEY, outcome=outcome, by="person")
        for outcome in ("completed", "not sent", "unknown")
    ),
    Resumed(continues_after=0, record_hash="h"),
    Resumed(continues_after=2, record_hash="h"),
]


@settings(max_examples=200)
@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=8))
def test_the_three_words_are_total_and_exclusive(pieces: list[Payload]) -> None:
    """D06, L01: whatever stands in a journal, in whatever order: one word, and the careful one."""
    events = [Event(seq, 1, KEY, piece, "", "r", "", "") for seq, piece in enumerate(pieces)]
    record = fold(None, events)
    for row in rows(record):
        assert row.state in ("not sent", "in doubt", "completed")
        call = record.calls[row.call_id]
        if call.intent is not None and call.result is None and call.settled is None:
            assert row.state == "in doubt"  # nobody but Settled says otherwise
        if call.intent is None and call.result is None and call.settled is None:
            assert row.state == "not sent"
    kept = [event.seq for event in effective(events)]
    assert kept == sorted(set(kept))
    assert fold(fold(None, events[:3]), events[3:]).calls == record.calls


@settings(max_examples=100)
@given(st.lists(st.sampled_from(PIECES[:7] + PIECES[13:]), max_size=7))
def test_a_plan_never_forgets_what_was_sent(pieces: list[Payload]) -> None:
    """D07: a call that was sent and not answered is settled, or undone with the files."""
    made = [PIECES[0], *pieces]
    events = [Event(seq, 1, KEY, piece, "", "r", "", "") for seq, piece in enumerate(made)]
    found = plan(events, restorable=True)
    (call,) = fold(None, events).calls.values() or [None]
    if call is not None and call.open and call.result is None and call.intent is not None:
        names = [each.call_id for each in found.redo]
        assert (found.doubt is not None) or names == [KEY]
