"""Pack a run: everything it needs beside its journal into ``NAME.pack`` (docs/formats.md)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from branchkit.errors import BlobMissing
from branchkit.journal.events import ToolResult
from branchkit.journal.pack import Readable, pack_path, write_pack
from branchkit.replay.recorded import Recorded
from branchkit.workspace import Workspaces, export


def pack(recorded: Recorded, workspaces: Workspaces) -> Path:
    """The path of the pack, written durably. Raises BlobMissing if a full text is not here."""
    path = pack_path(recorded.path)
    write_pack(path, _members(recorded, workspaces))
    return path


def _members(recorded: Recorded, workspaces: Workspaces) -> Iterator[tuple[str, bytes | Readable]]:
    for event in recorded.events:
        blob = event.payload.blob if isinstance(event.payload, ToolResult) else None
        if blob is None:
            continue
        try:
            yield f"blobs/{blob}", recorded.blobs(blob)
        except KeyError:
            raise BlobMissing(
                f"turn {event.turn}: blob {blob} is not in the store", hint="set BRANCHKIT_STORE"
            ) from None
    if recorded.record.base is not None:
        snapshots = [snapshot.id for snapshot in recorded.record.snapshots]
        yield from export(workspaces, base=recorded.record.base, snapshots=snapshots)
