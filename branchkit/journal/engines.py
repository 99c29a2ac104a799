"""Where the lines of many runs are kept on one host: a file each, or one RocksDB (R70, J02).

Both keep the very lines of the journal, so a run goes from one to the other and back with every
hash as it was. JSONL is the default and the form in which runs are exchanged; RocksDB makes the
events of all runs durable in one barrier. No engine's own recovery is trusted: the chain is checked
above it, and how far it must reach is kept beside it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from branchkit.errors import ForkDetected, UsageError
from branchkit.journal.appending import Appending, RunWriter
from branchkit.journal.chain import link
from branchkit.journal.commit import CAPACITY, WINDOW_S, Counts, GroupCommit
from branchkit.journal.file import SUFFIX, Writer
from branchkit.journal.format import ZERO_HASH
from branchkit.journal.scan import BLOCK_BYTES, Damage, damage_error, scan_lines

_FILE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")


class Batch(NamedTuple):
    """Lines of one run, one after the other, newlines included."""

    run_id: str
    lines: list[bytes]


class Head(NamedTuple):
    """How many events a run has, and the hash of the last."""

    events: int
    event_hash: str


EMPTY = Head(0, ZERO_HASH)


class Engine(Protocol):
    """What keeps the lines of runs. One process at a time."""

    def runs(self) -> list[str]:
        """The runs that it has, sorted."""

    def head(self, run_id: str) -> Head:
        """The end of a run; EMPTY if it is not there. Raises JournalDamaged."""

    def write(self, batches: Sequence[Batch]) -> None:
        """Return once all lines are on stable storage.

        Raises ForkDetected for lines that do not follow the run's head (nothing is written), and
        JournalPoisoned, DiskFull as a journal's writer does.
        """

    def lines(self, run_id: str) -> Iterator[bytes]:
        """The lines of a run in order."""

    def close(self) -> None:
        """Let everything go."""


def followed(head: Head, batch: Batch) -> Head:
    """The head after ``batch``. Raises ForkDetected if it does not follow ``head``."""
    for line in batch.lines:
        place = link(line[:-1])
        if place is None or (place.seq, place.prev_event_hash) != head:
            raise ForkDetected(
                f"run {batch.run_id}: a line does not follow event {head.events - 1}",
                hint="one run has one writer; read the run anew and go on at its end",
            )
        head = Head(place.seq + 1, place.event_hash)
    return head


def checked_head(run_id: str, lines: Iterator[bytes]) -> Head:
    """The head of a run's lines, the whole chain checked. Raises JournalDamaged."""
    head = EMPTY
    for item in scan_lines(lines):
        if isinstance(item, Damage):
            if item.code == "empty":
                return EMPTY
            raise damage_error(Path(run_id), item)
        head = Head(item.seq + 1, item.event_hash)
    return head


class JsonlEngine:
    """``RUN.journal.jsonl`` for each run in one folder; each file has its own barrier."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._writers: dict[str, Writer] = {}

    def _path(self, run_id: str) -> Path:
        if not _FILE_NAME.fullmatch(run_id):
            raise UsageError(
                f"run {run_id!r} cannot be a file's name", hint="use letters, digits, . _ and -"
            )
        return self.directory / f"{run_id}{SUFFIX}"

    def runs(self) -> list[str]:
        return sorted(path.name[: -len(SUFFIX)] for path in self.directory.glob(f"*{SUFFIX}"))

    def head(self, run_id: str) -> Head:
        writer = self._writer(run_id)
        return Head(writer.seq, writer.head)

    def _writer(self, run_id: str) -> Writer:
        if run_id not in self._writers:
            self._writers[run_id] = Writer(self._path(run_id), run_id=run_id, now=str)
        return self._writers[run_id]

    def write(self, batches: Sequence[Batch]) -> None:
        heads: dict[str, Head] = {}
        for batch in batches:
            heads[batch.run_id] = followed(
                heads.get(batch.run_id) or self.head(batch.run_id), batch
            )
        for batch in batches:
            self._writer(batch.run_id).take(batch.lines)
        for run_id in heads:
            self._writer(run_id).commit()

    def lines(self, run_id: str) -> Iterator[bytes]:
        path = self._path(run_id)
        if path.exists():
            with path.open("rb", buffering=BLOCK_BYTES) as stream:
                yield from stream

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()


def copy_run(run_id: str, source: Engine, target: Engine) -> Head:
    """The head of the run that ``target`` now has, line for line, as ``source`` has it.

    What ``target`` has of it already stays. Raises JournalDamaged, ForkDetected.
    """
    have = target.head(run_id)
    waiting: list[bytes] = []
    last = EMPTY
    for item in scan_lines(source.lines(run_id)):
        if isinstance(item, Damage):
            raise damage_error(Path(run_id), item)
        last = Head(item.seq + 1, item.event_hash)
        if item.seq < have.events:
            if last.events == have.events and last != have:
                raise ForkDetected(
                    f"run {run_id}: event {item.seq} is another one here and there",
                    hint="two writers went on with one run: keep both, under two names",
                )
            continue
        waiting.append(item.raw + b"\n")
        if len(waiting) >= CAPACITY:
            target.write([Batch(run_id, waiting)])
            waiting = []
    if waiting:
        target.write([Batch(run_id, waiting)])
    return last


class Host:
    """Many runs of one process on one engine: whoever commits at the same time shares a barrier."""

    def __init__(
        self, engine: Engine, *, capacity: int = CAPACITY, window_s: float = WINDOW_S
    ) -> None:
        self.engine = engine
        self._group: GroupCommit[Batch, None] = GroupCommit(
            self._write, capacity=capacity, window_s=window_s
        )

    @property
    def counts(self) -> Counts:
        """Commits and barriers so far."""
        return self._group.counts

    def _write(self, batches: Sequence[Batch]) -> list[Exception | None]:
        self.engine.write(batches)
        return [None] * len(batches)

    def writer(self, run_id: str, *, now: Callable[[], str]) -> RunWriter:
        """The one writer of a run, which goes on where the run ended."""
        return HostedWriter(self._group, run_id, now, self.engine.head(run_id))

    def close(self) -> None:
        """Write what was handed in, and let the engine go."""
        self._group.close()
        self.engine.close()


class HostedWriter(Appending):
    """``Writer`` for a run on a Host: the same ``append``, ``commit`` and ``close``."""

    def __init__(
        self,
        group: GroupCommit[Batch, None],
        run_id: str,
        now: Callable[[], str],
        head: Head,
    ) -> None:
        super().__init__(run_id, now, *head)
        self._group = group

    def commit(self) -> None:
        """Return once every appended event is on stable storage."""
        if self._pending:
            self._group.submit(Batch(self.run_id, self._pending))
            self._pending = []

    def close(self) -> None:
        """Commit what is pending."""
        self.commit()
