"""RocksDB as an engine: the events of all runs of a host behind one barrier (R70, J02).

The key is ``run_id``, NUL and the seq in eight bytes, the value the line. Batches are our own,
because rocksdict holds the interpreter's lock while it writes, so RocksDB's write group never forms
across Python threads; ``flush_wal(True)`` is the barrier, and lets others run meanwhile.

By default RocksDB drops, without a word, whatever follows a damaged place of its log. It is opened
in the mode that takes back a torn end only. Whether that end held acknowledged events shows against
``expected``: the number of the last batch and a hash over all batches, written beside the database
after each barrier. It is synced when the database is closed, so after a power cut it is a lower
bound; a process that is killed loses none of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from branchkit import disk
from branchkit.errors import DependencyMissing, JournalDamaged, JournalLocked, JournalPoisoned
from branchkit.journal.engines import Batch, Head, checked_head, followed
from branchkit.journal.format import ZERO_HASH, accumulate

_BATCHES = b"\0batches"  # no run's name holds a NUL
_EXPECTED = "expected"


class RocksEngine:
    """All runs of a host in one database.

    Raises DependencyMissing, JournalLocked, JournalDamaged.
    """

    def __init__(self, directory: Path) -> None:
        self._rocksdict = _rocksdict()
        disk.make_directory(directory)
        self._database = self._open(directory / "db")
        self._heads: dict[str, Head] = {}
        self._poison = ""
        self._expected = disk.open_plain(directory / _EXPECTED)
        try:
            self._count, self._hash = self._checked_batches(directory)
        except BaseException:
            self.close()
            raise

    def _open(self, path: Path) -> Any:
        options = self._rocksdict.Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_wal_recovery_mode(
            self._rocksdict.DBRecoveryMode.tolerate_corrupted_tail_records()
        )
        try:
            return self._rocksdict.Rdict(str(path), options)
        except Exception as error:
            if "lock" in str(error).lower():
                raise JournalLocked(
                    f"{path.parent.name} is held by another process", hint="wait for it, or stop it"
                ) from None
            raise JournalDamaged(
                f"{path.parent.name}: RocksDB cannot read its log: {error}",
                hint="runs that were copied to journals are whole there",
            ) from error

    def _checked_batches(self, directory: Path) -> tuple[int, str]:
        count, _, value = (self._database.get(_BATCHES) or b"0 ").decode().partition(" ")
        expected, _, hashed = disk.read_whole(self._expected).decode().strip().partition(" ")
        if expected and (
            int(count) < int(expected) or (int(count) == int(expected) and value != hashed)
        ):
            raise JournalDamaged(
                f"{directory.name} has {count} batches and had {expected}: its log was shortened",
                hint="acknowledged events are gone: get the runs from their journals or the tiers",
            )
        return int(count), value or ZERO_HASH

    def runs(self) -> list[str]:
        found, cursor = [], self._database.iter()
        cursor.seek(b"\1")
        while cursor.valid():
            name = cursor.key()[:-9]  # NUL and eight bytes
            found.append(name.decode())
            cursor.seek(name + b"\1")
        return found

    def head(self, run_id: str) -> Head:
        if run_id not in self._heads:
            self._heads[run_id] = checked_head(run_id, self.lines(run_id))
        return self._heads[run_id]

    def write(self, batches: Sequence[Batch]) -> None:
        if self._poison:
            raise JournalPoisoned(
                f"this database takes no events: {self._poison}", hint="open it anew"
            )
        heads: dict[str, Head] = {}
        group = self._rocksdict.WriteBatch(raw_mode=True)
        hashed = self._hash
        for batch in batches:
            before = heads.get(batch.run_id) or self.head(batch.run_id)
            heads[batch.run_id] = followed(before, batch)
            for seq, line in enumerate(batch.lines, start=before.events):
                group.put(_key(batch.run_id, seq), line)
            hashed = accumulate(hashed, heads[batch.run_id].event_hash)
        facts = f"{self._count + 1} {hashed}".encode()
        group.put(_BATCHES, facts)
        try:
            self._database.write(group)
            disk.crash_point("commit.after_write")
            self._database.flush_wal(True)
        except Exception as error:
            self._poison = f"a barrier failed: {error}"
            raise JournalPoisoned(
                f"RocksDB could not make a batch durable: {error}",
                hint="open it anew and verify; what was acknowledged is in it",
            ) from error
        disk.write_at(self._expected, facts.ljust(128) + b"\n", 0)
        self._count, self._hash = self._count + 1, hashed
        self._heads |= heads

    def lines(self, run_id: str) -> Iterator[bytes]:
        prefix = run_id.encode() + b"\0"
        cursor = self._database.iter()
        cursor.seek(prefix)
        while cursor.valid() and cursor.key().startswith(prefix):
            yield cursor.value()
            cursor.next()

    def close(self) -> None:
        if self._expected >= 0:
            self._database.close()
            disk.fdatasync(self._expected)
            disk.close(self._expected)
            self._expected = -1


def _key(run_id: str, seq: int) -> bytes:
    return run_id.encode() + b"\0" + seq.to_bytes(8, "big")


def _rocksdict() -> Any:
    try:
        import rocksdict
    except ImportError:
        raise DependencyMissing(
            "RocksDB is not installed", hint="pip install 'branchkit-jupyter[hot]'"
        ) from None
    return rocksdict
