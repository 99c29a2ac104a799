"""Every error that branchkit raises on purpose, with its exit code and its remedy.

    BaseException
    ├── Diverged            strict replay met something the journal does not hold    exit 2
    └── Exception
        └── BranchkitError                                                           exit 70
            ├── UsageError        the request itself is wrong                        exit 64
            │   └── TurnOutside   a turn that the run does not have                  exit 64
            ├── InputRefused      a file that is not what it should be               exit 65
            ├── JournalDamaged    the chain or a line is broken                      exit 3
            ├── JournalPoisoned   an fsync failed: nothing may be acknowledged       exit 66
            ├── JournalLocked     another process writes this journal                exit 67
            ├── BlobMissing       text that is neither in the journal nor its blobs  exit 68
            ├── ForkDetected      two different events under one sequence number     exit 69
            ├── DiskFull          no space, or the size cap of a store               exit 73
            ├── WorkspaceError    the overlay cannot do what was asked               exit 74
            │   ├── FuseMissing   no /dev/fuse, no libfuse3, or no pyfuse3           exit 75
            │   └── DaemonGone    the process that serves the overlay died           exit 76
            ├── SandboxMissing    no bubblewrap, so no live branch                   exit 77
            ├── ModelError        the model could not be reached or answered badly   exit 78
            ├── ToolError         a tool could not be started at all                 exit 79
            ├── BudgetSpent       a limit of the run or the fork was reached         exit 80
            ├── DependencyMissing an extra is not installed                          exit 81
            ├── ContextDrift      today's code assembles another context             exit 82
            └── SecretFound       a file holds what should have been redacted        exit 90

Exit codes are promises (``docs/formats.md``): 0 done or equal, 2 divergent, 3 damaged, 64 usage,
65–124 one per class below. ``Diverged`` derives from BaseException so that no ``except Exception``
of a user's own loop can swallow it.
"""

from __future__ import annotations

import sys

EXIT_OK = 0
EXIT_DIVERGED = 2


class BranchkitError(Exception):
    """Something branchkit expected to be able to go wrong, said with its remedy.

    ``message`` holds the values ("turn 99 is outside 1..39 of demo.journal.jsonl"); ``hint`` says
    what to do about it. In a notebook it renders as two lines instead of a traceback.
    """

    exit_code = 70

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  {self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[object, ...]:
        # Errors cross process borders (branch workers); the default would drop the keyword.
        return (_rebuild, (type(self), self.message, self.hint))

    def _render_traceback_(self) -> list[str]:
        """IPython calls this instead of printing a traceback."""
        lines = [f"{type(self).__name__}: {self.message}"]
        return [*lines, f"  {self.hint}"] if self.hint else lines


def _rebuild(kind: type[BranchkitError], message: str, hint: str) -> BranchkitError:
    return kind(message, hint=hint)


class UsageError(BranchkitError):
    """The request is wrong: an unknown component, two components in one arm, a bad number."""

    exit_code = 64


class TurnOutside(UsageError):
    """A turn was named that the run does not have."""


class InputRefused(BranchkitError):
    """A file is not in a format that can be read; nothing was changed."""

    exit_code = 65


class JournalDamaged(BranchkitError):
    """A journal's chain or one of its lines is broken; the good prefix is still readable."""

    exit_code = 3


class JournalPoisoned(BranchkitError):
    """An fdatasync failed. The writer acknowledges nothing any more: reopen and verify."""

    exit_code = 66


class JournalLocked(BranchkitError):
    """Another live process writes this journal; its pid is in the message."""

    exit_code = 67


class BlobMissing(BranchkitError):
    """The full text of a result is neither in the journal nor in its blobs."""

    exit_code = 68


class ForkDetected(BranchkitError):
    """Two different events stand under one sequence number: two writers were at work."""

    exit_code = 69


class DiskFull(BranchkitError):
    """The disk, or a store's size cap, is full; what was acknowledged is safe."""

    exit_code = 73


class WorkspaceError(BranchkitError):
    """The workspace cannot do what was asked."""

    exit_code = 74


class FuseMissing(WorkspaceError):
    """FUSE cannot be used here: no device, no library, or no Python binding."""

    exit_code = 75


class DaemonGone(WorkspaceError):
    """The process that serves the overlay has died or does not answer."""

    exit_code = 76


class SandboxMissing(BranchkitError):
    """Tools would run unconfined; live branches are refused unless that is asked for by name."""

    exit_code = 77


class ModelError(BranchkitError):
    """A model could not be reached, or answered with something that is not a reply."""

    exit_code = 78


class ToolError(BranchkitError):
    """A tool could not be started at all (a tool that fails is an observation, not an error)."""

    exit_code = 79


class BudgetSpent(BranchkitError):
    """A limit that the run or the fork was given has been reached."""

    exit_code = 80


class DependencyMissing(BranchkitError):
    """An optional part is not installed; the hint is the command that installs it."""

    exit_code = 81


class ContextDrift(BranchkitError):
    """A resume met what the journal does not hold: going on would be a rerun, not a recovery."""

    exit_code = 82

    def __init__(
        self, message: str, *, hint: str = "", report: dict[str, object] | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.report = report or {}


class SecretFound(BranchkitError):
    """Something that was written holds a secret by today's rules (R11)."""

    exit_code = 90


class Diverged(BaseException):
    """Strict replay met a call or a state that the journal does not hold (R51, R56)."""

    exit_code = EXIT_DIVERGED

    def __init__(self, message: str, *, report: dict[str, object] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.report = report or {}

    def _render_traceback_(self) -> list[str]:
        return [f"Diverged: {self.message}"]


def print_error(error: BranchkitError | Diverged) -> int:
    """Write ``error`` to stderr the way every command does; returns its exit code."""
    print(f"branchkit: {error}", file=sys.stderr)
    return error.exit_code
