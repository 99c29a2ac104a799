"""``NAME.head``: the hash of a journal's last event, kept beside it for ``verify`` (R1, M05).

A tail that was cut off, or written anew with right hashes, is consistent in itself; it shows only
against a hash from before. The writer leaves one when it closes. It is never ahead of the journal:
what it names was on stable storage first, and a crash before the close leaves the one before, which
is a hash of the same chain. Whoever can write the journal can write this file too, so for evidence
keep a copy where they cannot, and give it to ``verify --anchor``.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from branchkit import disk
from branchkit.journal.scan import SUFFIX, Verdict, verify


def head_path(journal: Path) -> Path:
    """``NAME.head`` of ``NAME.journal.jsonl``."""
    return journal.with_name(f"{journal.name.removesuffix(SUFFIX)}.head")


def keep_head(journal: Path, head: str) -> None:
    """Leave ``head`` beside ``journal``; after a crash the old or the new one is there.

    A folder in which nothing can be written keeps none.
    """
    if kept_head(journal) != head:
        with contextlib.suppress(OSError):
            disk.write_durably(head_path(journal), f"{head}\n".encode())


def kept_head(journal: Path) -> str | None:
    """What ``NAME.head`` says; None where there is none."""
    try:
        return head_path(journal).read_text("utf-8", "replace").strip()
    except OSError:
        return None


def verify_kept(journal: Path) -> Verdict:
    """``verify`` against ``NAME.head``, if there is one.

    Events after it are no damage here: a run that was killed, or still goes on, has some.
    """
    found = verify(journal, anchor=kept_head(journal))
    damage = [one for one in found.damage if one.code != "beyond_anchor"]
    return found._replace(ok=not damage, damage=damage)
