"""``branch_cleanup``: what it holds, that it can be made again, and that damage to it shows."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from sample import ANCHOR, FOLDER, JOURNAL, make_script

from branchkit.journal.chain import seal
from branchkit.journal.events import (
    Checkpoint,
    Delivered,
    Event,
    ToolProposed,
    ToolResult,
    logical_hash,
)
from branchkit.journal.file import read, verify
from branchkit.record.context import plain_tools
from branchkit.replay.recorded import Recorded

MAX_TOKENS = 3000


@pytest.fixture(scope="module")
def sample() -> Recorded:
    return Recorded.open(JOURNAL)


def test_at_least_24_turns_and_a_proper_end(sample: Recorded) -> None:
    assert sample.turns >= 24
    assert sample.record.status == "completed"
    assert sample.started.harness == "branchkit"


def test_every_context_is_small(sample: Recorded) -> None:
    """A small local model can be asked at any turn: 3,000 tokens at four characters each."""
    tools = len(json.dumps(plain_tools(sample.started.tools)))
    for turn in range(1, sample.turns + 1):
        messages = [item.message for item in sample.contexts.at_turn(turn)]
        assert (len(json.dumps(messages, ensure_ascii=False)) + tools) / 4 <= MAX_TOKENS, turn


def the_call(sample: Recorded, turn: int) -> ToolProposed:
    (call,) = [
        e.payload for e in sample.events if e.turn == turn and isinstance(e.payload, ToolProposed)
    ]
    return call


def test_the_incident(sample: Recorded) -> None:
    """The line that would have saved release/2.1 was cut out; the full text is in the pack."""
    assert (the_call(sample, 22).name, the_call(sample, 22).arguments) == (
        "list_branches",
        {"prefix": ""},
    )
    deleted = the_call(sample, 23)
    assert (deleted.name, deleted.arguments) == ("delete_branch", {"name": "release/2.1"})
    (shown,) = [
        e.payload for e in sample.events if e.turn == 22 and isinstance(e.payload, Delivered)
    ]
    (result,) = [
        e.payload for e in sample.events if e.turn == 22 and isinstance(e.payload, ToolResult)
    ]
    assert shown.text is not None
    assert "release/2.1" in shown.text
    assert "protected by the release policy" not in shown.text
    assert shown.omitted_lines > 0
    assert result.text is None
    full = sample.contexts.full_text("t0022.1")
    protected = [line for line in full.splitlines() if "protected" in line]
    assert any(line.startswith("release/2.1 ") for line in protected)
    assert full.startswith(shown.text[:100])


def test_it_was_recorded_with_a_small_slip(sample: Recorded) -> None:
    """So that its control arm shows a real noise floor."""
    name, _, rate = sample.started.components["sampling"].spec.partition(":")
    assert name == "slip"
    assert 0 < float(rate) < 0.5


def test_it_names_no_place_of_the_machine_that_made_it(sample: Recorded) -> None:
    text = JOURNAL.read_text()
    assert str(Path(FOLDER).parents[1]) not in text
    assert "/tmp/" not in text
    assert "/home/" not in text


def trees(events: Sequence[Event]) -> list[str]:
    return [e.payload.tree_hash for e in events if isinstance(e.payload, Checkpoint)]


def test_it_can_be_made_again_with_equal_logical_hashes(
    sample: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R7: another directory, another day, another daemon; every event is the same behaviour."""
    monkeypatch.setenv("BRANCHKIT_STORE", "")  # make.py sets it, and the fixture takes that back
    out = tmp_path / "again"
    out.mkdir()
    journal = make_script().make(out)
    events, damage = read(journal)
    assert not damage
    assert [logical_hash(event) for event in events] == [
        logical_hash(event) for event in sample.events
    ]
    assert trees(events) == trees(sample.events)
    assert journal.read_bytes() != JOURNAL.read_bytes()
    head = (out / "branch_cleanup.head").read_text().strip()
    assert verify(journal, anchor=head).ok
    assert (out / "branch_cleanup.pack").exists()


def test_it_verifies_against_its_anchor() -> None:
    verdict = verify(JOURNAL, anchor=ANCHOR)
    assert (verdict.ok, verdict.head) == (True, ANCHOR)


Lines = list[bytes]


def flip(lines: Lines, rng: random.Random) -> Lines:
    data = bytearray(b"".join(lines))
    place = rng.randrange(len(data))
    data[place] ^= 1 << rng.randrange(8)
    return [bytes(data)]


def insert(lines: Lines, rng: random.Random) -> Lines:
    data = bytearray(b"".join(lines))
    data.insert(rng.randrange(len(data)), rng.randrange(256))
    return [bytes(data)]


def lose(lines: Lines, rng: random.Random) -> Lines:
    data = bytearray(b"".join(lines))
    del data[rng.randrange(len(data))]
    return [bytes(data)]


def drop(lines: Lines, rng: random.Random) -> Lines:
    place = rng.randrange(len(lines))
    return lines[:place] + lines[place + 1 :]


def swap(lines: Lines, rng: random.Random) -> Lines:
    one, two = rng.sample(range(len(lines)), 2)
    changed = list(lines)
    changed[one], changed[two] = changed[two], changed[one]
    return changed


def double(lines: Lines, rng: random.Random) -> Lines:
    place = rng.randrange(len(lines))
    return lines[: place + 1] + lines[place:]


def cut(lines: Lines, rng: random.Random) -> Lines:
    data = b"".join(lines)
    return [data[: rng.randrange(len(data))]]


def cut_at_a_line(lines: Lines, rng: random.Random) -> Lines:
    return lines[: rng.randrange(len(lines))]


def forge(lines: Lines, rng: random.Random) -> Lines:
    """From some event on the chain is made anew with another time in it: consistent in itself."""
    return chained_anew(lines, rng.randrange(len(lines)), lambda events: events)


def forge_without_one(lines: Lines, rng: random.Random) -> Lines:
    """A tail without its first event, chained anew."""
    return chained_anew(lines, rng.randrange(len(lines) - 1), lambda events: events[1:])


def forge_more(lines: Lines, rng: random.Random) -> Lines:
    """Events appended after the end, in a chain that is right."""
    events = read(JOURNAL)[0]
    return [*lines, *resealed(events[-1:], len(lines), events[-1].event_hash)]


def chained_anew(lines: Lines, first: int, change: Callable[[list[Event]], list[Event]]) -> Lines:
    events = read(JOURNAL)[0]
    before = events[first - 1].event_hash if first else events[0].prev_event_hash
    return lines[:first] + resealed(change(events[first:]), first, before)


def resealed(events: list[Event], seq: int, head: str) -> Lines:
    made = []
    for number, event in enumerate(events, start=seq):
        sealed = seal(
            event.payload, seq=number, turn=event.turn, step_id=event.step_id,
            recorded_at="2030-01-01T00:00:00Z", run_id=event.run_id, prev_event_hash=head,
        )  # fmt: skip
        head = sealed.event.event_hash
        made.append(sealed.line)
    return made


MUTATIONS = [
    flip, insert, lose, drop, swap, double, cut, cut_at_a_line,
    forge, forge_without_one, forge_more,
]  # fmt: skip


@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda mutate: mutate.__name__)
def test_verify_finds_every_mutation(
    mutate: Callable[[Lines, random.Random], Lines], tmp_path: Path
) -> None:
    """R1, and the issue's hundred: eleven kinds, ten of each, against the anchor."""
    lines = JOURNAL.read_bytes().splitlines(keepends=True)
    target = tmp_path / "mutated.journal.jsonl"
    for seed in range(10):
        mutated = b"".join(mutate(list(lines), random.Random(f"{mutate.__name__}/{seed}")))
        assert mutated != b"".join(lines)
        target.write_bytes(mutated)
        verdict = verify(target, anchor=ANCHOR)
        assert not verdict.ok, seed
        (damage,) = verdict.damage
        assert 0 <= damage.seq <= len(lines)
        assert damage.line == damage.seq + 1
        assert 0 <= damage.offset <= len(mutated)
