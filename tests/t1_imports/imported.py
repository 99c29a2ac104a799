"""What the import tests share: the fixtures, an import into a folder of its own, its contexts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from branchkit.imports import Imported, import_file
from branchkit.journal.events import Event, Message
from branchkit.replay.recorded import Recorded
from branchkit.replay.rewind import rewind

FIXTURES = Path(__file__).parent / "fixtures"
FILES = sorted(path.name for path in FIXTURES.iterdir() if path.is_file())


class Opened(NamedTuple):
    """An import and its journal, opened as any run is."""

    imported: Imported
    recorded: Recorded

    def context(self, turn: int) -> list[Message]:
        """What ``%rewind`` shows."""
        return list(rewind(self.recorded, turn).context)

    def of_kind(self, kind: str) -> list[Event]:
        return [event for event in self.recorded.events if event.kind == kind]

    def statuses(self) -> list[str]:
        return [call.status for call in self.imported.calls]

    def codes(self) -> list[str]:
        return [issue.code for issue in self.imported.issues]


def opened(path: Path, folder: Path) -> Opened:
    """The file ``path``, imported into ``folder``."""
    imported = import_file(path, folder / f"{path.name}.journal.jsonl")
    return Opened(imported, Recorded.open(imported.journal))


def fixture_json(name: str) -> Any:
    return json.loads((FIXTURES / name).read_bytes())


def saved(folder: Path, name: str, value: Any) -> Path:
    """``value`` as a JSON file."""
    path = folder / name
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


def saved_lines(folder: Path, *lines: bytes, name: str = "session.jsonl") -> Path:
    path = folder / name
    path.write_bytes(b"\n".join(lines))
    return path
