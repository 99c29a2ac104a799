"""Cadence from a run's own figures: pauses, failures, turns, bytes really written (R31, R32)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from journals import started

from branchkit.durable.cadence import KIB, amplification
from branchkit.durable.measured import advise, measured
from branchkit.errors import UsageError
from branchkit.journal.events import (
    Checkpoint,
    ModelReplied,
    Payload,
    Resumed,
    StateTransition,
    TaskFinished,
)
from branchkit.journal.file import Writer, read
from branchkit.workspace import Workspaces

CHANGE_BYTES = 128 * KIB
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def checkpoint(duration_ms: float | None) -> Checkpoint:
    return Checkpoint(
        record_hash="h", snapshot="s", tree_hash="t", files=1, changed_bytes=1,
        duration_ms=duration_ms,
    )  # fmt: skip


def replied() -> ModelReplied:
    return ModelReplied(
        message={"role": "assistant", "content": ""}, request_hash="h", requested_model="m",
        served_model="m", finish_reason="stop",
        usage={"prompt_tokens": 40_000, "completion_tokens": 350},
    )  # fmt: skip


def transition() -> StateTransition:
    return StateTransition(cause_seq=0, before_hash="a", after_hash="b", reducer_version=1)


def resumed() -> Resumed:
    return Resumed(continues_after=0, record_hash="h")


def journal(folder: Path, *at: tuple[int, Payload]) -> Path:
    """A journal of payloads, each written at so many seconds."""
    seconds = iter([second for second, _ in at])
    path = folder / "run.journal.jsonl"
    writer = Writer(
        path,
        run_id="r",
        now=lambda: (BEGAN + timedelta(seconds=next(seconds))).isoformat(),
    )
    for _, payload in at:
        writer.append(payload, turn=1, step_id="t0001")
    writer.close()
    return path


def test_the_worked_example_measured(tmp_path: Path) -> None:
    """R32: pauses of 0.5 s, turns of 12 s, and what the provider said of tokens, from a journal."""
    path = journal(
        tmp_path,
        (0, started()),
        (11, replied()), (11, checkpoint(400)), (12, transition()),
        (23, replied()), (23, checkpoint(600)), (24, transition()),
        (24, checkpoint(None)),  # of a journal from before durations were kept
    )  # fmt: skip
    found = measured([read(path)[0]])
    assert (found.checkpoints, found.delta_s, found.turn_s) == (2, 0.5, 12.0)
    assert (found.context_tokens, found.reply_tokens) == (40_000, 350)
    assert (found.failures, found.mtbf_s, found.mtbf_at_least_s) == (0, None, 8.0)
    advice = advise([path], mtbf_s=4 * 3600)
    assert advice.turns == 10
    assert advice.prefill_usd == pytest.approx(0.12)
    assert advice.best.lost_usd == pytest.approx(0.08625)
    with pytest.raises(UsageError, match="how far apart failures are"):
        advise([path])


def test_a_crash_counts_and_a_wait_does_not(tmp_path: Path) -> None:
    """R32: M is working time over failures; the hours between a crash and its resume are none."""
    path = journal(
        tmp_path,
        (0, started()), (100, replied()),  # ... and then it was killed
        (4000, resumed()), (4100, replied()),
        (4100, TaskFinished(status="waiting")),  # for a person, overnight
        (40000, resumed()), (40100, replied()),  # killed again
        (50000, resumed()), (50100, TaskFinished(status="completed")),
    )  # fmt: skip
    found = measured([read(path)[0]])
    assert (found.failures, found.running_s, found.mtbf_s) == (2, 400.0, 200.0)
    with pytest.raises(UsageError, match="how long a checkpoint takes"):
        advise([path])


def test_nothing_measured_of_nothing() -> None:
    assert measured([]).turn_s is None
    with pytest.raises(UsageError):
        measured([]).load()


def layer_bytes(store: Path) -> int:
    return sum(path.stat().st_size for path in (store / "layers").rglob("*") if path.is_file())


def grown(folder: Path, checkpoints: int) -> Iterator[tuple[int, int]]:
    """What is in the layers, and in the tree, after each checkpoint of 128 KiB that are new."""
    base = folder / "base"
    base.mkdir()
    with Workspaces.open(folder / "store", backend="copy") as workspaces:
        branch = workspaces.create("run", base=workspaces.add_base(base))
        for number in range(checkpoints):
            (branch.path / f"{number}.bin").write_bytes(bytes([number]) * CHANGE_BYTES)
            branch.freeze()
            tree = sum(path.stat().st_size for path in branch.path.iterdir())
            yield layer_bytes(folder / "store"), tree


def test_bytes_really_written_for_checkpoints(tmp_path: Path) -> None:
    """R31, F05, F06: ours write what changed (1.0 to 1.3 times); full copies grow with the run."""
    count = 20
    written = list(grown(tmp_path, count))
    deltas = [written[0][0], *(b[0] - a[0] for a, b in pairwise(written))]
    assert all(1.0 <= delta / CHANGE_BYTES <= 1.3 for delta in deltas)
    full = sum(tree for _, tree in written)
    example = amplification([CHANGE_BYTES] * count)
    assert full == example.full_bytes
    assert full / example.unique_bytes == example.full == 10.5
    assert written[-1][0] / example.unique_bytes <= 1.3
