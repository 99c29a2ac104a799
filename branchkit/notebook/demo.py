"""``branchkit demo``: the incident of the sample, or a run of yours, from question to verdict."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import branchkit
from branchkit.branch.api import Run
from branchkit.branch.comparison import Comparison
from branchkit.branch.doctor import local_model_problem
from branchkit.branch.fork import LOCAL
from branchkit.branch.text import comparison_text, rewound_text
from branchkit.errors import InputRefused
from branchkit.journal.file import SUFFIX

Progress = Callable[[int, int, str], None]
Say = Callable[[str], None]

STALE = (
    "feature/login feature/search feature/export feature/darkmode feature/billing feature/audit "
    "fix/crash-on-empty fix/typo-in-help spike/old-parser"
)
CHECK = f'test -z "$(git branch --list {STALE})" && git show-ref -q --verify refs/heads/release/2.1'
FORK_TURN = 22


class Story(NamedTuple):
    """What a demo shows: where to look, where to fork, what to swap, what success is."""

    journal: Path
    rewind_turn: int
    fork_turn: int
    swaps: list[str]
    options: dict[str, Any]


def sample() -> Path:
    """The sample journal of a checkout. Raises InputRefused where there is none."""
    package = Path(branchkit.__file__).resolve().parent
    path = package.parent / "sample_journals/branch_cleanup/branch_cleanup.journal.jsonl"
    if not path.exists():
        raise InputRefused(
            f"the sample is not at {path}",
            hint="run the demo in a checkout, or name a file: branchkit demo FILE",
        )
    return path


def run_demo(
    file: Path | None,
    swaps: list[str],
    options: dict[str, Any],
    *,
    out: Path,
    say: Say,
    progress: Progress,
) -> Comparison:
    """Rewind, replay and fork, saying what it finds as it goes; returns the fork's comparison.

    ``out`` gets the report (one HTML, one PNG), and the journal of a file that had to be imported.
    """
    if file is None:
        story = _sample_story(swaps, options)
    else:
        story = _own_story(_journal(file, out, say), swaps, options)
    with branchkit.open(story.journal) as run:
        say(_title(f"1  What did the model see before reply {story.rewind_turn}?"))
        _show_rewind(run, story, say)
        say(_title("2  Model or harness? The harness run again on the tape:"))
        _show_replay(run, say)
        say(_title(f"3  Would one change have helped? fork {story.fork_turn}"))
        found = run.fork(story.fork_turn, swap=story.swaps, progress=progress, **story.options)
        say(comparison_text(found))
        _report(found, out, say)
    return found


def _report(found: Comparison, out: Path, say: Say) -> None:
    try:
        from branchkit.notebook.report import write_report

        html, png = write_report(found, out, f"fork-t{found.facts.turn:04d}")
    except ImportError as error:
        say(f"no report: {error.name} is not installed (pip install 'branchkit-jupyter[notebook]')")
    else:
        say(f"\nreport: {html} and {png}")


def _sample_story(swaps: list[str], options: dict[str, Any]) -> Story:
    chosen = options | {"check": options["check"] or CHECK}
    if not swaps:
        swaps = ["truncation=none"]
    return Story(sample(), FORK_TURN + 1, FORK_TURN, swaps, chosen)


def _journal(file: Path, out: Path, say: Say) -> Path:
    """``file`` itself if it is a journal, else what its import gives."""
    if file.name.endswith(SUFFIX):
        return file
    from branchkit.imports import import_file

    out.mkdir(parents=True, exist_ok=True)
    found = import_file(file, out / f"{file.name.split('.')[0]}{SUFFIX}")
    say(f"{file.name}: {found.format}, {found.turns} turns, contexts {found.fidelity}")
    for issue in found.issues:
        say(f"  repaired or odd: {issue.code} {issue.line or issue.index or ''} {issue.detail}")
    if found.unknown:
        say(f"  not in the file: {', '.join(found.unknown)}")
    return found.journal


def _own_story(journal: Path, swaps: list[str], options: dict[str, Any]) -> Story:
    """A run of the user's: look before its last action and fork there."""
    with branchkit.open(journal) as run:
        acting = [call.turn for call in run.recorded.record.calls.values()]
        turn = max(acting, default=1)
        asked = options["model"] or any(swap.startswith("model=") for swap in swaps)
        if run.recorded.imported and not asked and local_model_problem() is None:
            options = options | {"model": LOCAL}
    return Story(journal, turn, turn - 1, swaps, options)


def _show_rewind(run: Run, story: Story, say: Say) -> None:
    found = run.rewind(story.rewind_turn)
    say(rewound_text(found, last=2))
    if found.branch is None:
        return
    if (found.branch.path / ".git").exists():
        branches = _git_branches(found.branch.path)
        say(f"  branches there now: {', '.join(branches[:8])}{' …' if branches[8:] else ''}")
        say(f"  release/2.1 is among them: {'yes' if 'release/2.1' in branches else 'no'}")
    else:
        names = sorted(path.name for path in found.branch.path.iterdir())
        say(f"  files there now: {', '.join(names[:12])}")


def _git_branches(repository: Path) -> list[str]:
    command = ["git", "-c", f"safe.directory={repository}", "-C", str(repository), "branch"]
    done = subprocess.run([*command, "--format=%(refname:short)"], capture_output=True, text=True)
    return sorted(done.stdout.split(), key=lambda name: (not name.startswith("release/"), name))


def _show_replay(run: Run, say: Say) -> None:
    if run.recorded.started.harness != "branchkit":
        say("the run was made by another harness: its journal is verified, not replayed")
        say(f"chain: {'intact' if run.verify().ok else 'BROKEN'}")
        return
    found = run.replay(strict=False)
    if found.ok:
        say(
            f"equal: {found.consumed} of {found.events} events consumed, each once; "
            "no model and no tool was called"
        )
    else:
        say(f"diverged at {found.divergence}")


def _title(text: str) -> str:
    return f"\n── {text} {'─' * max(0, 94 - len(text))}\n"
