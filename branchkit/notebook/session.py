"""The one session of a kernel: the open run and what was last found, and the magics' twins.

Magics and twins share it, so ``%journal FILE`` and then ``fork(22, …)`` is one session.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from branchkit.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

    from branchkit.branch.api import Run
    from branchkit.branch.commitment import Commitment, Plan
    from branchkit.branch.comparison import Comparison
    from branchkit.replay.rewind import Rewound
    from branchkit.replay.strict import Replayed
    from branchkit.replay.when import Blame, When

CELL = "@cell"  # in a swap's spec: the text of the cell


class Session:
    """What the magics act on. ``workspace`` is what forks of a run without one start from."""

    def __init__(self) -> None:
        self._run: Run | None = None
        self._comparison: Comparison | None = None
        self.rewound: Rewound | None = None
        self.workspace: str | None = None

    @property
    def run(self) -> Run:
        """The open run. Raises UsageError where there is none."""
        if self._run is None:
            raise UsageError("no journal is open", hint="open one first: %journal FILE")
        return self._run

    @property
    def comparison(self) -> Comparison:
        """The last fork or comparison. Raises UsageError where there is none."""
        if self._comparison is None:
            raise UsageError("nothing was forked yet", hint="first: %fork T --swap COMPONENT=SPEC")
        return self._comparison

    def journal(self, file: Path | str, *, workspace: Path | str | None = None) -> Run:
        """The run in ``file``, which is the open one from now on."""
        from branchkit.branch.api import open_run

        opened = open_run(file)
        if self._run is not None:
            self._run.close()
        self._run, self._comparison, self.rewound = opened, None, None
        self.workspace = None if workspace is None else str(workspace)
        return opened

    def rewind(self, turn: int) -> Rewound:
        """The open run just before reply ``turn``."""
        self.rewound = self.run.rewind(turn)
        return self.rewound

    def fork(
        self,
        turn: int,
        *,
        swap: str | Sequence[str] = (),
        n: int = 1,
        check: str | None = None,
        cell: str | None = None,
        **options: Any,
    ) -> Comparison:
        """The comparison of a fork of the open run, also after an interrupt (then partial)."""
        from branchkit.notebook.progress import fork_progress, fork_summary

        run = self.run
        swaps = _with_cell([swap] if isinstance(swap, str) else list(swap), cell)
        if self.workspace is not None:
            options.setdefault("workspace", self.workspace)
        with fork_progress(run, turn, swaps, n=n, options=options) as progress:
            found = run.fork(
                turn, swap=swaps, n=n, check=check, progress=progress.update, **options
            )
            progress.finish(fork_summary(found))
        self._comparison = found
        return found

    def commitment(self, check: str, *, dry_run: bool = False, **options: Any) -> Commitment | Plan:
        """The point of commitment of the open run, or with ``dry_run`` what that may cost."""
        from branchkit.notebook.progress import Progress

        run = self.run
        if self.workspace is not None:
            options.setdefault("workspace", self.workspace)
        planned = run.commitment_plan(check, **options)
        if dry_run:
            return planned
        with Progress("commitment", things="branches", note=planned.sentence()) as progress:
            found = run.commitment(check, progress=progress.update, **options)
            progress.finish(f"{len(found.probes)} probes of {planned.n} branches")
        return found

    def when(self, check: str, **options: Any) -> When:
        """Which turn of the open run made ``check`` say something else."""
        from branchkit.notebook.progress import Progress

        run = self.run
        with Progress("when", things="turns") as progress:
            found = run.when(check, progress=progress.update, **options)
            progress.finish(f"{len(found.results)} turns looked at, no model asked")
        return found

    def compare(
        self, directory: Path | str | None = None, *, volatile: Path | str | None = None
    ) -> Comparison:
        """The last comparison, or that of an earlier fork from its directory.

        ``volatile`` is a file of masks, with which the last one is read again too.
        """
        if directory is None and volatile is None:
            return self.comparison
        from branchkit.branch.api import compare as load

        where = self.comparison.directory if directory is None else directory
        if where is None:
            raise UsageError("the last comparison lies in no directory", hint="name one")
        self._comparison = load(where, volatile=volatile)
        return self._comparison

    def report(self, file: Path | str | None = None) -> Path:
        """The last comparison as one page that answers clicks by itself, in ``file``."""
        from branchkit.notebook.report import report_page

        found = self.comparison
        return report_page(found, file or f"fork-t{found.facts.turn:04d}.html")

    def branches(self) -> pd.DataFrame:
        """One row a branch of the last comparison; files by name, they lie in ``directory``."""
        table = self.comparison.branches_table()
        views = self.comparison.branches
        table["journal"] = [Path(str(name)).name for name in table["journal"]]
        table.insert(1, "seed", [view.result.seed for view in views])
        table["ends"] = [view.result.status or view.result.error for view in views]
        columns = ["arm", "seed", "t_div", "cause", "ok", "ends", "last_turn", "journal"]
        return table[columns]


def _with_cell(swaps: list[str], cell: str | None) -> list[str]:
    """The swaps with ``@cell`` replaced by a file that holds the cell's text to the byte.

    The file is named for its content and stays in the store: the arm's name is the same in every
    run, and a fork can be repeated on the command line.
    """
    wanted = [swap for swap in swaps if swap.endswith(CELL)]
    if cell is None:
        if wanted:
            raise UsageError(
                f"{wanted[0]} needs the text of a cell",
                hint="write %%fork with the text below it, or fork(…, cell=TEXT)",
            )
        return swaps
    if not wanted:
        raise UsageError(
            "the text below %%fork is not used by any swap",
            hint="name it: --swap prompt=@cell, --swap truncation=@cell, observation=CALL:@cell",
        )
    return [_of_cell(swap, cell) if swap in wanted else swap for swap in swaps]


def _of_cell(swap: str, cell: str) -> str:
    from hashlib import sha256  # with what is below it half of what registering costs

    from branchkit.journal.blobs import store_directory

    if swap.startswith("truncation="):
        # A rule is one line of text and no file.
        return swap.removesuffix(CELL) + cell.strip()
    folder = store_directory() / "cells"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"cell-{sha256(cell.encode()).hexdigest()[:8]}"
    path.write_text(cell, encoding="utf-8", newline="")
    return f"{swap.removesuffix(CELL)}@{path}"


SESSION = Session()


def journal(file: Path | str, *, workspace: Path | str | None = None) -> Run:
    """The run in ``file``; the twin of ``%journal``."""
    return SESSION.journal(file, workspace=workspace)


def rewind(turn: int) -> Rewound:
    """The open run just before reply ``turn``; the twin of ``%rewind``."""
    return SESSION.rewind(turn)


def fork(
    turn: int,
    *,
    swap: str | Sequence[str] = (),
    n: int = 1,
    check: str | None = None,
    cell: str | None = None,
    **options: Any,
) -> Comparison:
    """Branches of the open run after turn ``turn``; the twin of ``%fork``.

    ``cell`` is the text that ``@cell`` in a swap stands for. ``options`` as in
    ``branchkit.branch.fork.Options``: seed, control, max_turns, max_calls, redeliver_from, …
    """
    return SESSION.fork(turn, swap=swap, n=n, check=check, cell=cell, **options)


def branches() -> pd.DataFrame:
    """One row a branch of the last comparison; the twin of ``%branches``."""
    return SESSION.branches()


def compare(
    directory: Path | str | None = None, *, volatile: Path | str | None = None
) -> Comparison:
    """The last comparison, or an earlier fork's; the twin of ``%compare``."""
    return SESSION.compare(directory, volatile=volatile)


def report(file: Path | str | None = None) -> Path:
    """The last comparison as one page for whoever has no kernel; the twin of ``%report``.

    Raises UsageError where nothing was forked, and where ``file`` cannot be written.
    """
    return SESSION.report(file)


def commitment(check: str, *, n: int = 20, **options: Any) -> Commitment | Plan:
    """The last turn from which the open run could still be won; the twin of ``%commitment``.

    ``options``: dry_run, and as in ``branchkit.branch.fork.Options``.
    """
    return SESSION.commitment(check, n=n, **options)


def when(check: str, **options: Any) -> When:
    """Which turn changed the verdict of ``check``; the twin of ``%when``.

    ``options``: bisect, isolated.
    """
    return SESSION.when(check, **options)


def blame(path: str) -> Blame:
    """The turn and the calls that last changed a path; the twin of ``%blame``."""
    return SESSION.run.blame(path)


def versions(path: str) -> pd.DataFrame:
    """The versions of a path over the open run; the twin of ``%versions``."""
    return SESSION.run.history(path)


def replay(*, strict: bool = True) -> Replayed:
    """The open run's harness run again on the tape; the twin of ``%replay``."""
    return SESSION.run.replay(strict=strict, isolated=True)
