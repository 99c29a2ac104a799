"""One journal file from both sides: the names of ``scan``, and the one writer (R1, R15, R20, R24).

Writing refuses a damaged file, with one exception: a torn last line can only be a batch that was
never acknowledged, so it is set aside in ``FILE.torn-N`` and cut off; where all of it but the
newline is there, the newline is put back.

Its named crash points are ``commit.before_write``, ``commit.after_write``, ``commit.after_sync``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from branchkit import disk
from branchkit.errors import DiskFull, ForkDetected, JournalDamaged, JournalPoisoned
from branchkit.journal.anchor import keep_head
from branchkit.journal.appending import Appending
from branchkit.journal.chain import link
from branchkit.journal.events import Event, Payload
from branchkit.journal.format import ZERO_HASH
from branchkit.journal.scan import (
    SUFFIX,
    Damage,
    Line,
    Verdict,
    damage_error,
    read,
    scan,
    verify,
)

__all__ = [
    "SUFFIX", "Damage", "Line", "Verdict", "Writer", "damage_error", "read", "scan", "verify",
]  # fmt: skip

_FULL = "the disk was full"


class Writer(Appending):
    """The one writer of a journal file. ``append`` buffers, ``commit`` makes durable.

    After a failed fdatasync the writer is poisoned: a second fdatasync would say OK with the data
    lost (reproduced on ext4 and XFS), so nothing is acknowledged any more.
    """

    def __init__(self, path: Path, *, run_id: str, now: Callable[[], str]) -> None:
        """Create ``path`` at the first commit, or go on at the end of an intact one.

        Raises JournalLocked, JournalDamaged.
        """
        super().__init__(run_id, now, 0, ZERO_HASH)
        self.path = path
        self._poisoned = ""  # why nothing is taken any more
        self._fd: int | None = None
        self._closed = False
        self._end = 0
        self._durable = (0, ZERO_HASH)  # seq and head at the last commit
        disk.make_directory(path.parent)
        self._lock_path = path.with_name(path.name + ".lock")
        self._lock = disk.lock(self._lock_path)
        try:
            if path.exists():
                self._adopt()
        except BaseException:
            disk.unlock(self._lock, self._lock_path)
            raise

    def _adopt(self) -> None:
        verdict = verify(self.path)
        if verdict.damage:
            self._repair_tail(verdict)
            verdict = verify(self.path)
        self.seq, self.head, self._end = verdict.events, verdict.head, verdict.end
        self._durable = (self.seq, self.head)
        self._fd = disk.open_append(self.path)

    def _repair_tail(self, verdict: Verdict) -> None:
        damage = verdict.damage[0]
        if damage.code not in ("torn_line", "lost_newline") or verdict.events == 0:
            raise damage_error(self.path, damage)
        if damage.code == "torn_line":
            self._set_tail_aside(verdict.end)
        fd = disk.open_append(self.path)
        try:
            if damage.code == "lost_newline":
                disk.write_all(fd, b"\n")
            else:
                disk.truncate(fd, verdict.end)
            disk.fdatasync(fd)
        finally:
            os.close(fd)

    def _set_tail_aside(self, end: int) -> None:
        with self.path.open("rb") as stream:
            stream.seek(end)
            tail = stream.read()
        number = 0
        while (aside := self.path.with_name(f"{self.path.name}.torn-{end}.{number}")).exists():
            number += 1
        disk.write_durably(aside, tail)

    def append(self, payload: Payload, *, turn: int, step_id: str) -> Event:
        """Give the event its place in the chain. It is not durable before ``commit`` returns.

        Raises ValueError or TypeError for a payload that could not be read back; the writer is as
        before.
        """
        self._refuse_if_poisoned()
        return super().append(payload, turn=turn, step_id=step_id)

    def take(self, lines: Sequence[bytes]) -> None:
        """``append`` of lines sealed before. Raises ForkDetected if they do not follow."""
        self._refuse_if_poisoned()
        for line in lines:
            place = link(line[:-1])
            if place is None or (place.seq, place.prev_event_hash) != (self.seq, self.head):
                raise ForkDetected(
                    f"a line does not follow event {self.seq - 1} of {self.path.name}",
                    hint="one journal has one writer",
                )
            self._pending.append(line)
            self.seq, self.head = self.seq + 1, place.event_hash

    def commit(self) -> None:
        """Return once every appended event is on stable storage.

        Raises DiskFull (everything acknowledged before is safe, the rest is taken back),
        JournalPoisoned after a failed write or fdatasync. In either case the writer takes no more:
        the numbers and hashes of the lost events are spent. Reopen the journal.
        """
        self._refuse_if_poisoned()
        if not self._pending:
            return
        data = b"".join(self._pending)
        disk.crash_point("commit.before_write")
        if self._fd is None:
            self._create(data)
        else:
            self._write(self._fd, data)
        disk.crash_point("commit.after_sync")

    def _create(self, data: bytes) -> None:
        if self.path.exists():
            self._poisoned = "somebody else created the file"
            raise JournalDamaged(
                f"{self.path.name} appeared while this writer was about to create it",
                hint="one journal has one writer: give this run another name",
            )
        self._poisoned = "it could not be created"
        try:
            disk.write_durably(self.path, data)
        except DiskFull:
            self._poisoned = _FULL
            raise
        except OSError as error:
            raise self._failed("creating", error) from error
        self._fd = disk.open_append(self.path)
        self._durable = (self.seq, self.head)
        self._end, self._pending, self._poisoned = len(data), [], ""

    def _write(self, fd: int, data: bytes) -> None:
        if disk.size_bytes(fd) != self._end:
            self._poisoned = "somebody else wrote to it"
            raise JournalDamaged(
                f"{self.path.name} is not {self._end} bytes long: somebody else wrote to it",
                hint="run `branchkit verify` on it; one journal has one writer",
            )
        durable = (self.seq, self.head)
        try:
            disk.write_all(fd, data)
            disk.crash_point("commit.after_write")
            self._sync(fd)
            # One statement without a call, so that no Ctrl-C comes between: else the batch that is
            # on disk would be written once more.
            self._end, self._pending, self._durable = self._end + len(data), [], durable
        except DiskFull:
            self._poisoned = _FULL
            self._take_back(fd)
            raise
        except OSError as error:
            self._poisoned = f"a write failed: {error.strerror}"
            raise self._failed("writing", error) from error
        except JournalPoisoned:
            raise
        except BaseException:
            # Ctrl-C in a notebook. The batch was not acknowledged: it may be committed again.
            self._poisoned = "a commit was interrupted and could not be taken back"
            self._take_back(fd)
            self._poisoned = ""
            raise

    def _sync(self, fd: int) -> None:
        try:
            disk.fdatasync(fd)
        except OSError as error:
            self._poisoned = f"fdatasync failed: {error.strerror}"
            raise self._failed("fdatasync of", error) from error

    def _take_back(self, fd: int) -> None:
        try:
            disk.truncate(fd, self._end)
            disk.fdatasync(fd)
        except OSError as error:
            self._poisoned = f"a cut failed: {error.strerror}"
            raise self._failed("cutting", error) from error

    def take_back(self) -> None:
        """Forget what was appended since the last commit; its numbers are free again.

        For a caller that gave none of those events away: after DiskFull the writer takes events
        again. Raises JournalPoisoned if it was poisoned by anything else.
        """
        if self._poisoned != _FULL:
            self._refuse_if_poisoned()
        self.seq, self.head = self._durable
        self._pending, self._poisoned = [], ""

    def _failed(self, what: str, error: OSError) -> JournalPoisoned:
        return JournalPoisoned(
            f"{what} {self.path.name} failed: {error.strerror}; the last batch may be lost",
            hint="reopen and verify; do not retry the sync, it would report success",
        )

    def _refuse_if_poisoned(self) -> None:
        if self._poisoned:
            raise JournalPoisoned(
                f"{self.path.name} takes no events: {self._poisoned}",
                hint="reopen the journal; what was acknowledged is in it",
            )

    def close(self) -> None:
        """Commit what is pending, keep the head in ``NAME.head``, and let the lock go.

        A second call does nothing.
        """
        if self._closed:
            return
        self._closed = True
        try:
            if not self._poisoned:
                self.commit()
                if self._durable[0]:
                    keep_head(self.path, self._durable[1])
        finally:
            self._poisoned = self._poisoned or "it is closed"
            if self._fd is not None:
                os.close(self._fd)
                self._fd = None
            disk.unlock(self._lock, self._lock_path)
