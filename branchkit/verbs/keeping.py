"""Verbs on what is kept: whether a secret is in it."""

from __future__ import annotations

import argparse
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path

from branchkit.errors import EXIT_OK, InputRefused, SecretFound, print_error
from branchkit.verbs.output import answer


def redaction_check(options: argparse.Namespace) -> int:
    """Name every place in files where today's rules still find a secret."""
    from branchkit.journal.redact import redactor

    clean = redactor(os.environ).text
    found = []
    for place in options.files:
        for name, data in _texts(place):
            for number, line in enumerate(data.decode("utf-8", "surrogateescape").split("\n"), 1):
                if clean(line) != line:
                    found.append({"file": name, "line": number})
    lines = [f"{one['file']}:{one['line']}: a secret" for one in found] or ["no secret is found"]
    answer(options, {"ok": not found, "found": found}, lambda: "\n".join(lines))
    if found:
        hint = "change the key where it is used, then forget the run: branchkit forget"
        return print_error(SecretFound(f"{len(found)} lines hold a secret", hint=hint))
    return EXIT_OK


def _texts(place: Path) -> Iterator[tuple[str, bytes]]:
    """The files at ``place``, those in directories and packs too, by name."""
    try:
        if place.is_dir():
            for path in sorted(place.rglob("*")):
                if path.is_file():
                    yield from _texts(path)
        elif zipfile.is_zipfile(place):
            with zipfile.ZipFile(place) as pack:
                for member in pack.namelist():
                    yield f"{place}:{member}", pack.read(member)
        else:
            yield str(place), place.read_bytes()
    except OSError as error:
        raise InputRefused(f"{place}: {error.strerror}", hint="name files that exist") from error
