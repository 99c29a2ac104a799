"""What the tests have workers do: module-level, so that it can be pickled by name."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

from branchkit.errors import UsageError


def my_pid() -> int:
    return os.getpid()


def announce_and_hang(path: str, marker: str) -> None:
    """Start a grandchild in a session of its own, tell our pid, then hang."""
    subprocess.Popen(["setsid", "sleep", marker])
    announce(path)
    threading.Event().wait()


def announce(path: str) -> None:
    """Write our pid into a FIFO: its reader wakes when we are here."""
    Path(path).write_text(f"{os.getpid()}\n")


def hang_with_cleanup(path: str, trace: str) -> None:
    try:
        announce(path)
        threading.Event().wait()
    finally:
        Path(trace).write_text("cleaned up")


def refuse() -> None:
    raise UsageError("turn 99 is outside 1..39", hint="pick another")


def raise_untravelling() -> None:
    raise type("Local", (Exception,), {})("no pickle for me")


def print_something() -> str:
    print("a print of the worker")
    print("and one more", file=sys.stderr)
    return "returned"
