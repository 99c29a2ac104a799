"""Single mutations of a journal by the thousand: each is found, at its place (R1, R15, B01, M05).

`BRANCHKIT_CAMPAIGN=1` runs all 12,000; without it a sample of them.
"""

from __future__ import annotations

import os
import random
import tempfile
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import pytest
from journals import replied, reply_steps, run_steps, sealed_lines

from branchkit.journal.chain import link
from branchkit.journal.file import verify

MUTATIONS = 12_000 if os.environ.get("BRANCHKIT_CAMPAIGN") else 600
LINES = sealed_lines(run_steps(12))
STARTS = list(accumulate((len(line) for line in LINES), initial=0))
DATA = b"".join(LINES)
HEADS = [found.event_hash for line in LINES if (found := link(line[:-1]))]


class Mutation(NamedTuple):
    """What became of the file, and the event at which it must be found."""

    name: str
    data: bytes
    seq: int


def byte_change(chance: random.Random) -> Mutation:
    at = chance.randrange(len(DATA))
    other = bytes([DATA[at] ^ chance.randrange(1, 256)])
    return Mutation("byte", DATA[:at] + other + DATA[at + 1 :], bisect_right(STARTS, at) - 1)


def drop(chance: random.Random) -> Mutation:
    at = chance.randrange(len(LINES))
    return Mutation("drop", b"".join(LINES[:at] + LINES[at + 1 :]), at)


def add(chance: random.Random) -> Mutation:
    """An event with a right hash, and even the right link, that was never written."""
    at = chance.randrange(1, len(LINES))
    (extra,) = sealed_lines(iter([next(iter(reply_steps(1)))]), prev=HEADS[at - 1], first_seq=at)
    return Mutation("add", b"".join([*LINES[:at], extra, *LINES[at:]]), at + 1)


def reorder(chance: random.Random) -> Mutation:
    one, two = sorted(chance.sample(range(len(LINES)), 2))
    lines = list(LINES)
    lines[one], lines[two] = lines[two], lines[one]
    return Mutation("reorder", b"".join(lines), one)


def duplicate(chance: random.Random) -> Mutation:
    of, at = chance.randrange(len(LINES)), chance.randrange(1, len(LINES) + 1)
    return Mutation("duplicate", b"".join([*LINES[:at], LINES[of], *LINES[at:]]), at + (of == at))


def cut(chance: random.Random) -> Mutation:
    length = chance.randrange(len(DATA))
    return Mutation("cut", DATA[:length], bisect_right(STARTS, length) - 1)


def forged_tail(chance: random.Random) -> Mutation:
    """Written anew from some event on, every hash right: only the anchor tells."""
    at = chance.randrange(1, len(LINES))
    steps = [(replied(turn, "forged"), turn, "s") for turn in range(at, len(LINES))]
    tail = sealed_lines(iter(steps), prev=HEADS[at - 1], first_seq=at)  # type: ignore[arg-type]
    return Mutation("forged", b"".join(LINES[:at] + tail), len(LINES))


WAYS = (byte_change, byte_change, drop, add, reorder, duplicate, cut, forged_tail)


@pytest.fixture
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder) / "run.journal.jsonl"


def test_every_single_mutation_is_found_at_its_place(path: Path) -> None:
    """R15: none of them passes, and each is named by the event at which it shows."""
    chance = random.Random(5)
    counts: dict[str, int] = {}
    for number in range(MUTATIONS):
        mutation = WAYS[number % len(WAYS)](chance)
        if mutation.data == DATA:
            continue
        path.write_bytes(mutation.data)
        found = verify(path, anchor=HEADS[-1])
        assert not found.ok, mutation.name
        assert found.damage[0].seq == mutation.seq, (mutation.name, number, found.damage)
        assert found.events == mutation.seq
        counts[mutation.name] = counts.get(mutation.name, 0) + 1
    print(f"{sum(counts.values())} mutations, all found: {counts}")
    assert len(counts) == 7
