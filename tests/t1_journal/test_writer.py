"""The writer: what it acknowledged is there, whatever happens next; what it cannot keep it says."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from journals import (
    NOW,
    append,
    child,
    journal,
    open_writer,
    replied,
    reply_steps,
    run_steps,
    started,
    write,
)

from branchkit import disk
from branchkit.errors import JournalDamaged, JournalLocked, JournalPoisoned
from branchkit.journal.anchor import head_path
from branchkit.journal.file import read, verify


def test_a_new_journal_is_private_and_reads_back(tmp_path: Path) -> None:
    """R1, R14: in folders that did not exist, with mode 0600, and no lock left."""
    path = tmp_path / "deep" / "er" / "run.journal.jsonl"
    written = write(path, run_steps(2))
    events, damage = read(path)
    assert damage == []
    assert events == written
    assert [event.seq for event in events] == list(range(13))
    assert {event.recorded_at for event in events} == {NOW}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sorted(path.parent.iterdir()) == [head_path(path), path]


def test_nothing_is_on_disk_before_the_first_commit(tmp_path: Path) -> None:
    path = tmp_path / "run.journal.jsonl"
    with closing(open_writer(path)) as writer:
        writer.append(started(), turn=0, step_id="t0000")
        assert not path.exists()
        writer.commit()
        assert verify(path).events == 1
        append(writer, 1)
        assert verify(path).events == 1
        writer.commit()
        writer.commit()
        assert verify(path).events == 2


def test_a_journal_goes_on_where_it_ended(tmp_path: Path) -> None:
    path = journal(tmp_path, 1)
    before = path.read_bytes()
    with closing(open_writer(path)) as writer:
        assert writer.seq == 7
        assert append(writer, 2).prev_event_hash == verify(path).head
    assert path.read_bytes().startswith(before)
    assert verify(path).events == 8
    assert verify(path).head == writer.head


def test_two_ways_of_writing_give_the_same_bytes(tmp_path: Path) -> None:
    """Batches leave no trace: the file depends on the events alone."""
    write(tmp_path / "a.journal.jsonl", run_steps(2))
    for step in run_steps(2):
        write(tmp_path / "b.journal.jsonl", iter([step]))
    assert (tmp_path / "a.journal.jsonl").read_bytes() == (
        tmp_path / "b.journal.jsonl"
    ).read_bytes()


def test_a_refused_payload_leaves_the_writer_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "run.journal.jsonl"
    with closing(open_writer(path)) as writer:
        writer.append(started(), turn=0, step_id="t0000")
        with pytest.raises(TypeError):
            writer.append(replied(1, message={"content": b"bytes"}), turn=1, step_id="t0001")
        append(writer, 1)
    assert verify(path).events == 2


def test_close_is_final_and_may_be_called_twice(tmp_path: Path) -> None:
    writer = open_writer(tmp_path / "run.journal.jsonl")
    append(writer, 1)
    writer.close()
    writer.close()
    with pytest.raises(JournalPoisoned, match="closed"):
        append(writer, 2)


# ---- damage that a writer finds ----


@pytest.fixture
def memory_folder() -> Iterator[Path]:
    """A folder on a RAM disk: thousands of barriers cost nothing there."""
    import tempfile

    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


def test_a_journal_cut_after_any_byte_resumes(memory_folder: Path) -> None:
    """R15: 12 turns, every line at its borders and all along; the torn tail is kept aside."""
    whole = memory_folder / "whole.journal.jsonl"
    write(whole, reply_steps(12))
    data = whole.read_bytes()
    ends = [index + 1 for index, byte in enumerate(data) if byte == 10]
    lengths = {end + near for end in ends for near in (-2, -1, 0, 1, 2)}
    lengths |= set(range(ends[0], len(data), 41))
    for length in sorted(lengths & set(range(ends[0], len(data)))):
        folder = memory_folder / str(length)
        folder.mkdir()
        path = folder / "cut.journal.jsonl"
        path.write_bytes(data[:length])
        with closing(open_writer(path)) as writer:
            append(writer, 99)
        result = path.read_bytes()
        kept = max(end for end in ends if end <= length + 1)
        assert result.startswith(data[:kept])
        assert verify(path).ok
        assert verify(path).events == ends.index(kept) + 2
        aside = [item.read_bytes() for item in folder.iterdir() if ".torn-" in item.name]
        assert aside == ([data[kept:length]] if length > kept else [])


def test_a_second_torn_tail_does_not_replace_the_first(tmp_path: Path) -> None:
    path = journal(tmp_path, 1)
    for tail in (b"first", b"second"):
        path.write_bytes(path.read_bytes() + tail)
        open_writer(path).close()
    aside = sorted(tmp_path.glob("*.torn-*"))
    assert [item.read_bytes() for item in aside] == [b"first", b"second"]


@pytest.mark.parametrize("tail", [bytes(600), b'{"event_hash":"sha256:' + bytes(100)])
def test_a_tail_of_nuls_is_torn(tmp_path: Path, tail: bytes) -> None:
    """R15: what XFS leaves of an append that never became durable."""
    path = journal(tmp_path, 1)
    before = path.read_bytes()
    path.write_bytes(before + tail)
    open_writer(path).close()
    assert path.read_bytes() == before


@pytest.mark.parametrize("line", [0, 3, 6])
def test_damage_before_the_end_is_refused_and_left_alone(tmp_path: Path, line: int) -> None:
    """R1: acknowledged events may lie behind it, so no writer cuts there."""
    path = journal(tmp_path, 1)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[line] = lines[line].replace(b"2026", b"2027", 1)
    damaged = b"".join(lines)
    path.write_bytes(damaged)
    with pytest.raises(JournalDamaged, match=f"event {line}: hash_mismatch"):
        open_writer(path)
    assert path.read_bytes() == damaged
    assert sorted(tmp_path.iterdir()) == [head_path(path), path]


@pytest.mark.parametrize("content", [b"", b'{"event_hash":"sha'])
def test_a_file_without_an_event_is_not_taken_over(tmp_path: Path, content: bytes) -> None:
    """The first batch comes by rename, whole or not at all: this is somebody else's file."""
    path = tmp_path / "run.journal.jsonl"
    path.write_bytes(content)
    with pytest.raises(JournalDamaged):
        open_writer(path)
    assert path.read_bytes() == content


def test_a_writer_notices_that_somebody_else_wrote(tmp_path: Path) -> None:
    path = journal(tmp_path, 1)
    with closing(open_writer(path)) as writer:
        with path.open("ab") as stream:
            stream.write(b"mine\n")
        append(writer, 2)
        with pytest.raises(JournalDamaged, match="somebody else wrote"):
            writer.commit()


def test_a_writer_does_not_replace_a_file_that_appeared(tmp_path: Path) -> None:
    path = tmp_path / "run.journal.jsonl"
    with closing(open_writer(path)) as writer:
        append(writer, 1)
        path.write_bytes(b"mine")
        with pytest.raises(JournalDamaged, match="appeared"):
            writer.commit()
    assert path.read_bytes() == b"mine"


# ---- the lock ----

HOLD = """
import sys
from pathlib import Path
from branchkit.journal.file import Writer
from journals import append, child, open_writer, RUN_ID, now, replied
writer = Writer(Path(sys.argv[1]), run_id="r", now=now)
print("held", flush=True)
for line in sys.stdin:
    writer.append(replied(int(line)), turn=int(line), step_id="s")
    writer.commit()
    print("ack", line.strip(), flush=True)
writer.close()
"""


def test_the_lock_names_its_holder_and_goes_with_it(tmp_path: Path) -> None:
    """R1, ENGINE 2.2: two processes, one journal; after a SIGKILL the next one gets it."""
    path = tmp_path / "run.journal.jsonl"
    with child(HOLD, path) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(JournalLocked, match=f"process {holder.pid}"):
            open_writer(path)
        holder.kill()
    open_writer(path).close()
    assert not list(tmp_path.iterdir())


def test_a_lock_on_a_name_that_went_is_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between our open and our flock the holder lets go and a third one locks the new file."""
    path = tmp_path / "x.lock"
    first = disk.lock(path)
    real = disk._flock
    third: list[int] = []

    def late(fd: int, name: Path) -> None:
        if not third:
            disk.unlock(first, path)
            third.append(-1)
            third[0] = disk.lock(path)
        real(fd, name)

    monkeypatch.setattr(disk, "_flock", late)
    with pytest.raises(JournalLocked):
        disk.lock(path)
    disk.unlock(third[0], path)
