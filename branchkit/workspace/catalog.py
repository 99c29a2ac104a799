"""The catalogue of a store: which bases, snapshots and branches there are.

``catalog.log`` holds a row for each fact. The row of a snapshot stands in the log of its layer too,
behind the last change: that is what a freeze waits for (one fdatasync), and a power loss that takes
the end of the catalogue takes no snapshot.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from branchkit.errors import WorkspaceError
from branchkit.workspace import log

MOST_KEPT = 1000  # requests and dropped branches: a client asks again within seconds
ROW_BYTES = 4096  # more than any row of a snapshot takes: names have at most 200 bytes


class Snapshot(NamedTuple):
    """A frozen state. ``files`` and ``changed_bytes`` count what changed since ``parent``."""

    id: str
    parent: str | None
    base: str
    tree_hash: str
    files: int
    changed_bytes: int


class Held(NamedTuple):
    """A snapshot and the layer that makes it from its parent ("" = nothing changed)."""

    snapshot: Snapshot
    layer: str
    log_bytes: int


class Named(NamedTuple):
    """A branch as the catalogue knows it."""

    name: str
    number: int
    base: str
    origin: str | None  # the snapshot it was created from
    current: str | None  # its newest snapshot
    layer: str


def snapshot_row(held: Held, named: Named | None = None) -> dict[str, Any]:
    """The row of a snapshot; ``named`` is its branch as it is after the freeze."""
    row = {"kind": "snapshot", **held._asdict()}
    if named is not None:
        row |= {"branch": named.name, "next_layer": named.layer, "named": named}
    return row


class Catalog:
    """The rows in memory, and the log they come from."""

    def __init__(self, store: Path, reserve: log.Reserve, *, writable: bool) -> None:
        self.bases: set[str] = set()
        self.snapshots: dict[str, Held] = {}
        self.named: dict[str, Named] = {}
        self.layer = 0  # the highest layer number so far
        self.number = 0  # the highest branch number so far
        self.requests: dict[
            str, str
        ] = {}  # clients' requests by their ids -> the snapshot made, or ""
        self.dropped: dict[int, Named] = {}  # branches by number: somebody may have files open
        self._forgotten: set[str] = set()
        self._path = store / "catalog.log"
        self._log: log.Log | None = None
        good_bytes = 0
        for frame in log.read(self._path):
            self._note(_row(frame.value))
            good_bytes = frame.end_bytes
        if writable:
            self._log = log.Log(self._path, good_bytes=good_bytes, reserve=reserve)
        for row in list(self._lost_rows(store / "layers")):
            if writable:
                self.record(row)
            else:
                self._note(row)

    def record(self, row: Mapping[str, Any], *, durable: bool = False, frees: bool = False) -> None:
        """Write one row and take note of it; ``durable``: returns after fdatasync."""
        if self._log is None:
            raise WorkspaceError("this store was opened for reading", hint="a bug: report it")
        self._log.append(row, frees=frees)
        if durable:
            self._log.sync()
        self._note(row)

    def close(self) -> None:
        """Bring every row to stable storage and close the log."""
        if self._log is not None:
            self._log.sync()
            self._log.close()
            self._log = None

    def layers(self) -> set[str]:
        """The layers of all snapshots and branches."""
        used = {held.layer for held in self.snapshots.values()}
        return used | {named.layer for named in self.named.values()}

    def _lost_rows(self, layers: Path) -> Iterator[Mapping[str, Any]]:
        """Rows of snapshots that the logs of their layers have and the catalogue does not."""
        frozen = {held.layer for held in self.snapshots.values()}
        numbers = (int(e.stem) for e in layers.glob("*.log") if e.stem.isdecimal())
        for number in sorted(numbers):  # parents first
            if str(number) in frozen:
                continue
            row = log.last(layers / f"{number}.log", ROW_BYTES)
            # A kill may have come between the digests and the row that a freeze writes behind them.
            if not isinstance(row, dict) or row["kind"] != "snapshot":
                continue
            if row["snapshot"][0] not in self._forgotten:
                yield row

    def _note(self, row: Mapping[str, Any]) -> None:
        if request := row.get("request"):
            self.requests[request] = row["snapshot"][0] if row["kind"] == "snapshot" else ""
            _keep_newest(self.requests)
        match row["kind"]:
            case "base":
                self.bases.add(row["id"])
            case "branch":
                self._note_branch(Named(*row["branch"]))
            case "drop":
                named = self.named.pop(row["name"])
                self.dropped[named.number] = named
                _keep_newest(self.dropped)
            case "snapshot":
                self._note_snapshot(row)
            case "forget":
                self._forgotten.update(row["ids"])
                for each in row["ids"]:
                    del self.snapshots[each]
            case other:
                raise WorkspaceError(
                    f"{self._path} holds a row of unknown kind {other!r}",
                    hint="open it with the newer branchkit that wrote it",
                )

    def _note_branch(self, named: Named) -> None:
        self.named[named.name] = named
        self.number = max(self.number, named.number)
        self.layer = max(self.layer, int(named.layer))

    def _note_snapshot(self, row: Mapping[str, Any]) -> None:
        snapshot = Snapshot(*row["snapshot"])
        self.snapshots[snapshot.id] = Held(snapshot, row["layer"], row["log_bytes"])
        if "named" in row:
            self._note_branch(Named(*row["named"]))
        elif name := row.get("branch"):  # as it was written before rows held the whole branch
            layer = row["next_layer"]
            self._note_branch(self.named[name]._replace(current=snapshot.id, layer=layer))


def _keep_newest(found: dict[Any, Any]) -> None:
    if len(found) > MOST_KEPT:
        del found[next(iter(found))]


def _row(value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise WorkspaceError("the catalogue holds no row where one must be", hint="restore it")
    return value
