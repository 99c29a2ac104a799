"""What every verb prints, and how it ends."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

EXIT_INTERRUPTED = 130


def answer(options: argparse.Namespace, value: dict[str, Any], text: Callable[[], str]) -> None:
    """Print ``value`` as one JSON object if that was asked for, else ``text()``."""
    print(json.dumps(value, ensure_ascii=True) if options.json else text())


def progress_of(things: str) -> Callable[[int, int, str], None]:
    """A callback that shows on stderr how many of ``things`` are done."""

    def show(done: int, total: int, what: str) -> None:
        end = "\n" if done == total or not sys.stderr.isatty() else ""
        print(f"\r{done}/{total} {things}  {what:<40}", end=end, file=sys.stderr, flush=True)

    return show
