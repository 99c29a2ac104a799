"""The verbs on what is kept, as typed."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

TOKEN = "ghp_" + "Z9y8" * 9


def test_a_secret_that_slipped_in_is_named(tmp_path: Path) -> None:
    """M09: after the rules changed, files and packs are read again; the place is said, not it."""
    (tmp_path / "clean.txt").write_text("nothing\n")
    (tmp_path / "old.journal.jsonl").write_text(f'{{}}\n{{"text":"{TOKEN}"}}\n')
    with zipfile.ZipFile(tmp_path / "run.pack", "w") as pack:
        pack.writestr("blobs/a", TOKEN)
    command = [sys.executable, "-m", "branchkit", "redaction-check", "--json", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=170)
    assert done.returncode == 90
    assert TOKEN not in done.stdout
    found = [(Path(one["file"]).name, one["line"]) for one in json.loads(done.stdout)["found"]]
    assert found == [("old.journal.jsonl", 2), ("run.pack:blobs/a".rpartition("/")[2], 1)]
    command[-1] = str(tmp_path / "clean.txt")
    assert subprocess.run(command, capture_output=True, timeout=170).returncode == 0
