"""The turn index finds each turn without reading, let alone parsing, the others."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from journals import Step, journal, replied, reply_steps, run_steps, started, write

from branchkit.errors import JournalDamaged, TurnOutside
from branchkit.journal.chain import parse_placed
from branchkit.journal.events import Event
from branchkit.journal.file import read, verify
from branchkit.journal.index import Place, build_index, events_between


def test_each_turn_is_where_the_index_says(tmp_path: Path) -> None:
    """R58, H05: seq and byte offset of the first event of every turn."""
    path = journal(tmp_path, 5)
    index = build_index(path)
    data, (events, _) = path.read_bytes(), read(path)
    assert sorted(index.turns) == [0, 1, 2, 3, 4, 5]
    for turn, place in index.turns.items():
        assert place.seq == min(event.seq for event in events if event.turn == turn)
        assert data[place.offset - 1 : place.offset] in (b"", b"\n")
        assert f'"seq":{place.seq},'.encode() in data[place.offset :].split(b"\n")[0]
    verdict = verify(path)
    assert index[1:] == (verdict.events, verdict.end, verdict.head, [], True)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 6), st.integers(0, 6))
def test_a_stretch_of_turns_is_what_a_full_read_holds(
    tmp_path: Path, first: int, length: int
) -> None:
    """R58."""
    path = tmp_path / "sample.journal.jsonl"
    if not path.exists():
        journal(tmp_path, 6)
    last = first + length
    wanted = [event for event in read(path)[0] if first <= event.turn <= last]
    assert events_between(path, build_index(path), first, last) == wanted


def test_only_the_asked_for_lines_are_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R58: the cost is that of the turn, whatever the length of the run."""
    parsed: list[bytes] = []

    def counted(line: bytes, *place: Any) -> Event:
        parsed.append(line)
        return parse_placed(line, *place)

    monkeypatch.setattr("branchkit.journal.scan.parse_placed", counted)
    counts = []
    for turns in (10, 400):
        path = tmp_path / f"{turns}.journal.jsonl"
        write(path, run_steps(turns))
        index = build_index(path)
        assert parsed == []
        events_between(path, index, 7, 8)
        counts.append(len(parsed))
        parsed.clear()
    assert counts == [12, 12]


def test_a_late_event_belongs_to_the_stretch_in_which_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "run.journal.jsonl"
    steps = [*reply_steps(3), Step(replied(1, "late"), 1, "t0001"), Step(replied(4), 4, "t0004")]
    events = write(path, iter(steps))
    index = build_index(path)
    assert index.turns[1].seq == 1
    assert events_between(path, index, 3, 3) == events[3:5]
    assert events_between(path, index, 1, 1) == events[1:2]
    assert events_between(path, index, 4, 4) == events[5:]


def test_turns_that_begin_out_of_order_are_found_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "run.journal.jsonl"
    turns = [0, 1, 3, 2, 4]
    events = write(path, (Step(replied(turn), turn, "s") for turn in turns))
    index = build_index(path)
    assert not index.turns.in_order
    assert not index.monotone
    assert events_between(path, index, 1, 2) == events[1:4]
    assert events_between(path, index, 2, 3) == events[2:4]
    assert events_between(path, index, 3, 3) == events[2:4]


def test_a_branch_begins_in_the_middle(tmp_path: Path) -> None:
    path = tmp_path / "run.journal.jsonl"
    events = write(path, iter([Step(started(), 22, "t0022"), Step(replied(23), 23, "t0023")]))
    index = build_index(path)
    assert index.turns[22] == Place(0, 0)
    assert events_between(path, index, 0, 22) == events[:1]
    for first, last in [(0, 21), (24, 30), (23, 22)]:
        with pytest.raises(TurnOutside, match=r"outside 22\.\.23"):
            events_between(path, index, first, last)


def test_the_index_of_a_damaged_journal_covers_its_prefix(tmp_path: Path) -> None:
    """R15."""
    path = journal(tmp_path, 3)
    whole = read(path)[0]
    os.truncate(path, path.stat().st_size - 10)
    index = build_index(path)
    assert [damage.code for damage in index.damage] == ["torn_line"]
    assert events_between(path, index, 3, 3) == [e for e in whole if e.turn == 3][:-1]


def test_an_index_outlives_later_events(tmp_path: Path) -> None:
    path = journal(tmp_path, 2)
    index = build_index(path)
    before = events_between(path, index, 2, 2)
    write(path, iter([Step(replied(2, "more"), 2, "t0002")]))
    assert events_between(path, index, 2, 2) == before


def test_a_file_that_was_changed_since_is_an_error(tmp_path: Path) -> None:
    path = journal(tmp_path, 2)
    index = build_index(path)
    data = path.read_bytes()
    path.write_bytes(data.replace(b"echo 2", b"echo 3"))
    with pytest.raises(JournalDamaged, match="event 8 is not where it was"):
        events_between(path, index, 2, 2)
    path.write_bytes(data[: index.turns[2].offset + 20])
    with pytest.raises(JournalDamaged, match="event 7 is not where it was"):
        events_between(path, index, 2, 2)
    assert events_between(path, index, 1, 1)
