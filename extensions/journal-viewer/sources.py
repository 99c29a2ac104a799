"""Prints the hash of all that the bundle in ``labextension/`` is built from.

``make extension`` keeps it beside the bundle, and a test compares: sources that were changed
without building anew are found.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
PARTS = ("package.json", "package-lock.json", "tsconfig.json", "src/*", "style/*")


def sources_hash() -> str:
    """SHA-256 over names and contents, in the order of the names."""
    digest = hashlib.sha256()
    for path in sorted(path for part in PARTS for path in HERE.glob(part)):
        digest.update(f"{path.relative_to(HERE)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


if __name__ == "__main__":
    sys.stdout.write(f"{sources_hash()}\n")
