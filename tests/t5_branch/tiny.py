"""A tiny run on a tiny git repository: four turns of a stand-in without any slip.

Turn 1 shows thirty lines, of which ``head:10l`` hides the one that says what to keep; turns 2 and 3
note something and commit it; turn 4 says that it is done. A model that had seen the hidden line
would note "kept" in turn 3.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import NamedTuple

from branchkit.branch.run import Job, Limits
from branchkit.harness.components import component
from branchkit.harness.record import record_run
from branchkit.journal.blobs import Blobs
from branchkit.journal.events import Component
from branchkit.replay.portable import pack
from branchkit.replay.recorded import Recorded
from branchkit.workspace import Workspaces, tree_hash

CHECK = "grep -q kept notes.txt"

TOOLS = '''
import os, signal, subprocess
from pathlib import Path
from branchkit.harness.tools import tool

@tool(effect="pure")
def show(lines: int) -> str:
    """Show numbered lines."""
    return "\\n".join([*(f"line {n}" for n in range(1, lines)), "SECRET keep"])

@tool(effect="workspace")
def note(text: str) -> str:
    """Write a line into notes.txt and commit it."""
    with Path("notes.txt").open("a") as stream:
        stream.write(text + "\\n")
    for words in (["add", "notes.txt"], ["commit", "-q", "-m", text]):
        subprocess.run(["git", *words], check=True, capture_output=True)
    return subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True).stdout

@tool(effect="external")
def kill_server() -> str:
    """Kill the server of this sandbox's tools."""
    os.kill(os.getppid(), signal.SIGKILL)
    return "unreachable"

@tool(effect="external")
def kill_worker() -> str:
    """Kill the worker process that this branch runs in (reachable without a sandbox only)."""
    pid = os.getppid()
    while b"branchkit.process import work" not in Path(f"/proc/{pid}/cmdline").read_bytes():
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(pid, signal.SIGKILL)
    signal.pause()
'''

RULES = """
[[rule]]
why = "look first"
unless = 'show \\{'
call = "show"
arguments = { lines = 30 }

[[rule]]
why = "note something"
unless = 'note \\{"text":"(first|slipped|dictated)"\\}'
call = "note"
arguments = { text = "first" }
slip = { call = "note", arguments = { text = "slipped" } }

[[rule]]
why = "what the secret asks for"
find = "SECRET keep"
unless = 'note \\{"text":"kept"\\}'
call = "note"
arguments = { text = "kept" }

[[rule]]
why = "note something else"
unless = 'note \\{"text":"second"\\}'
call = "note"
arguments = { text = "second" }

[[rule]]
why = "nothing is left"
say = "done"
"""


class Tiny(NamedTuple):
    """The recorded run, where it was recorded from, and that base's hash before."""

    journal: Path
    base: Path
    base_hash: str

    def open(self) -> Recorded:
        return Recorded.open(self.journal)


def make(folder: Path, store: Path) -> Tiny:
    """Record the tiny run into ``folder``, with its pack."""
    base, journal = folder / "base", folder / "tiny.journal.jsonl"
    base.mkdir()
    (base / "README").write_text("tiny\n")
    person = {"NAME": "a", "EMAIL": "a@b", "DATE": "2026-01-01T00:00:00Z"}
    who = {f"GIT_{role}_{k}": v for role in ("AUTHOR", "COMMITTER") for k, v in person.items()}
    for words in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-q", "-m", "begin"]):
        env = {**os.environ, **who, "GIT_CONFIG_GLOBAL": os.devnull}
        subprocess.run(["git", "-C", base, *words], check=True, env=env)
    before = tree_hash(base)
    (folder / "tools.py").write_text(TOOLS)
    parts = {
        "model": Component(spec="rulebook:tiny", content=RULES),
        "sampling": Component(spec="slip:0"),
        "truncation": Component(spec="head:10l"),
        "tools": component("tools", f"bash,@{folder / 'tools.py'}"),
    }
    with Workspaces.open(store) as workspaces:
        record_run(
            journal, "note it", base=base, workspaces=workspaces, blobs=Blobs(store / "blobs"),
            components=parts, seed=3, started_at="2026-01-01T00:00:00+00:00", max_turns=9,
        )  # fmt: skip
        pack(Recorded.open(journal), workspaces)
    return Tiny(journal, base, before)


def job(tiny: Tiny, store: Path, *, turn: int = 3, **changes: object) -> Job:
    """One branch of the control arm, to be run in this process."""
    directory = store / "forks" / "by-hand"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "parent.json").write_text(json.dumps({"journal": str(tiny.journal)}))
    plain = Job(
        parent=str(tiny.journal), turn=turn, swap=None, arm="control", number=0, seed=1,
        directory=str(directory), store=str(store), backend="auto", limits=Limits(), check=None,
        base=None, redeliver_from=1, isolated=True, model_url=None, model=None,
    )  # fmt: skip
    return plain._replace(**changes)  # type: ignore[arg-type]
