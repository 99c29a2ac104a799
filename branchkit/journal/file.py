"""Reading and writing ``NAME.journal.jsonl``: good prefix, damage, durable append (R1, R15).

A broken journal is a fact, not a crash: reading returns the intact prefix and a ``Damage`` for the
first thing that is wrong. Writing refuses a damaged file, with one exception: a torn last line can
only be a batch that was never acknowledged, so it is set aside in ``FILE.torn-N`` and cut off.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from branchkit import disk
from branchkit.errors import DiskFull, InputRefused, JournalDamaged, JournalPoisoned
from branchkit.journal.chain import line_problem, link, parse_line, seal
from branchkit.journal.events import Event, Payload
from branchkit.journal.format import ZERO_HASH

SUFFIX = ".journal.jsonl"


class Damage(NamedTuple):
    """The first thing wrong with a journal. ``line`` counts from 1, ``offset`` in bytes from 0."""

    seq: int
    line: int
    offset: int
    code: str
    detail: str


class Line(NamedTuple):
    """An intact line in its place in the chain."""

    raw: bytes
    offset: int
    seq: int
    turn: int
    event_hash: str


class Verdict(NamedTuple):
    """What ``verify`` found. ``head`` is the hash of the last intact event."""

    ok: bool
    events: int
    head: str
    end: int
    damage: list[Damage]


def scan(path: Path) -> Iterator[Line | Damage]:
    """The intact lines of ``path`` in order, then at most one Damage; streams, holds one line."""
    seq, prev, offset = 0, ZERO_HASH, 0
    try:
        stream = path.open("rb")
    except OSError as error:
        raise InputRefused(
            f"{path} cannot be read: {error.strerror}", hint="give the path of a NAME.journal.jsonl"
        ) from None
    with stream:
        for number, raw in enumerate(stream, start=1):
            problem = _problem(raw, seq, prev)
            if problem:
                code, detail = problem
                yield Damage(seq, number, offset, code, detail)
                return
            place = link(raw[:-1])
            assert place is not None
            yield Line(raw[:-1], offset, seq, place.turn, place.event_hash)
            seq, prev, offset = seq + 1, place.event_hash, offset + len(raw)
    if seq == 0:
        yield Damage(0, 1, 0, "empty", "the file holds no event")


def _problem(raw: bytes, seq: int, prev: str) -> tuple[str, str] | None:
    if not raw.endswith(b"\n"):
        return "torn_line", f"the last line ends after {len(raw)} bytes without a newline"
    problem = line_problem(raw[:-1])
    if problem:
        return problem, f"event {seq} is not what its hash says"
    place = link(raw[:-1])
    if place is None:
        return "not_an_event", "the envelope is not one that branchkit writes"
    if place.seq != seq:
        code = "duplicate_seq" if place.seq < seq else "seq_gap"
        return code, f"event {seq} was expected here, this is event {place.seq}"
    if place.prev_event_hash != prev:
        return "broken_link", f"event {seq} does not follow the event before it"
    return None


def verify(path: Path, *, anchor: str | None = None) -> Verdict:
    """Check the whole chain without parsing it; with ``anchor``, also that nothing was cut or forged.

    ``anchor`` is an event hash kept elsewhere. It must be the hash of the last event, because a tail
    that was cut off or written anew is consistent in itself and shows in no other way.
    """
    events, head, end = 0, ZERO_HASH, 0
    damage: list[Damage] = []
    for item in scan(path):
        if isinstance(item, Damage):
            damage.append(item)
        else:
            events, head, end = events + 1, item.event_hash, item.offset + len(item.raw) + 1
    if anchor is not None and not damage and head != anchor:
        detail = f"the last event is {head}, the anchor says {anchor}"
        damage.append(Damage(events, events + 1, end, "anchor_mismatch", detail))
    return Verdict(not damage, events, head, end, damage)


def read(path: Path) -> tuple[list[Event], list[Damage]]:
    """The typed events of the good prefix, and the damage after it (empty if there is none).

    Raises InputRefused, naming file, line and event, for an intact line of unknown kind or version.
    """
    events: list[Event] = []
    damage: list[Damage] = []
    for item in scan(path):
        if isinstance(item, Damage):
            damage.append(item)
            continue
        try:
            events.append(parse_line(item.raw))
        except InputRefused as error:
            raise InputRefused(
                f"{path.name} line {item.seq + 1}, event {item.seq}: {error.message}",
                hint=error.hint,
            ) from None
    return events, damage


def damage_error(path: Path, damage: Damage) -> JournalDamaged:
    """The error that a verb raises when it cannot work with a damaged journal."""
    return JournalDamaged(
        f"{path.name} line {damage.line}, byte {damage.offset}, event {damage.seq}: "
        f"{damage.code}: {damage.detail}",
        hint=f"events 0..{damage.seq - 1} are intact: `branchkit show {path.name}` reads them; "
        "get the rest from a copy",
    )


class Writer:
    """The one writer of a journal file. ``append`` buffers, ``commit`` makes durable.

    After a failed fdatasync the writer is poisoned: a second fdatasync would say OK with the data
    lost (reproduced on ext4 and XFS), so nothing is acknowledged any more.
    """

    def __init__(self, path: Path, *, run_id: str, now: Callable[[], str]) -> None:
        """Create ``path``, or go on at the end of an intact one. Raises JournalLocked, JournalDamaged."""
        self.path = path
        self.run_id = run_id
        self._now = now
        self._pending: list[bytes] = []
        self._poisoned = False
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock_path = path.with_name(path.name + ".lock")
        self._lock = disk.lock(self._lock_path)
        self._fd: int | None = None
        self.seq, self.head, self._end = 0, ZERO_HASH, 0
        try:
            if path.exists():
                self._adopt()
        except BaseException:
            self._unlock()
            raise

    def _adopt(self) -> None:
        verdict = verify(self.path)
        if verdict.damage:
            self._set_torn_tail_aside(verdict)
        self.seq, self.head, self._end = verdict.events, verdict.head, verdict.end
        self._fd = disk.open_append(self.path)

    def _set_torn_tail_aside(self, verdict: Verdict) -> None:
        damage = verdict.damage[0]
        if damage.code != "torn_line" or verdict.events == 0:
            raise damage_error(self.path, damage)
        with self.path.open("rb") as stream:
            stream.seek(verdict.end)
            tail = stream.read()
        disk.write_durably(self.path.with_name(f"{self.path.name}.torn-{verdict.end}"), tail)
        fd = disk.open_append(self.path)
        try:
            disk.truncate(fd, verdict.end)
            disk.fdatasync(fd)
        finally:
            os.close(fd)

    def append(self, payload: Payload, *, turn: int, step_id: str) -> Event:
        """Give the event its place in the chain. It is not durable before ``commit`` returns."""
        self._refuse_if_poisoned()
        event, line = seal(
            payload,
            seq=self.seq,
            turn=turn,
            step_id=step_id,
            recorded_at=self._now(),
            run_id=self.run_id,
            prev_event_hash=self.head,
        )
        self.seq, self.head = self.seq + 1, event.event_hash
        self._pending.append(line)
        return event

    def commit(self) -> None:
        """Return once every appended event is on stable storage.

        Raises DiskFull (everything acknowledged before is safe, the rest is taken back),
        JournalPoisoned after a failed fdatasync.
        """
        self._refuse_if_poisoned()
        if not self._pending:
            return
        data = b"".join(self._pending)
        if self._fd is None:
            disk.write_durably(self.path, data)
            self._fd = disk.open_append(self.path)
        else:
            self._write(data)
        self._end += len(data)
        self._pending.clear()

    def _write(self, data: bytes) -> None:
        assert self._fd is not None
        if disk.size_bytes(self._fd) != self._end:
            self._poisoned = True
            raise JournalDamaged(
                f"{self.path.name} is not {self._end} bytes long: somebody else wrote to it",
                hint="run `branchkit verify` on it; one journal has one writer",
            )
        try:
            disk.write_all(self._fd, data)
        except DiskFull:
            disk.truncate(self._fd, self._end)
            self._poisoned = True  # seq and head of the pending events are spent
            raise
        try:
            disk.fdatasync(self._fd)
        except OSError as error:
            self._poisoned = True
            raise JournalPoisoned(
                f"fdatasync of {self.path.name} failed: {error.strerror}; the last batch may be lost",
                hint="reopen and verify; do not retry the sync, it would report success",
            ) from error

    def _refuse_if_poisoned(self) -> None:
        if self._poisoned:
            raise JournalPoisoned(
                f"{self.path.name} takes no events after a failed write",
                hint="reopen the journal; what was acknowledged is in it",
            )

    def close(self) -> None:
        """Commit what is pending and let the lock go."""
        try:
            if not self._poisoned:
                self.commit()
        finally:
            if self._fd is not None:
                os.close(self._fd)
                self._fd = None
            self._unlock()

    def _unlock(self) -> None:
        # Unlink while the lock is held: nobody can lock a name that is about to go.
        self._lock_path.unlink(missing_ok=True)
        os.close(self._lock)
