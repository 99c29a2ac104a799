"""Writes docs/performance-journal.md: what is durable, what is read, and what a turn costs.

    python tests/benchmarks/journal.py [--seconds 2] [--large] [--write docs/performance-journal.md]

Every way of writing is measured in the same run, in turn. CPU is process time; a shared machine
stretches wall time, so the ratios say more than the rates. ``--large`` adds a file of 1 M events.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import platform
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from journal_runs import record
from journals import now

from branchkit import disk
from branchkit.journal.chain import seal
from branchkit.journal.commit import GroupCommit, SharedWriter
from branchkit.journal.engines import Batch, Head
from branchkit.journal.estimates import k_bar, k_bar_queueing, t_eff
from branchkit.journal.events import Payload, ToolResult, call_step
from branchkit.journal.file import Line, Writer, scan, verify
from branchkit.journal.format import ZERO_HASH
from branchkit.journal.rocks import RocksEngine
from branchkit.journal.sidefile import index_path
from branchkit.record.fold import apply
from branchkit.record.record import Record
from branchkit.replay.recorded import Recorded
from branchkit.replay.rewind import rewind

PRODUCERS = (1, 8, 64, 256)
TEXT = "a line that a tool said\n" * 26
RESULT = ToolResult(
    call_id="t0001.1", status="completed", sha256=hashlib.sha256(TEXT.encode()).hexdigest(),
    bytes=len(TEXT), text=TEXT, exit_code=0, duration_ms=1.25,
)  # fmt: skip


class Rate(NamedTuple):
    """Durable events a second, events a barrier, and CPU an event."""

    per_s: float
    batch: float
    cpu_us: float


def produce(
    producers: int,
    seconds: float,
    durable: Callable[[Payload], Awaitable[object]],
    barriers: Callable[[], int],
) -> Rate:
    """``producers`` coroutines, each waiting for its event before it makes the next."""
    done = [0]

    async def main() -> None:
        end = time.monotonic() + seconds

        async def one() -> None:
            while time.monotonic() < end:
                await durable(RESULT)
                done[0] += 1

        await asyncio.gather(*(one() for _ in range(producers)))

    before, begin, cpu = barriers(), time.monotonic(), time.process_time()
    asyncio.run(main())
    wall, used = time.monotonic() - begin, time.process_time() - cpu
    return Rate(done[0] / wall, done[0] / max(1, barriers() - before), used / max(1, done[0]) * 1e6)


def ours(folder: Path, producers: int, seconds: float) -> Rate:
    """One journal file, all producers through one flusher."""
    writer = SharedWriter(Writer(folder / "run.journal.jsonl", run_id="r", now=now))
    try:
        return produce(
            producers, seconds,
            lambda payload: writer.appended(payload, turn=1, step_id=call_step(1, 1)),
            lambda: writer.counts.barriers,
        )  # fmt: skip
    finally:
        writer.close()


def _through(
    folder: Path, producers: int, seconds: float, write: Callable[[list[bytes]], None], most: int
) -> Rate:
    """The same lines through a group commit of at most ``most`` in front of something else."""
    head = Head(0, ZERO_HASH)

    def sealed(payloads: Sequence[Payload]) -> list[Exception | None]:
        nonlocal head
        lines = []
        for payload in payloads:
            event, line = seal(
                payload,
                seq=head.events,
                turn=1,
                step_id="s",
                recorded_at=now(),
                run_id="r",
                prev_event_hash=head.event_hash,
            )
            head = Head(event.seq + 1, event.event_hash)
            lines.append(line)
        write(lines)
        return [None] * len(lines)

    group: GroupCommit[Payload, None] = GroupCommit(sealed, capacity=most)
    try:
        return produce(producers, seconds, group.submitted, lambda: group.counts.barriers)
    finally:
        group.close()


def each_alone(folder: Path, producers: int, seconds: float) -> Rate:
    """One fdatasync an event."""
    fd = disk.open_append(folder / "alone")

    def write(lines: list[bytes]) -> None:
        disk.write_all(fd, b"".join(lines))
        disk.fdatasync(fd)

    try:
        return _through(folder, producers, seconds, write, 1)
    finally:
        os.close(fd)


def rocksdb(folder: Path, producers: int, seconds: float) -> Rate:
    """RocksDB, flush_wal(True) a batch."""
    engine = RocksEngine(folder / "rocks")
    try:
        return _through(
            folder, producers, seconds, lambda lines: engine.write([Batch("r", lines)]), 512
        )
    finally:
        engine.close()


def sqlite(folder: Path, producers: int, seconds: float) -> Rate:
    """SQLite in WAL mode, synchronous=FULL, a transaction a batch."""
    database = sqlite3.connect(folder / "sqlite", check_same_thread=False, isolation_level=None)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=FULL")
    database.execute("CREATE TABLE events (seq INTEGER PRIMARY KEY, line BLOB)")

    def write(lines: list[bytes]) -> None:
        database.execute("BEGIN")
        database.executemany("INSERT INTO events (line) VALUES (?)", [(line,) for line in lines])
        database.execute("COMMIT")

    try:
        return _through(folder, producers, seconds, write, 512)
    finally:
        database.close()


WAYS = {"one fdatasync an event": each_alone, "SQLite WAL FULL": sqlite, "RocksDB": rocksdb,
        "branchkit": ours}  # fmt: skip


def durable_rows(folder: Path, seconds: float) -> Iterator[str]:
    """Rates by producers, and the formulas beside what was measured."""
    rates: dict[str, dict[int, Rate]] = {}
    for producers in PRODUCERS:
        for name, way in WAYS.items():
            place = folder / f"{producers}-{len(rates)}-{name.split()[0]}"
            place.mkdir()
            print(name, producers, file=sys.stderr)
            rates.setdefault(name, {})[producers] = way(place, producers, seconds)
            shutil.rmtree(place)
    yield "| events/s, 1 KiB | " + " | ".join(map(str, PRODUCERS)) + " producers |"
    yield "|---|" + "---|" * len(PRODUCERS)
    for name, found in rates.items():
        yield f"| {name} | " + " | ".join(f"{found[n].per_s:,.0f}" for n in PRODUCERS) + " |"
    own = rates["branchkit"]
    yield (
        "| … against one producer | "
        + " | ".join(f"{own[n].per_s / own[1].per_s:.1f}×" for n in PRODUCERS)
        + " |"
    )
    yield (
        "| … barriers an event | " + " | ".join(f"{1 / own[n].batch:.3f}" for n in PRODUCERS) + " |"
    )
    yield "| … CPU an event | " + " | ".join(f"{own[n].cpu_us:.0f} µs" for n in PRODUCERS) + " |"
    sync_s = 1 / rates["one fdatasync an event"][1].per_s
    yield "| k measured | " + " | ".join(f"{own[n].batch:.1f}" for n in PRODUCERS) + " |"
    yield (
        "| k̄ = min(K, max(1, λW)) | "
        + " | ".join(f"{k_bar(own[n].per_s, 0, 512):.1f}" for n in PRODUCERS)
        + " |"
    )
    yield (
        "| min(K, max(1, λ(W + t_sync))) | "
        + " | ".join(f"{k_bar_queueing(own[n].per_s, 0, sync_s, 512):.1f}" for n in PRODUCERS)
        + " |"
    )
    yield (
        "| t_eff, of the measured k | "
        + " | ".join(f"{1e6 * t_eff(0, own[n].batch, 0, sync_s):.0f} µs" for n in PRODUCERS)
        + " |"
    )
    yield (
        "| measured cost (1/rate) | "
        + " | ".join(f"{1e6 / own[n].per_s:.0f} µs" for n in PRODUCERS)
        + " |"
    )


def best_rate(count: int, work: Callable[[], object], repeat: int = 3) -> float:
    """Events a second of CPU, the best of some."""
    found = []
    for _ in range(repeat):
        begin = time.process_time()
        work()
        found.append(count / (time.process_time() - begin))
    return max(found)


def folded(path: Path) -> Record:
    """Verify and fold in one pass."""
    result = Record()
    for item in scan(path):
        assert isinstance(item, Line)
        apply(result, item.event())
    return result


def rewound_ms(path: Path, turns: int) -> tuple[float, float]:
    """Median of a cold look at a turn (opened anew each time), shown; and with its record."""
    shown, with_record = [], []
    Recorded.open(path).close()  # makes the side file
    for number in range(30):
        turn = 1 + number * (turns - 1) // 30
        begin = time.process_time()
        found = rewind(Recorded.open(path), turn)
        _ = (found.context[-4:], found.context_hash, found.recorded, found.hidden[-1:])
        shown.append(1e3 * (time.process_time() - begin))
        _ = found.record
        with_record.append(1e3 * (time.process_time() - begin))
    return statistics.median(shown), statistics.median(with_record)


def run_rows(folder: Path, large: bool) -> Iterator[str]:
    """Bytes, CPU and a look at a turn, by the length of the run."""
    yield (
        "| run, 1 KiB results | bytes a turn | packed | recording, CPU a turn | rewind, p50 "
        "| … with its record |"
    )
    yield "|---|---|---|---|---|---|"
    real, disk.fdatasync = disk.fdatasync, lambda fd: None
    record(folder / "warm.journal.jsonl", 40)  # else the first row pays for the imports
    plans = [(40, None), (1_000, None), (40, 40), (1_000, 40), (10_000, 40)]
    for turns, window in plans + ([(125_000, 40)] if large else []):
        print(f"a run of {turns} turns", file=sys.stderr)
        path = folder / f"{turns}-{window}.journal.jsonl"
        begin = time.process_time()
        record(path, turns, window=window)
        cpu_us = 1e6 * (time.process_time() - begin) / turns
        size = path.stat().st_size
        packed = "–" if turns > 10_000 else f"{_packed(path) / turns:,.0f}"
        shown, with_record = rewound_ms(path, turns)
        kind = "grows" if window is None else f"{window} messages"
        yield (
            f"| {turns:,} turns, context {kind} | {size / turns:,.0f} | {packed} "
            f"| {cpu_us:,.0f} µs | {shown:.1f} ms | {with_record:.1f} ms |"
        )
    disk.fdatasync = real


def _packed(path: Path) -> int:
    import zlib

    return len(zlib.compress(path.read_bytes(), 9))


READ = """
import sys, time
from pathlib import Path
from branchkit.replay.recorded import Recorded
from branchkit.journal.file import verify
path = Path(sys.argv[1])
begin = time.process_time()
print(verify(path).events, round(time.process_time() - begin, 1))
begin = time.process_time()
Recorded.open(path)
# Not getrusage: its maximum counts the parent before exec too.
lines = Path("/proc/self/status").read_text().splitlines()
memory = next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM"))
print(round(time.process_time() - begin, 1), memory)
"""


def read_rows(folder: Path, large: bool) -> Iterator[str]:
    """Rates of the reading side, and what it takes of memory."""
    path = folder / "10000-40.journal.jsonl"
    events = verify(path).events
    yield "| reading | events/s of CPU |"
    yield "|---|---|"
    yield f"| verify | {best_rate(events, lambda: verify(path)):,.0f} |"
    yield f"| verify, parse and fold | {best_rate(events, lambda: folded(path)):,.0f} |"
    biggest = folder / "125000-40.journal.jsonl" if large else path
    index_path(biggest).unlink(missing_ok=True)
    done = subprocess.run(
        [sys.executable, "-c", READ, str(biggest)], capture_output=True, text=True, check=True
    )
    verified, indexed = done.stdout.splitlines()
    count, seconds = verified.split()
    index_s, memory = indexed.split()
    yield ""
    yield (
        f"{int(count):,} events: verified in {seconds} s, indexed and folded in {index_s} s of "
        f"CPU, at most {memory} MB of memory in all."
    )


def main() -> None:
    """Measure, print, and write the page if asked."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=".") as name:
        folder = Path(name)
        runs = list(run_rows(folder, options.large))
        page = "\n".join(
            [
                "# Performance of the journal", "",
                f"Written by `make bench-journal`; do not edit. {os.cpu_count()} cores, Linux "
                f"{platform.release()}, Python {platform.python_version()}, load "
                f"{os.getloadavg()[0]:.1f} from elsewhere. CPU is process time.", "",
                "## Durable appends", "", *durable_rows(folder, options.seconds), "",
                "## Runs", "", *runs, "", "## Reading", "", *read_rows(folder, options.large), "",
            ]
        )  # fmt: skip
    print(page)
    if options.write:
        options.write.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
