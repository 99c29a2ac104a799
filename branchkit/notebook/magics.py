"""The magics, registered by ``%load_ext branchkit``: parse, call the Python API, return its result.

Registering imports neither a view nor a library; the first use does.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import cleandoc
from typing import TYPE_CHECKING, Any

from branchkit.notebook import going_on
from branchkit.notebook.arguments import (
    HelpAsked,
    Parser,
    blame_parser,
    branches_parser,
    commitment_parser,
    compare_parser,
    fork_parser,
    journal_parser,
    replay_parser,
    report_parser,
    rewind_parser,
    versions_parser,
    when_parser,
    words,
)
from branchkit.notebook.complete import register_completions
from branchkit.notebook.formats import register_formats
from branchkit.notebook.session import SESSION

if TYPE_CHECKING:
    from pathlib import Path

    from IPython.core.interactiveshell import InteractiveShell

    from branchkit.branch.api import Run
    from branchkit.branch.commitment import Commitment, Plan
    from branchkit.branch.comparison import Comparison
    from branchkit.replay.rewind import Rewound
    from branchkit.replay.strict import Replayed
    from branchkit.replay.when import Blame, When


class Help(str):
    """A magic's help; its repr is its text."""

    def __repr__(self) -> str:
        return str(self)


def journal(options: Any) -> Run:
    """Open the run in a journal; %rewind and %fork act on it from now on.

    %journal FILE [--workspace DIR|REPO@COMMIT]

      --workspace   the files that forks start from, for a run that recorded none

    Example:

        %journal sample_journals/branch_cleanup/branch_cleanup.journal.jsonl
    """
    return SESSION.journal(options.file, workspace=options.workspace)


def rewind(options: Any) -> Rewound:
    """Show the open run just before reply T, 1..turns+1: context, files, and what then happened.

    %rewind T

    The result's ``branch.path`` is a copy-on-write directory with the files of that moment.

    Example:

        %rewind 23
    """
    return SESSION.rewind(options.turn)


def fork(options: Any) -> Comparison:
    """Branch the open run after turn T: an arm for each swap beside a control arm, all checked.

    %fork T [--swap COMPONENT=SPEC]... [-n N] [--size ARM=N]... [--check CMD] [--seed S]
            [--paired] [--no-control] [--max-turns M] [--max-calls M] [--from K] [--no-sandbox]
            [--model SPEC]

      --swap       one changed component is one arm: model, sampling, prompt, truncation, policy,
                   parser, or a what-if: observation=CALL:@FILE, decision=@FILE
      -n           branches an arm
      --size       another size for one arm: --size model=local:smollm2=8
      --check      run in each branch's files at its end: exit 0 success, 1-125 failure
      --paired     branches of equal seed are compared in pairs, and that test decides
      --from       deliver only results of turns >= K anew
      --model      asked in every arm, for a run whose own model cannot be asked

    %%fork takes the text below it where a swap says @cell: --swap prompt=@cell. A word {name}
    alone stands for the notebook's variable; braces and $ anywhere else stay what they are. An
    interrupt returns what has ended so far.

    Example:

        %fork 22 --swap truncation=none -n 2 --check 'git show-ref -q --verify refs/heads/main'
    """
    from branchkit.branch.fork import sizes_of

    given = vars(options)
    sizes = sizes_of(given.pop("size"))
    return SESSION.fork(given.pop("turn"), sizes=sizes, **given)


def branches(_options: Any) -> Any:
    """The branches of the last fork as a table: one row a branch.

    %branches

    Example:

        %branches
    """
    return SESSION.branches()


def compare(options: Any) -> Comparison:
    """The last fork's comparison, or an earlier one's from the directory that the fork named.

    %compare [DIR] [--volatile FILE]

      --volatile   what is no difference: a file from `branchkit calibrate A B -o FILE`

    Example:

        %compare
    """
    return SESSION.compare(options.directory, volatile=options.volatile)


def report(options: Any) -> Path:
    """Write the last comparison as one page: no kernel, no network, the map still answers clicks.

    %report [FILE]

    At most 1 MB; without FILE it is named after the fork's turn, in this directory.

    Example:

        %report
    """
    return SESSION.report(options.file)


def commitment(options: Any) -> Commitment | Plan:
    """Find the last turn from which the open run still succeeds more often than not, by forks.

    %commitment --check CMD [-n N] [--dry-run] [--seed S] [--max-turns M] [--max-calls M]
                [--no-sandbox] [--model SPEC]

      --check      run in each branch's files at its end: exit 0 success
      -n           branches a probe, 20 if not given; fewer than 6 leave every answer open
      --dry-run    only say how many probes and model calls it takes at most

    The control arm is forked at turns that halve the run. An interrupt keeps the probes so far.

    Example:

        %commitment --check 'git show-ref -q --verify refs/heads/main' --dry-run
    """
    return SESSION.commitment(**vars(options))


def when(options: Any) -> When:
    """Name the turn of the open run whose files first fail (or first pass) a check; asks no model.

    %when --check CMD [--bisect] [--no-sandbox]

      --check      run in the files as each turn left them: exit 0 success
      --bisect     look at few turns; right if the verdict changes once

    Example:

        %when --check 'git show-ref -q --verify refs/heads/release/2.1'
    """
    return SESSION.when(**vars(options))


def blame(options: Any) -> Blame:
    """The turn and the calls that last changed PATH in the open run's workspace.

    %blame PATH

    Example:

        %blame CLEANUP.md
    """
    return SESSION.run.blame(options.path)


def versions(options: Any) -> Any:
    """Every version of PATH over the open run as a table: turn, what, hash, size, mode.

    %versions PATH

    Example:

        %versions CLEANUP.md
    """
    return SESSION.run.history(options.path)


def replay(options: Any) -> Replayed:
    """Run the open run's harness again on the tape: no model, no tool, every event accounted for.

    %replay [--no-strict]

    A difference is an error, or with --no-strict a result whose ``divergence`` tells where.

    Example:

        %replay
    """
    return SESSION.run.replay(strict=options.strict, isolated=True)


_MAGICS: dict[str, tuple[Callable[[Any], Any], Callable[[], Parser]]] = {
    "journal": (journal, journal_parser),
    "rewind": (rewind, rewind_parser),
    "fork": (fork, fork_parser),
    "branches": (branches, branches_parser),
    "compare": (compare, compare_parser),
    "report": (report, report_parser),
    "commitment": (commitment, commitment_parser),
    "when": (when, when_parser),
    "blame": (blame, blame_parser),
    # IPython's own %history lists what was typed: it stays what it is.
    "versions": (versions, versions_parser),
    "replay": (replay, replay_parser),
    "calls": (going_on.calls_magic, going_on.calls_parser),
    "settle": (going_on.settle_magic, going_on.settle_parser),
    "approve": (going_on.approve_magic, going_on.approve_parser),
    "resume": (going_on.resume_magic, going_on.resume_parser),
    "cadence": (going_on.cadence_magic, going_on.cadence_parser),
}


def register(shell: InteractiveShell) -> None:
    """Put the magics, their completions and the formats of results into a running IPython."""
    for name, (act, parser) in _MAGICS.items():
        kind = "line_cell" if name == "fork" else "line"
        shell.magics_manager.register_function(_magic(shell, name, act, parser), kind, name)
    register_completions(shell, {name: parser for name, (_, parser) in _MAGICS.items()})
    register_formats(shell)


def _magic(
    shell: InteractiveShell,
    name: str,
    act: Callable[[Any], Any],
    parser: Callable[[], Parser],
) -> Callable[..., Any]:
    from IPython.core.magic import no_var_expand

    def magic(line: str, cell: str | None = None) -> Any:
        try:
            options = parser().parse_args(words(name, line, shell.user_ns))
        except HelpAsked:
            return Help(cleandoc(act.__doc__ or ""))
        if name == "fork":
            options.cell = cell
        return act(options)

    magic.__name__ = magic.__qualname__ = name
    magic.__doc__ = act.__doc__
    expandless: Callable[..., Any] = no_var_expand(magic)
    return expandless
