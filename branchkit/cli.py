"""The command line: ``branchkit VERB …``. Each verb parses, calls the Python API, and prints.

With ``--json`` one object goes to stdout; progress and errors always go to stderr. Exit codes are
those of ``errors.py``; usage errors are 64, never argparse's 2.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from branchkit.arguments import parser
from branchkit.errors import EXIT_OK, BranchkitError, Diverged, print_error
from branchkit.verbs import branching, going_on, keeping, reading, running, workspaces
from branchkit.verbs.output import EXIT_INTERRUPTED

_VERBS: dict[str, Callable[[argparse.Namespace], int]] = {
    "demo": branching.demo,
    "doctor": branching.doctor,
    "import": reading.import_,
    "show": reading.show,
    "verify": reading.verify,
    "rewind": reading.rewind,
    "fork": branching.fork,
    "compare": branching.compare,
    "calibrate": branching.calibrate,
    "commitment": branching.commitment,
    "when": reading.when,
    "replay": reading.replay,
    "regress": reading.regress,
    "run": running.run,
    "resume": going_on.resume,
    "calls": going_on.calls,
    "settle": going_on.settle,
    "approve": going_on.approve,
    "cancel": going_on.cancel,
    "cadence": going_on.cadence,
    "pack": running.pack,
    "mount": workspaces.mount,
    "umount": workspaces.umount,
    "diff": workspaces.diff,
    "drop": workspaces.drop,
    "gc": workspaces.gc,
    "apply": workspaces.apply,
    "export": workspaces.export,
    "redaction-check": keeping.redaction_check,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; returns its exit code."""
    try:
        helps = {name: (run.__doc__ or "").splitlines()[0] for name, run in _VERBS.items()}
        options = parser(helps).parse_args(arguments)
        return _VERBS[options.verb](options)
    except (BranchkitError, Diverged) as error:
        return print_error(error)
    except KeyboardInterrupt:
        print("branchkit: interrupted; what was acknowledged is on disk", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # `branchkit show … | head`: the reader has seen enough. Leave stdout to nobody.
        sys.stdout = None
        return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
