"""Disks that fail or are full, commits that are interrupted: nothing acknowledged is lost."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from journals import Step, append, journal, open_writer, replied, run_steps, write

from branchkit import disk
from branchkit.errors import DiskFull, JournalPoisoned
from branchkit.journal.file import Writer, read, verify


class Fault:
    """The n-th call of a disk function fails; a real retry would then report success."""

    def __init__(self, real: Any, error: int, at: int = 1) -> None:
        self.real, self.error, self.calls, self.at = real, error, 0, at

    def __call__(self, *arguments: Any) -> Any:
        self.calls += 1
        if self.calls == self.at:
            raise OSError(self.error, os.strerror(self.error))
        return self.real(*arguments)


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_failed_sync_poisons_the_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    """R24: no acknowledgement, no second sync (it would report success), and it stays so."""
    path = journal(tmp_path, 1)
    acknowledged = path.read_bytes()
    writer = open_writer(path)
    fault = Fault(disk.fdatasync, error)
    monkeypatch.setattr(disk, "fdatasync", fault)
    append(writer, 2)
    with pytest.raises(JournalPoisoned, match="fdatasync"):
        writer.commit()
    for call in (writer.commit, lambda: append(writer, 3)):
        with pytest.raises(JournalPoisoned):
            call()
    writer.close()
    assert fault.calls == 1
    assert path.read_bytes().startswith(acknowledged)
    assert not path.with_name(path.name + ".lock").exists()
    with closing(open_writer(path)) as again:
        append(again, again.seq)
    assert verify(path).ok


@pytest.mark.parametrize("function", ["write_all", "fdatasync", "rename", "fsync_dir"])
def test_a_journal_that_could_not_be_created_takes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    """R24: the first batch too."""
    writer = open_writer(tmp_path / "run.journal.jsonl")
    monkeypatch.setattr(disk, function, Fault(getattr(disk, function), errno.EIO))
    append(writer, 1)
    with pytest.raises(JournalPoisoned):
        writer.commit()
    with pytest.raises(JournalPoisoned):
        append(writer, 2)
    writer.close()
    assert not list(tmp_path.glob(".*.tmp"))


def test_a_failed_write_poisons_and_the_torn_tail_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R24: half of a batch arrives, then EIO."""
    path = journal(tmp_path, 1)
    acknowledged = path.read_bytes()
    writer = open_writer(path)

    def half(fd: int, data: bytes) -> None:
        os.write(fd, data[: len(data) // 2])
        raise OSError(errno.EIO, "Input/output error")

    append(writer, 2)
    with monkeypatch.context() as patch:
        patch.setattr(disk, "write_all", half)
        with pytest.raises(JournalPoisoned, match="writing"):
            writer.commit()
    writer.close()
    assert verify(path).damage[0].code == "torn_line"
    open_writer(path).close()
    assert path.read_bytes() == acknowledged


def test_a_short_write_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R24."""
    path = tmp_path / "run.journal.jsonl"
    real = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda fd, data: real(fd, bytes(data[:7])))
        written = write(path, run_steps(1))
    assert read(path) == (written, [])


def test_a_full_device_is_a_clear_error() -> None:
    """R24: the kernel's own ENOSPC."""
    fd = os.open("/dev/full", os.O_WRONLY)
    try:
        with pytest.raises(DiskFull, match="no space left"):
            disk.write_all(fd, b"x")
    finally:
        os.close(fd)


def test_ctrl_c_in_a_commit_leaves_a_journal_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """STYLE 10: the interrupted batch is taken back, and the next commit writes it once."""
    path = journal(tmp_path, 1)
    real = disk.write_all

    def interrupted(fd: int, data: bytes) -> None:
        real(fd, data[: len(data) // 2])
        raise KeyboardInterrupt

    with closing(open_writer(path)) as writer:
        append(writer, 2)
        with monkeypatch.context() as patch:
            patch.setattr(disk, "write_all", interrupted)
            with pytest.raises(KeyboardInterrupt):
                writer.commit()
        assert verify(path).ok
        append(writer, 3)
    assert verify(path).ok
    assert verify(path).events == 9


def steps_of(count: int) -> Iterator[Step]:
    return (Step(replied(turn, "x" * 900), turn, "s") for turn in range(count))


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 64 KiB."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.fail(f"this test mounts a tmpfs and needs root: run it with sudo ({done.stderr})")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill(writer: Writer) -> int:
    """How many events were acknowledged before the disk was full."""
    for payload, turn, step in steps_of(200):
        writer.append(payload, turn=turn, step_id=step)
        try:
            writer.commit()
        except DiskFull:
            return turn
    raise AssertionError("the disk is larger than 200 events")


def test_a_full_disk_leaves_a_valid_journal(tiny_disk: Path) -> None:
    """R24: everything acknowledged is there, nothing else is, and with space it goes on."""
    path = tiny_disk / "run.journal.jsonl"
    (tiny_disk / "ballast").write_bytes(bytes(8192))
    writer = open_writer(path)
    acknowledged = fill(writer)
    with pytest.raises(JournalPoisoned, match="disk was full"):
        append(writer, 1)
    writer.close()
    assert acknowledged > 20
    assert verify(path)[:2] == (True, acknowledged)
    (tiny_disk / "ballast").unlink()
    with closing(open_writer(path)) as writer:
        append(writer, 1)
    assert verify(path)[:2] == (True, acknowledged + 1)


def test_a_disk_that_is_full_from_the_start_leaves_nothing(tiny_disk: Path) -> None:
    """R24: no half of a first batch."""
    with pytest.raises(DiskFull):
        write(tiny_disk / "run.journal.jsonl", steps_of(200))
    assert not list(tiny_disk.iterdir())
