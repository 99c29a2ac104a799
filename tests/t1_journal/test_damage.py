"""Whatever happens to the bytes of a journal is found, at its place, and the prefix still opens."""

from __future__ import annotations

import hashlib
import os
from bisect import bisect_right
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from journals import journal, reply_steps, run_steps, sealed_lines, write

from branchkit.errors import InputRefused, JournalDamaged
from branchkit.journal.chain import HEAD, HEAD_BYTES
from branchkit.journal.file import Damage, Verdict, damage_error, read, verify
from branchkit.journal.format import ZERO_HASH

TURNS = 3


class Sample(NamedTuple):
    path: Path
    data: bytes
    lines: list[bytes]
    starts: list[int]
    heads: list[str]


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Sample:
    path = journal(tmp_path_factory.mktemp("damage"), TURNS)
    data = path.read_bytes()
    lines = data.splitlines(keepends=True)
    starts = [sum(map(len, lines[:index])) for index in range(len(lines))]
    return Sample(path, data, lines, starts, [event.event_hash for event in read(path)[0]])


def verdict(sample: Sample, data: bytes, anchor: str | None = None) -> Verdict:
    path = sample.path.with_name("changed.journal.jsonl")
    path.write_bytes(data)
    return verify(path, anchor=anchor)


def the_damage(sample: Sample, data: bytes, anchor: str | None = None) -> Damage:
    found = verdict(sample, data, anchor)
    assert not found.ok
    assert len(found.damage) == 1
    return found.damage[0]


def joined(lines: list[bytes]) -> bytes:
    return b"".join(lines)


def line_of(sample: Sample, offset: int) -> int:
    return sum(start <= offset for start in sample.starts) - 1


quick = settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])


@quick
@given(data=st.data())
def test_any_changed_byte_is_found_with_its_event(sample: Sample, data: st.DataObject) -> None:
    """R1, M05: line, offset and seq of the event that was changed."""
    offset = data.draw(st.integers(0, len(sample.data) - 1))
    old = sample.data[offset]
    new = data.draw(st.integers(0, 255).filter(lambda byte: byte != old))
    changed = sample.data[:offset] + bytes([new]) + sample.data[offset + 1 :]
    seq = line_of(sample, offset)
    damage = the_damage(sample, changed)
    assert (damage.seq, damage.line, damage.offset) == (seq, seq + 1, sample.starts[seq])


@quick
@given(data=st.data())
def test_any_dropped_doubled_or_swapped_line_is_found(sample: Sample, data: st.DataObject) -> None:
    """R1, M05: removal, duplicate and reordering, each event in each way."""
    last = len(sample.lines) - 1
    index = data.draw(st.integers(0, last - 1))
    lines = list(sample.lines)
    what = data.draw(st.sampled_from(["drop", "double", "swap"]))
    if what == "drop":
        del lines[index]
        expected = (index, "seq_gap")
    elif what == "double":
        lines.insert(index, lines[index])
        expected = (index + 1, "duplicate_seq")
    else:
        other = data.draw(st.integers(index + 1, last))
        lines[index], lines[other] = lines[other], lines[index]
        expected = (index, "seq_gap")
    damage = the_damage(sample, joined(lines))
    assert (damage.seq, damage.code) == expected


def test_every_dropped_event_but_the_last_is_found(sample: Sample) -> None:
    """R1: all of them, not a sample; the last one needs the anchor."""
    for index in range(len(sample.lines) - 1):
        lines = sample.lines[:index] + sample.lines[index + 1 :]
        assert the_damage(sample, joined(lines)).seq == index
    shorter = joined(sample.lines[:-1])
    assert verdict(sample, shorter).ok
    damage = the_damage(sample, shorter, anchor=sample.heads[-1])
    assert (damage.seq, damage.code) == (len(sample.lines) - 1, "anchor_mismatch")


@quick
@given(data=st.data())
def test_an_inserted_event_is_found(sample: Sample, data: st.DataObject) -> None:
    """R1: an event sealed for exactly that place betrays itself by the one after it."""
    index = data.draw(st.integers(1, len(sample.lines) - 1))
    steps = list(run_steps(TURNS))
    extra = sealed_lines(
        iter([data.draw(st.sampled_from(steps))]), prev=sample.heads[index - 1], first_seq=index
    )
    lines = sample.lines[:index] + extra + sample.lines[index:]
    damage = the_damage(sample, joined(lines))
    assert (damage.seq, damage.code) == (index + 1, "duplicate_seq")
    replaced = sample.lines[:index] + extra + sample.lines[index + 1 :]
    if joined(replaced) != sample.data and index + 1 < len(sample.lines):
        damage = the_damage(sample, joined(replaced))
        assert (damage.seq, damage.code) == (index + 1, "broken_link")


def test_a_journal_cut_after_every_byte_gives_its_prefix(tmp_path: Path) -> None:
    """R15: each prefix of a 12-turn journal opens and says where it ends, and the anchor tells."""
    path = tmp_path / "cut.journal.jsonl"
    heads = [event.event_hash for event in write(path, reply_steps(12))]
    ends = [0, *accumulate(map(len, path.read_bytes().splitlines(keepends=True)))]
    for length in reversed(range(ends[-1])):
        os.truncate(path, length)
        whole = bisect_right(ends, length) - 1
        found = verify(path)
        assert (found.events, found.end) == (whole, ends[whole])
        if length in ends:
            assert [d.code for d in found.damage] == ([] if length else ["empty"])
        else:
            code = "lost_newline" if length + 1 in ends else "torn_line"
            assert [d[:4] for d in found.damage] == [(whole, whole + 1, ends[whole], code)]
        if length in ends or length % 97 == 0:
            events, damage = read(path)
            assert [event.event_hash for event in events] == heads[:whole]
            assert damage == found.damage
            assert not verify(path, anchor=heads[-1]).ok


def test_a_forged_tail_shows_only_against_the_anchor(sample: Sample) -> None:
    """R1, M05: rewritten from event k on with right hashes: only an anchor kept elsewhere tells."""
    for index in range(1, len(sample.lines)):
        steps = [step._replace(turn=step.turn + 1) for step in run_steps(TURNS)][index:]
        tail = sealed_lines(iter(steps), prev=sample.heads[index - 1], first_seq=index)
        forged = joined(sample.lines[:index] + tail)
        assert verdict(sample, forged).ok
        damage = the_damage(sample, forged, anchor=sample.heads[-1])
        assert damage.code == "anchor_mismatch"


@pytest.mark.parametrize("back", [1, 2, 10])
def test_events_after_the_anchor_are_counted(sample: Sample, back: int) -> None:
    last = len(sample.lines) - 1
    assert verdict(sample, sample.data, anchor=sample.heads[-1]).ok
    damage = the_damage(sample, sample.data, anchor=sample.heads[last - back])
    first_extra = last - back + 1
    assert damage[:4] == (
        first_extra, first_extra + 1, sample.starts[first_extra], "beyond_anchor",
    )  # fmt: skip
    assert damage.detail.startswith(f"{back} event")


def test_everything_is_beyond_the_anchor_of_a_journal_without_events(sample: Sample) -> None:
    damage = the_damage(sample, sample.data, anchor=ZERO_HASH)
    assert (damage.seq, damage.code) == (0, "beyond_anchor")
    assert damage.detail.startswith(f"{len(sample.lines)} events follow")


def test_damage_before_the_anchor_is_named_as_what_it_is(sample: Sample) -> None:
    damage = the_damage(sample, joined(sample.lines[1:]), anchor=sample.heads[-1])
    assert damage.code == "seq_gap"


BOM = b"\xef\xbb\xbf"


def test_a_byte_order_mark_is_named(sample: Sample) -> None:
    """R15."""
    assert the_damage(sample, BOM + sample.data)[:4] == (0, 1, 0, "bom")
    lines = list(sample.lines)
    lines[4] = BOM + lines[4]
    assert the_damage(sample, joined(lines))[:4] == (4, 5, sample.starts[4], "bom")


@pytest.mark.parametrize("count", [1, 512, 4096])
def test_a_run_of_nuls_is_named(sample: Sample, count: int) -> None:
    """R15: in a line, over lines, and as the tail that a file system leaves after a crash."""
    middle = sample.starts[5] + 100
    replaced = sample.data[:middle] + bytes(count) + sample.data[middle + count :]
    if middle + count < len(sample.data):
        assert the_damage(sample, replaced)[:4] == (5, 6, sample.starts[5], "nul_run")
    damage = the_damage(sample, sample.data + bytes(count))
    assert damage[:4] == (19, 20, len(sample.data), "torn_line")
    damage = the_damage(sample, sample.data + bytes(count) + b"\n")
    assert damage.code == "nul_run"


@pytest.mark.parametrize("index", range(18))
def test_two_events_on_a_line_are_named(sample: Sample, index: int) -> None:
    """R15: a lost newline in the middle; the good prefix ends before the first of the two."""
    lines = list(sample.lines)
    lines[index] = lines[index][:-1]
    damage = the_damage(sample, joined(lines))
    assert damage[:4] == (index, index + 1, sample.starts[index], "two_events_on_a_line")


def test_the_newline_of_the_last_event_is_missed(sample: Sample) -> None:
    """R15: the event is whole, so this is told from a torn line."""
    damage = the_damage(sample, sample.data[:-1])
    assert damage[:4] == (18, 19, sample.starts[18], "lost_newline")


@pytest.mark.parametrize(
    "line", [b"\n", b"{}\n", b"not JSON\n", b'{"event_hash":"sha256:', b"\xff\xfe\n"]
)
def test_what_is_no_event_is_named(sample: Sample, line: bytes) -> None:
    damage = the_damage(sample, joined(sample.lines[:4]) + line + joined(sample.lines[4:]))
    assert damage.seq == 4
    assert damage.code == "not_an_event" or line.startswith(b"{")


def test_a_carriage_return_is_damage(sample: Sample) -> None:
    """A journal that went through a text mode is not the journal that was hashed."""
    assert the_damage(sample, sample.data.replace(b"\n", b"\r\n"))[:2] == (0, 1)


def test_the_error_names_the_place_and_the_prefix(sample: Sample) -> None:
    damage = the_damage(sample, joined(sample.lines[:2] + sample.lines[3:]))
    error = damage_error(sample.path, damage)
    assert isinstance(error, JournalDamaged)
    assert "line 3" in error.message
    assert "seq_gap" in error.message
    assert "0..1 are intact" in error.hint
    hints = {
        "no event is intact": damage._replace(seq=0),
        "event 0 is intact": damage._replace(seq=1),
        "keep a new one": damage._replace(code="beyond_anchor"),
        "chain in itself is intact": damage._replace(code="anchor_mismatch"),
    }
    for hint, other in hints.items():
        assert hint in damage_error(sample.path, other).hint


def test_an_intact_line_of_a_newer_version_is_an_error_not_damage(
    sample: Sample, tmp_path: Path
) -> None:
    """R8: nothing is skipped; the message names file, line and event."""
    body = b"{" + sample.lines[0][HEAD_BYTES:-1].replace(
        b'"schema_version":1', b'"schema_version":9'
    )
    path = tmp_path / "newer.journal.jsonl"
    digest = hashlib.sha256(body).hexdigest().encode()
    path.write_bytes(HEAD + digest + b'",' + body[1:] + b"\n")
    assert verify(path).ok
    with pytest.raises(
        InputRefused, match=r"newer\.journal\.jsonl line 1, event 0: schema version 9"
    ):
        read(path)


def test_no_file_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(InputRefused, match="cannot be read"):
        verify(tmp_path / "none.journal.jsonl")
