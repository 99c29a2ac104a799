"""One contract for whatever writes a run: a file of its own, or a host with either engine (R70)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from journals import RUN_ID, now, run_steps, sealed_lines

from branchkit.journal.appending import RunWriter
from branchkit.journal.engines import Host, JsonlEngine
from branchkit.journal.events import ToolResult
from branchkit.journal.file import Writer
from branchkit.journal.format import ZERO_HASH
from branchkit.journal.rocks import RocksEngine

STEPS = list(run_steps(3))
Opened = Callable[[Path], contextlib.AbstractContextManager[RunWriter]]


@contextmanager
def file_of_its_own(folder: Path) -> Iterator[RunWriter]:
    with closing(Writer(folder / f"{RUN_ID}.journal.jsonl", run_id=RUN_ID, now=now)) as writer:
        yield writer


@contextmanager
def hosted_in_files(folder: Path) -> Iterator[RunWriter]:
    with closing(Host(JsonlEngine(folder))) as host, closing(host.writer(RUN_ID, now=now)) as one:
        yield one


@contextmanager
def hosted_in_rocksdb(folder: Path) -> Iterator[RunWriter]:
    with closing(Host(RocksEngine(folder))) as host, closing(host.writer(RUN_ID, now=now)) as one:
        yield one


@pytest.fixture(params=[file_of_its_own, hosted_in_files, hosted_in_rocksdb])
def opened(request: pytest.FixtureRequest) -> Opened:
    return request.param  # type: ignore[no-any-return]


def lines_of(folder: Path, opened: Opened) -> list[bytes]:
    """What stands there once the writer has let go."""
    with closing((RocksEngine if opened is hosted_in_rocksdb else JsonlEngine)(folder)) as engine:
        return list(engine.lines(RUN_ID))


def test_the_same_events_are_the_same_lines(opened: Opened, tmp_path: Path) -> None:
    """R70: whoever writes them, in one go or after being opened again."""
    for begin, end in ((0, 4), (4, 5), (5, None)):
        with opened(tmp_path / "runs") as writer:
            assert writer.seq == begin
            for payload, turn, step in STEPS[begin:end]:
                writer.append(payload, turn=turn, step_id=step)
            writer.commit()
    assert lines_of(tmp_path / "runs", opened) == sealed_lines(iter(STEPS))


def test_closing_commits_what_is_pending(opened: Opened, tmp_path: Path) -> None:
    with opened(tmp_path / "runs") as writer:
        for payload, turn, step in STEPS:
            writer.append(payload, turn=turn, step_id=step)
    assert lines_of(tmp_path / "runs", opened) == sealed_lines(iter(STEPS))


def test_a_refused_payload_leaves_the_writer_as_it_was(opened: Opened, tmp_path: Path) -> None:
    """C01: what no reader would accept takes no number and no place in the chain."""
    wrong = ToolResult(call_id="t0001.1", status="no such word", sha256="", bytes=0)  # type: ignore[arg-type]
    with opened(tmp_path / "runs") as writer:
        with pytest.raises(ValueError, match="ToolResult"):
            writer.append(wrong, turn=1, step_id="t0001.1")
        assert (writer.seq, writer.head, writer.run_id) == (0, ZERO_HASH, RUN_ID)
        payload, turn, step = STEPS[0]
        event = writer.append(payload, turn=turn, step_id=step)
        assert (writer.seq, writer.head) == (1, event.event_hash)
    assert lines_of(tmp_path / "runs", opened) == sealed_lines(iter(STEPS[:1]))
