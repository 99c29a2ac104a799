"""``NAME.head``: the writer keeps it, and a tail cut off or forged shows against it (R1, M05)."""

from __future__ import annotations

import json
import os
from itertools import pairwise
from pathlib import Path

import pytest
from journals import run_steps, sealed_lines

from branchkit import disk
from branchkit.cli import main
from branchkit.journal.anchor import head_path, keep_head, kept_head, verify_kept
from branchkit.journal.events import InputReceived
from branchkit.journal.file import Writer, verify

NOW = "2026-01-01T00:00:00+00:00"


def written(path: Path, texts: list[str]) -> Path:
    """One more event for each text, by a writer of its own that is closed afterwards."""
    writer = Writer(path, run_id="r", now=lambda: NOW)
    for text in texts:
        message = {"role": "user", "content": text}
        writer.append(InputReceived(message=message, source="task"), turn=0, step_id="t0000")
    writer.close()
    return path


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return written(tmp_path / "run.journal.jsonl", ["one", "two", "three"])


def test_a_writer_that_closes_keeps_the_head(journal: Path) -> None:
    assert head_path(journal).name == "run.head"
    assert kept_head(journal) == verify(journal).head
    written(journal, ["four"])
    assert kept_head(journal) == verify(journal).head
    assert verify(journal).events == 4


def test_every_tail_that_is_cut_off_is_found(
    journal: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whole lines taken off the end leave an intact chain: only the kept head tells."""
    lines = journal.read_bytes().splitlines(keepends=True)
    for kept in range(1, len(lines)):
        journal.write_bytes(b"".join(lines[:kept]))
        assert verify(journal).ok
        [damage] = verify_kept(journal).damage
        assert (damage.code, damage.seq) == ("anchor_mismatch", kept)
    assert main(["verify", str(journal), "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["damage"][0]["code"] == "anchor_mismatch"


def test_a_tail_written_anew_is_found(journal: Path) -> None:
    """Another history with right hashes, of the same length."""
    forged = journal.with_name("forged.journal.jsonl")
    written(forged, ["one", "two", "a lie"])
    journal.write_bytes(forged.read_bytes())
    assert verify(journal).ok
    assert [one.code for one in verify_kept(journal).damage] == ["anchor_mismatch"]


def test_events_after_the_head_are_no_damage(journal: Path) -> None:
    """A run that was killed wrote on after its last close; --anchor is strict all the same."""
    head = kept_head(journal)
    assert head is not None
    written(journal, ["four", "five"])
    keep_head(journal, head)
    assert verify_kept(journal).ok
    assert [one.code for one in verify(journal, anchor=head).damage] == ["beyond_anchor"]


def test_a_journal_without_a_head_is_verified_by_itself(journal: Path) -> None:
    head_path(journal).unlink()
    assert verify_kept(journal) == verify(journal)


def test_the_head_is_never_ahead_of_the_journal(
    journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is written after the fdatasync that covers what it names, and not if that failed."""
    done: list[str] = []
    sync, rename = disk.fdatasync, disk.rename

    def noted_sync(fd: int) -> None:
        sync(fd)
        done.append(f"sync {os.readlink(f'/proc/self/fd/{fd}')}")

    def noted_rename(old: Path, new: Path) -> None:
        done.append(f"rename {new}")
        rename(old, new)

    monkeypatch.setattr(disk, "fdatasync", noted_sync)
    monkeypatch.setattr(disk, "rename", noted_rename)
    written(journal, ["four"])
    assert [step for step in done if "run.journal" in step or step.startswith("rename")] == [
        f"sync {journal}", f"rename {head_path(journal)}",
    ]  # fmt: skip

    def fails(_fd: int) -> None:
        raise OSError(5, "an error of the disk")

    before = kept_head(journal)
    monkeypatch.setattr(disk, "fdatasync", fails)
    with pytest.raises(Exception, match="may be lost"):
        written(journal, ["five"])
    assert kept_head(journal) == before


def test_a_folder_that_cannot_be_written_keeps_none(tmp_path: Path) -> None:
    """The run itself is what matters: no error for want of a file beside it."""
    path = tmp_path / "run.journal.jsonl"
    head_path(path).mkdir()
    written(path, ["one"])
    assert kept_head(path) is None
    assert verify_kept(path).ok


def test_long_journals_of_the_mutation_tests_have_one_head_each(tmp_path: Path) -> None:
    """Every prefix of a chain has another head: none stands for two lengths."""
    lines = sealed_lines(run_steps(3))
    heads = []
    for length in range(1, len(lines) + 1):
        path = tmp_path / "prefix.journal.jsonl"
        path.write_bytes(b"".join(lines[:length]))
        heads.append(verify(path).head)
    assert all(one != other for one, other in pairwise(heads))
    assert len(set(heads)) == len(heads)
