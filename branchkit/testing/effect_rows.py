"""The rows of the counting service, and their audit: SQLite, one row an effect, nothing else.

``Rows`` is written by the service alone. ``audit`` and ``write_csv`` read the file by themselves,
so what they say depends neither on the service's answers nor on whoever drove it.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

State = Literal["done", "queued", "absent"]

# A key and its receipt are in the table that the effect is in or in a second one of the same
# transaction; after a crash either both are there or neither.
_SCHEMA = """
CREATE TABLE IF NOT EXISTS effects (
    id INTEGER PRIMARY KEY, operation TEXT NOT NULL, key TEXT, receipt TEXT NOT NULL,
    parameters TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS keys (
    key TEXT PRIMARY KEY, receipt TEXT NOT NULL, sha256 TEXT NOT NULL, clock_s REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS queue (
    id INTEGER PRIMARY KEY, operation TEXT NOT NULL, key TEXT, receipt TEXT NOT NULL,
    parameters TEXT NOT NULL
);
"""


class Effect(NamedTuple):
    """One change of the world; ``operation`` is the caller's name of what it wanted done once."""

    id: int
    operation: str
    key: str | None
    receipt: str
    parameters: str


class Answered(NamedTuple):
    """What a request came to: a new effect, the receipt of an old one, or a mismatch (None)."""

    receipt: str | None
    repeated: bool = False


class Audit(NamedTuple):
    """What the rows say: how many, of how many operations, and which were done again."""

    rows: int
    operations: int
    repeated: dict[str, int]

    @property
    def duplicates(self) -> int:
        """Rows beyond the first of each operation."""
        return self.rows - self.operations


class Rows:
    """The service's side of the file; every method returns after its COMMIT (synchronous=FULL)."""

    def __init__(self, path: Path) -> None:
        self._one_at_a_time = threading.Lock()
        # The handler of each request is a thread of its own; the lock above orders them.
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        self._db.executescript(_SCHEMA)

    def plain(self, operation: str, key: str | None, parameters: str, *, queued: bool) -> Answered:
        """A new row, whatever came before."""
        with self._transaction():
            return Answered(self._insert(operation, key, parameters, queued))

    def keyed(
        self,
        operation: str,
        key: str,
        parameters: str,
        *,
        queued: bool,
        clock_s: float,
        lifetime_s: float | None,
    ) -> Answered:
        """A new row and its key, or the receipt that is kept under ``key``.

        A key older than ``lifetime_s`` is forgotten first, as services do; a repeat that comes
        later than that is a new effect.
        """
        sha256 = hashlib.sha256(parameters.encode()).hexdigest()
        with self._transaction():
            if lifetime_s is not None:
                self._db.execute("DELETE FROM keys WHERE clock_s < ?", (clock_s - lifetime_s,))
            known = self._db.execute(
                "SELECT receipt, sha256 FROM keys WHERE key = ?", (key,)
            ).fetchone()
            if known is not None:
                return Answered(known[0] if known[1] == sha256 else None, repeated=True)
            receipt = self._insert(operation, key, parameters, queued)
            self._db.execute(
                "INSERT INTO keys VALUES (?, ?, ?, ?)", (key, receipt, sha256, clock_s)
            )
            return Answered(receipt)

    def deliver(self) -> int:
        """Make an effect of each queued request; returns how many there were."""
        with self._transaction():
            columns = "operation, key, receipt, parameters"
            moved = self._db.execute(
                f"INSERT INTO effects ({columns}) SELECT {columns} FROM queue ORDER BY id"
            ).rowcount
            self._db.execute("DELETE FROM queue")
            return moved

    def state(self, operation: str) -> tuple[State, str | None]:
        """Whether ``operation`` is done, waits in the queue, or is not known; its first receipt."""
        tables: tuple[tuple[State, str], ...] = (("done", "effects"), ("queued", "queue"))
        with self._one_at_a_time:
            for state, table in tables:
                found = self._db.execute(
                    f"SELECT receipt FROM {table} WHERE operation = ? ORDER BY id LIMIT 1",
                    (operation,),
                ).fetchone()
                if found is not None:
                    return state, str(found[0])
        return "absent", None

    def close(self) -> None:
        """Let the file go; its content is durable already."""
        with self._one_at_a_time:
            self._db.close()

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._one_at_a_time:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    def _insert(self, operation: str, key: str | None, parameters: str, queued: bool) -> str:
        so_far = "SELECT (SELECT count(*) FROM effects) + (SELECT count(*) FROM queue)"
        receipt = f"receipt-{self._db.execute(so_far).fetchone()[0] + 1}"
        self._db.execute(
            f"INSERT INTO {'queue' if queued else 'effects'} (operation, key, receipt, parameters)"
            " VALUES (?, ?, ?, ?)",
            (operation, key, receipt, parameters),
        )
        return receipt


def effects(db: Path | str) -> list[Effect]:
    """Every effect in the order in which it happened, read from the file."""
    with contextlib.closing(sqlite3.connect(db)) as connection:
        connection.execute("PRAGMA query_only=1")
        rows = connection.execute(
            "SELECT id, operation, key, receipt, parameters FROM effects ORDER BY id"
        )
        return [Effect(*row) for row in rows]


def audit(db: Path | str) -> Audit:
    """The count of the rows in ``db``, by operation."""
    return count_rows(effect.operation for effect in effects(db))


def count_rows(operations: Iterable[str]) -> Audit:
    """The count of rows of which each names its operation."""
    counted = Counter(operations)
    repeated = {name: times for name, times in sorted(counted.items()) if times > 1}
    return Audit(sum(counted.values()), len(counted), repeated)


def write_csv(db: Path, target: Path) -> int:
    """Write the rows of ``db`` as CSV, for a recount without SQLite; returns how many."""
    rows = effects(db)
    with target.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(Effect._fields)
        writer.writerows(rows)
    return len(rows)
