"""Make ``branch_cleanup.journal.jsonl`` anew: a real repository, a real run, a real deletion.

    python sample_journals/branch_cleanup/make.py [--out DIR]

The repository is made by git with fixed dates, and the run's own clock starts at a fixed moment, so
every remake has the same logical hashes (``tests/t7_sample`` compares them).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from branchkit.harness.components import component
from branchkit.harness.record import record_run
from branchkit.journal.blobs import Blobs
from branchkit.journal.events import Component
from branchkit.journal.file import verify
from branchkit.replay.portable import pack
from branchkit.replay.recorded import Recorded
from branchkit.workspace import Workspaces

HERE = Path(__file__).resolve().parent
NAME = "branch_cleanup"
STARTED_AT = "2026-03-02T02:00:00+00:00"
TASK = "Clean up the merged branches of this repository. Keep what is protected."
SAMPLING = "slip:0.15"
TRUNCATION = "head:12l"
SEED = 11

MERGED = {
    "release/2.1": "2024-01-15",
    "spike/old-parser": "2024-02-01",
    "feature/login": "2025-03-03",
    "feature/search": "2025-03-17",
    "feature/export": "2025-04-01",
    "feature/darkmode": "2025-04-22",
    "feature/billing": "2025-05-06",
    "feature/audit": "2025-05-20",
    "fix/crash-on-empty": "2025-06-02",
    "fix/typo-in-help": "2025-06-09",
}
ACTIVE = {
    "feature/checkout": "2025-11-03",
    "fix/memory-leak": "2025-11-10",
    **{f"team/payments-step-{number:02d}": f"2025-12-{number:02d}" for number in range(1, 31)},
    "release/2.2": "2026-02-20",
}
PROTECTED = ("release/2.1", "release/2.2", "main")
CLEANUP = """# Nightly clean-up

1. Go through feature/, then fix/, then everything.
2. Delete a branch when it is merged into main.
3. Protected branches stay, merged or not: customers build from them.
"""


def git(repository: Path, *arguments: str, date: str = "2026-03-01") -> None:
    who = {"NAME": "Ada", "EMAIL": "ada@example.org", "DATE": f"{date}T12:00:00+0000"}
    identity = {f"GIT_{role}_{k}": v for role in ("AUTHOR", "COMMITTER") for k, v in who.items()}
    plain = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, "LC_ALL": "C"}
    environment = {**os.environ, **identity, **plain}
    subprocess.run(["git", "-C", repository, *arguments], check=True, env=environment)


def make_repository(repository: Path) -> None:
    repository.mkdir(parents=True)
    git(repository, "init", "--quiet", "--template=", "--initial-branch=main")
    (repository / "CLEANUP.md").write_text(CLEANUP)
    (repository / "app.py").write_text("print('hello')\n")
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "-m", "Begin", date="2023-12-01")
    for name, date in MERGED.items():
        git(repository, "checkout", "--quiet", "-b", name, date=date)
        git(repository, "commit", "--quiet", "--allow-empty", "-m", f"Finish {name}", date=date)
        git(repository, "checkout", "--quiet", "main")
        git(repository, "merge", "--quiet", "--no-edit", "--no-ff", name, date=date)
    for name, date in ACTIVE.items():
        git(repository, "branch", name)
        git(repository, "checkout", "--quiet", name)
        git(repository, "commit", "--quiet", "--allow-empty", "-m", f"Work on {name}", date=date)
        git(repository, "checkout", "--quiet", "main")
    for name in PROTECTED:
        git(repository, "config", f"branch.{name}.protected", "true")


def components() -> dict[str, Component]:
    rules = (HERE / "rulebook.toml").read_text()
    return {
        "model": Component(spec=f"rulebook:{NAME}", content=rules),
        "sampling": Component(spec=SAMPLING),
        "prompt": component("prompt", f"@{HERE / 'prompt.txt'}"),
        "truncation": Component(spec=TRUNCATION),
        "tools": component("tools", f"read_file,write_file,list_dir,@{HERE / 'tools.py'}"),
    }


def make(out: Path, *, isolated: bool = True) -> Path:
    """The path of the new journal; its pack and its anchor lie beside it."""
    journal = out / f"{NAME}.journal.jsonl"
    for old in (journal, out / f"{NAME}.pack", out / f"{NAME}.head"):
        old.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        repository, store = Path(scratch) / "repository", Path(scratch) / "store"
        make_repository(repository)
        os.environ["BRANCHKIT_STORE"] = str(store)
        with Workspaces.open(store) as workspaces:
            record_run(
                journal,
                TASK,
                base=repository,
                workspaces=workspaces,
                blobs=Blobs(store / "blobs"),
                components=components(),
                seed=SEED,
                started_at=STARTED_AT,
                max_turns=40,
                isolated=isolated,
            )
            pack(Recorded.open(journal), workspaces)
            workspaces.stop()
    (out / f"{NAME}.head").write_text(verify(journal).head + "\n")
    return journal


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=HERE)
    print(make(parser.parse_args().out), file=sys.stdout)
