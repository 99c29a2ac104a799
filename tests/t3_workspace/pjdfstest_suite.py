"""The real pjdfstest in a branch of a fresh store: ``python pjdfstest_suite.py CHECKOUT``.

``PJD=CHECKOUT make test-fs`` runs it. The checkout is somebody's own, built (``autoreconf -ifs &&
./configure && make pjdfstest``); it needs root, because most of its cases change who is calling.
The exit code is 0 only if every case passes and the daemon had nothing to complain about.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from branchkit.workspace import Workspaces

# What the suite has for Linux in 2025 is 8,798 cases. Far fewer means that files did not run.
FEWEST_CASES = 8000


def main(arguments: list[str]) -> int:
    """Run the suite; returns the exit code."""
    if len(arguments) != 1:
        print("usage: pjdfstest_suite.py CHECKOUT", file=sys.stderr)
        return 64
    checkout = Path(arguments[0]).resolve()
    if problem := missing(checkout):
        print(f"pjdfstest: {problem}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="pjdfstest-") as folder:
        Path(folder).chmod(0o755)  # most cases run as a user that must get this far
        return in_branch(checkout, Path(folder))


def missing(checkout: Path) -> str:
    """What keeps the suite from running, with the remedy; empty when nothing does."""
    if os.geteuid() != 0:
        return "it needs root"
    if not (checkout / "tests").is_dir():
        return f"{checkout} is no checkout of it: there is no {checkout / 'tests'}"
    if not os.access(checkout / "pjdfstest", os.X_OK):
        return f"build it first: cd {checkout} && autoreconf -ifs && ./configure && make pjdfstest"
    return ""


def in_branch(checkout: Path, folder: Path) -> int:
    """Run the suite in a branch of an empty base below ``folder``."""
    (folder / "base").mkdir()
    with Workspaces.open(folder / "store", backend="fuse") as ws:
        root = ws.create("pjdfstest", base=ws.add_base(folder / "base")).path
        code, cases = prove(checkout, root)
        ws.stop()
    log = (folder / "store" / "daemon.log").read_text()
    if "Traceback" in log:
        print(log)
        code = 1
    if cases < FEWEST_CASES:
        print(f"only {cases} cases ran, {FEWEST_CASES} were expected at the least")
        code = 1
    print(f"pjdfstest: {cases} cases, {'all passed' if code == 0 else 'FAILED'}")
    return code


def prove(checkout: Path, root: Path) -> tuple[int, int]:
    """The exit code of the suite in ``root``, and how many cases ran; shows what it prints."""
    command = ["prove", "-j4", "-rQ", os.fspath(checkout / "tests")]
    cases = 0
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            if found := re.search(r"\bTests=(\d+)", line):
                cases = int(found[1])
    return process.returncode, cases


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
