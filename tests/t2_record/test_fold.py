"""The record is a projection: the laws of ``fold``, and what it may not touch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from journals import NOW, journal, replied, run_steps, started, write
from wild import payloads

from branchkit.journal.chain import seal
from branchkit.journal.events import (
    ApprovalRequested,
    Checkpoint,
    ContextBuilt,
    Event,
    FromEvent,
    Payload,
    StateTransition,
    TaskFinished,
    ToolAuthorized,
    ToolIntent,
    ToolProposed,
    ToolResult,
    logical_hash,
)
from branchkit.journal.file import Writer, read
from branchkit.journal.format import ZERO_HASH, escaped_canonical
from branchkit.record.fold import apply, fold
from branchkit.record.record import Record


def event(payload: Payload, seq: int = 1, turn: int = 1, **envelope: Any) -> Event:
    fields: dict[str, Any] = {
        "seq": seq,
        "turn": turn,
        "step_id": "t0001",
        "recorded_at": NOW,
        "run_id": "r",
        "prev_event_hash": ZERO_HASH,
    }
    return seal(payload, **(fields | envelope)).event


def as_json(record: Record) -> bytes:
    """The whole record as bytes: an equality in which NaN equals itself."""
    return escaped_canonical(msgspec.to_builtins(record))


runs = st.lists(payloads, max_size=6).map(
    lambda many: [event(payload, seq, seq // 2) for seq, payload in enumerate(many)]
)


@settings(max_examples=60)
@given(runs, st.integers(0, 6))
def test_folding_on_is_folding_all(events: list[Event], cut: int) -> None:
    """R2, B03: fold(fold(r, a), b) = fold(r, a + b), and r is as it was."""
    before = fold(None, events[:cut])
    kept = as_json(before)
    after = fold(before, events[cut:])
    assert as_json(after) == as_json(fold(None, events))
    assert as_json(before) == kept


def test_the_record_at_every_prefix(tmp_path: Path) -> None:
    """R2, B03: folded at once or event by event, from memory or from disk."""
    path = tmp_path / "run.journal.jsonl"
    written = write(path, run_steps(6))
    events, damage = read(path)
    assert damage == []
    growing = Record()
    for index, item in enumerate(events):
        apply(growing, item)
        assert growing == fold(None, written[: index + 1])
        assert growing.last_seq == index
    assert growing.turn == 6
    assert growing.usage == {"model_calls": 6, "completion_tokens": 30, "tool_calls": 6}


FOLD = """
import json, locale, sys, time
from pathlib import Path
from branchkit.journal.file import read
from branchkit.record.fold import fold
record = fold(None, read(Path(sys.argv[1]))[0])
print(json.dumps([record.logical, record.head_hash, record.summary()]))
"""


def run_python(code: str, *arguments: object, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_fold_is_the_same_in_every_process(tmp_path: Path) -> None:
    """B04: hash seeds, time zones and locales differ, records do not."""
    path = journal(tmp_path, 5)
    here = fold(None, read(path)[0])
    places = [("0", "UTC", "C"), ("1", "Asia/Kathmandu", "C.UTF-8"), ("4242", "UTC+11", "POSIX")]
    for seed, zone, locale in places:
        printed = run_python(FOLD, path, PYTHONHASHSEED=seed, TZ=zone, LC_ALL=locale)
        assert json.loads(printed) == [here.logical, here.head_hash, here.summary()]


PURE = """
import random, sys, time, uuid, os
from pathlib import Path
from branchkit.journal.file import read
from branchkit.record.fold import fold
events, _ = read(Path(sys.argv[1]))
def refuse(*_, **__):
    raise AssertionError("a fold asked the world")
for module, names in {
    time: ["time", "time_ns", "monotonic", "perf_counter", "localtime", "sleep"],
    random: ["random", "getrandbits", "randint"],
    os: ["urandom", "getenv", "getpid", "stat", "listdir", "getcwd"],
    uuid: ["uuid1", "uuid4"],
}.items():
    for name in names:
        setattr(module, name, refuse)
seen = []
sys.addaudithook(lambda name, _: seen.append(name) if not name.startswith("object.") else None)
record = fold(fold(None, events[:5]), events[5:])
loaded = list(seen)
print(record.logical, loaded)
open(os.devnull).close()
assert len(seen) > len(loaded), "the hook does not work"
"""


def test_a_fold_asks_nothing_of_the_world(tmp_path: Path) -> None:
    """B04, B05: no file, socket, process, import, clock or randomness; an audit hook watches."""
    path = journal(tmp_path, 5)
    logical = fold(None, read(path)[0]).logical
    assert run_python(PURE, path).strip() == f"{logical} []"


# ---- the logical hash ----


def test_two_recordings_of_one_run_have_one_logical_hash(tmp_path: Path) -> None:
    """R7, M17: other folders, times, run ids and durations; the chain differs all the same."""
    records = []
    for name, clock, version, duration in [
        ("a", NOW, "3.11", 1.0),
        ("b", "2031-05-05", "3.13", 9.5),
    ]:
        path = tmp_path / name / "run.journal.jsonl"
        writer = Writer(path, run_id=name, now=lambda clock=clock: clock)  # type: ignore[misc]
        changes = {"versions": {"python": version}, "base": name, "started_at": clock}
        writer.append(started(**changes), turn=0, step_id="t0000")
        own: dict[str, Any] = {
            "provider_id": name,
            "provider_call_ids": [name],
            "duration_ms": duration,
        }
        writer.append(replied(1, **own), turn=1, step_id="t0001")
        writer.close()
        records.append(fold(None, read(path)[0]))
    assert records[0].logical == records[1].logical
    assert records[0].head_hash != records[1].head_hash


@settings(max_examples=60)
@given(payloads)
def test_the_turn_and_the_step_count_and_time_and_run_do_not(payload: Payload) -> None:
    """R7: for every kind; what is declared volatile is a field of it."""
    first = event(payload)
    elsewhere: dict[str, Any] = {"run_id": "other", "prev_event_hash": "sha256:" + "1" * 64}
    moved = event(payload, seq=9, recorded_at="later", **elsewhere)
    assert logical_hash(moved) == logical_hash(first)
    assert logical_hash(event(payload, turn=2)) != logical_hash(first)
    assert logical_hash(event(payload, step_id="t0001.1")) != logical_hash(first)
    assert set(payload.__struct_fields__) >= type(payload).VOLATILE


def test_each_field_that_is_not_volatile_counts() -> None:
    """R7: the volatile list is the whole list."""
    result = ToolResult(call_id="t0001.1", status="completed", sha256="0" * 64, bytes=1, text="a")
    base = logical_hash(event(result))
    changes: dict[str, Any] = {
        "call_id": "t0001.2", "status": "error", "sha256": "1" * 64, "bytes": 2, "text": "b",
        "blob": "c", "exit_code": 1, "duration_ms": 5.0,
    }  # fmt: skip
    assert set(changes) == set(result.__struct_fields__)
    for name, value in changes.items():
        same = logical_hash(event(msgspec.structs.replace(result, **{name: value}))) == base
        assert same == (name in ToolResult.VOLATILE), name


def test_how_a_context_is_written_down_does_not_count() -> None:
    """R7, R9: one more checkpoint shifts every reference, and changes no behaviour."""
    built = ContextBuilt(
        parts=[FromEvent(4)], messages=1, context_hash="c", request_hash="r", sampling={}
    )
    shifted = msgspec.structs.replace(built, parts=[FromEvent(5)], base_seq=3, base_in_parent=True)
    assert logical_hash(event(built)) == logical_hash(event(shifted))
    other = msgspec.structs.replace(built, context_hash="d")
    assert logical_hash(event(built)) != logical_hash(event(other))


def checkpoint(snapshot: str) -> Checkpoint:
    return Checkpoint(record_hash="h", snapshot=snapshot, tree_hash="t", files=1, changed_bytes=2)


def test_checkpoints_do_not_change_the_record_hash() -> None:
    """R35: a run that took a checkpoint more often has behaved no differently."""
    transition = StateTransition(cause_seq=1, before_hash="a", after_hash="b", reducer_version=1)
    plain = fold(None, [event(replied(1))])
    more = fold(plain, [event(checkpoint("s")), event(transition)])
    assert more.logical == plain.logical
    assert [snapshot.id for snapshot in more.snapshots] == ["s"]


# ---- calls and approvals ----

STEPS: list[Payload] = [
    ToolProposed(call_id="t0001.1", name="bash", arguments={}),
    ToolAuthorized(call_id="t0001.1", decision="allow", policy="allow", reason=""),
    ToolIntent(
        call_id="t0001.1", name="bash", request_hash="", effect="external", idempotency_key="k"
    ),
    ToolResult(call_id="t0001.1", status="timeout", sha256="0" * 64, bytes=0),
]


@pytest.mark.parametrize("present", list(product([False, True], repeat=4)))
def test_which_of_the_four_events_of_a_call_exist(present: tuple[bool, ...]) -> None:
    """R3, R21, C03, D06: all 16 subsets; each is in exactly one of three states."""
    steps = [step for step, there in zip(STEPS, present, strict=True) if there]
    record = fold(None, [event(step, seq) for seq, step in enumerate(steps)])
    if not steps:
        assert record.calls == {}
        return
    call = record.calls["t0001.1"]
    found = [call.proposed >= 0, *(seq is not None for seq in call[4:7])]
    assert tuple(found) == present
    # D11: the result is a timeout, of a call that may have acted elsewhere: no answer. Only where
    # there are no intents (an import) it is what somebody watched.
    intent, result = present[2:]
    assert call.word == ("in doubt" if intent else "completed" if result else "not sent")


@pytest.mark.parametrize("status", ["completed", "error", "timeout", "aborted", "unanswered"])
@pytest.mark.parametrize("effect", ["pure", "workspace", "external"])
def test_what_a_result_says_of_its_call(status: Any, effect: Any) -> None:
    """D11: no answer leaves a call in doubt that reaches beyond the files; else it is a result."""
    intent = msgspec.structs.replace(STEPS[2], effect=effect)
    result = msgspec.structs.replace(STEPS[3], status=status)
    record = fold(None, [event(p, seq) for seq, p in enumerate([*STEPS[:2], intent, result])])
    no_answer = effect == "external" and status not in ("completed", "error")
    assert record.calls["t0001.1"].word == ("in doubt" if no_answer else "completed")


def test_a_held_call_waits_until_it_is_decided() -> None:
    """R43: held, then allowed by a person; and a run that goes on is running."""
    held = ToolAuthorized(call_id="t0001.1", decision="hold", policy="p", reason="r")
    asked = ApprovalRequested(call_id="t0001.1", reason="r")
    waiting = fold(
        None, [event(p) for p in (STEPS[0], held, asked, TaskFinished(status="waiting"))]
    )
    assert (waiting.pending_approvals, waiting.status) == (["t0001.1"], "waiting")
    assert fold(waiting, [event(STEPS[1])]).pending_approvals == []
    assert fold(waiting, [event(STEPS[3])]).pending_approvals == []
    assert waiting.pending_approvals == ["t0001.1"]


def test_the_snapshot_of_a_turn_is_the_newest_one_not_after_it() -> None:
    snapshots = [event(checkpoint(str(turn)), turn=turn) for turn in (0, 2, 2, 5)]
    record = fold(None, snapshots)
    found = [snapshot.id if (snapshot := record.snapshot_at(turn)) else None for turn in range(7)]
    assert found == ["0", "0", "2", "2", "2", "5", "5"]
    assert Record().snapshot_at(3) is None


def test_a_summary_is_plain_json(tmp_path: Path) -> None:
    path = tmp_path / "run.journal.jsonl"
    write(path, run_steps(2))
    summary = fold(None, read(path)[0]).summary()
    assert json.loads(json.dumps(summary)) == summary
    assert summary["hash"] == fold(None, read(path)[0]).logical
    assert [call["state"] for call in summary["calls"]] == ["completed", "completed"]
