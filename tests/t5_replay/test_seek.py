"""A long run is looked into, not read: and every answer is that of a whole reading (R58, H05)."""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import closing
from pathlib import Path

import pytest

from branchkit.branch.text import rewound_text
from branchkit.errors import JournalDamaged
from branchkit.journal.events import Event, Resumed
from branchkit.journal.file import Writer
from branchkit.journal.scan import Line
from branchkit.journal.sidefile import index_path, open_side_file
from branchkit.record import kept
from branchkit.replay.recorded import Recorded
from branchkit.replay.rewind import Rewound, rewind

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "benchmarks"))
from journal_runs import record  # noqa: E402 - the benchmark's runs, which pytest does not collect

SAMPLE = ROOT / "sample_journals" / "branch_cleanup"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Contexts that grow, contexts that are a window, and the sample with its workspace."""
    folder = tmp_path_factory.mktemp("runs")
    record(folder / "growing.journal.jsonl", 45)
    record(folder / "window.journal.jsonl", 45, window=7)
    for suffix in ("journal.jsonl", "pack"):
        shutil.copy(SAMPLE / f"branch_cleanup.{suffix}", folder / f"sample.{suffix}")
    return folder


@pytest.fixture(autouse=True)
def _every_run_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "LONG_BYTES", 1)


def opened(path: Path) -> Recorded:
    found = Recorded.open(path)
    assert found._kept is not None
    return found


def whole(path: Path) -> Recorded:
    found, damage = Recorded.good_prefix(path)
    assert found is not None
    assert damage == []
    return found


def same(one: Rewound, two: Rewound) -> bool:
    text = rewound_text(one) == rewound_text(two) and rewound_text(one, last=3) == rewound_text(
        two, last=3
    )
    return text and one.to_json() == two.to_json() and one.record == two.record


@pytest.mark.parametrize("name", ["growing", "window", "sample"])
def test_every_turn_is_what_a_whole_reading_says(runs: Path, name: str) -> None:
    """R58: context, hash, record, what was hidden, what then happened; to_json and text."""
    path = runs / f"{name}.journal.jsonl"
    reading = whole(path)
    for turn in range(1, reading.turns + 2):
        looking = opened(path)
        assert looking.turns == reading.turns
        assert same(rewind(looking, turn), rewind(reading, turn))
        assert list(rewind(looking, turn).hidden) == list(rewind(reading, turn).hidden)
        assert looking.record_after(turn - 1) == reading.record_after(turn - 1)
        assert looking.snapshot_before(turn) == reading.snapshot_before(turn)
        assert looking.last_event(turn - 1) == reading.events_until(turn - 1)[-1]
        assert looking.context_before(turn) == reading.context_before(turn)
    assert opened(path).record == reading.record
    assert list(opened(path).events) == reading.events
    assert opened(path).events[-3:] == reading.events[-3:]


def test_parts_of_a_context_are_the_parts_of_the_whole(runs: Path) -> None:
    """R58: any slice, without the rest."""
    for name in ("growing", "window"):
        path = runs / f"{name}.journal.jsonl"
        all_of_it = rewind(whole(path), 44).context
        for part in (slice(-4, None), slice(0, 3), slice(2, 9), slice(9, 2), slice(None, None, 2)):
            assert rewind(opened(path), 44).context[part] == all_of_it[part]
        looked = rewind(opened(path), 44).context
        assert (looked[-1], looked[0], len(looked)) == (all_of_it[-1], all_of_it[0], len(all_of_it))
        with pytest.raises(IndexError):
            looked[len(all_of_it)]
        assert looked == all_of_it


def test_a_look_at_a_turn_reads_few_lines(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R58: the same number of lines at every turn, and a small one."""
    parsed: list[int] = []
    real = Line.event

    def counted(line: Line) -> Event:
        parsed.append(line.seq)
        return real(line)

    counts = []
    for turn in (22, 32, 42):
        looking = opened(runs / "window.journal.jsonl")
        with monkeypatch.context() as patch:
            patch.setattr(Line, "event", counted)
            rewound_text(rewind(looking, turn), last=4)
        counts.append(len(set(parsed)))
        parsed.clear()
    assert len(set(counts)) == 1
    assert counts[0] < 30


def test_an_index_that_does_not_fit_is_made_anew(runs: Path, tmp_path: Path) -> None:
    """R58: stale, foreign, of another version, cut or changed in any byte: never believed."""
    path = Path(shutil.copy(runs / "window.journal.jsonl", tmp_path))
    truth = whole(path).record_after(42)
    assert opened(path).record_after(42) == truth
    index = index_path(path)
    good = index.read_bytes()
    for offset in range(0, len(good), 1499):
        index.write_bytes(good[:offset] + bytes([good[offset] ^ 0xFF]) + good[offset + 1 :])
        assert opened(path).record_after(42) == truth
    for length in (0, 7, 100, len(good) - 1):
        index.write_bytes(good[:length])
        assert opened(path).record_after(42) == truth
    opened(runs / "growing.journal.jsonl")
    shutil.copy(index_path(runs / "growing.journal.jsonl"), index)
    assert opened(path).record_after(42) == truth
    assert index.read_bytes() != index_path(runs / "growing.journal.jsonl").read_bytes()


def test_a_journal_that_was_changed_after_it_was_indexed_is_found_out(
    runs: Path, tmp_path: Path
) -> None:
    """R1: its time tells, and where that was put back, the line that is looked at."""
    path = Path(shutil.copy(runs / "window.journal.jsonl", tmp_path))
    opened(path)
    assert open_side_file(path) is not None
    state = path.stat()
    data = path.read_bytes()
    at = opened(path)._kept.places.turns[40].offset + 200  # type: ignore[union-attr]
    path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    assert open_side_file(path) is None
    with pytest.raises(JournalDamaged):
        Recorded.open(path)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    looking = opened(path)
    rewind(looking, 30)
    with pytest.raises(JournalDamaged, match="is not where it was"):
        rewind(looking, 40)


def test_a_folder_that_takes_no_index_gives_the_same_answers(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(shutil.copy(runs / "window.journal.jsonl", tmp_path))
    monkeypatch.setattr("os.access", lambda *_: False)
    found = Recorded.open(path)
    assert found._kept is None
    assert found.record_after(42) == whole(path).record_after(42)
    assert not index_path(path).exists()


def test_what_goes_back_is_read_as_a_whole(runs: Path, tmp_path: Path) -> None:
    """A resumed run takes events back, which a frame of an earlier turn cannot know."""
    path = Path(shutil.copy(runs / "window.journal.jsonl", tmp_path))
    reading = whole(path)
    after = reading.last_event(20)
    with closing(Writer(path, run_id="r", now=lambda: "now")) as writer:
        resumed = Resumed(continues_after=after.seq, record_hash=reading.record_after(20).logical)
        writer.append(resumed, turn=20, step_id="t0020")
    found = Recorded.open(path)
    assert found._kept is None
    assert found.record == whole(path).record
