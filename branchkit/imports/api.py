"""``import_file``: somebody else's file in, one of our journals out."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from branchkit import disk
from branchkit.errors import InputRefused, UsageError
from branchkit.imports.detect import FORMATS, Found, recognise
from branchkit.imports.run import Child, Compaction, Fidelity, ImportedRun
from branchkit.imports.write import write_run
from branchkit.journal.anchor import head_path
from branchkit.journal.blobs import Blobs, store_directory
from branchkit.journal.events import Issue, Origin, call_step
from branchkit.journal.file import SUFFIX
from branchkit.journal.format import Json
from branchkit.journal.pack import pack_path, write_pack

IMPORTER = 2  # raised whenever the same file would give another journal
_ENDINGS = (".traj.json", ".traj", ".jsonl", ".json")


class CallSummary(NamedTuple):
    """One call. ``id`` is the provider's where the file has one, else the journal's."""

    id: str
    call_id: str
    name: str
    status: str
    result_sha256: str | None


class Imported(NamedTuple):
    """What was imported, and what was found in the file."""

    ok: bool
    journal: Path
    format: str
    fidelity: Fidelity
    turns: int
    user_messages: int
    calls: list[CallSummary]
    issues: list[Issue]
    unknown: list[str]
    model: str
    end: str
    totals: dict[str, float]
    compactions: list[dict[str, Json]]
    children: list[Child]
    checkpoint_hints: int

    def to_json(self) -> dict[str, Json]:
        """The stable fields of ``branchkit import --json``."""
        return {
            **self._asdict(),
            "journal": str(self.journal),
            "calls": [call._asdict() for call in self.calls],
            "issues": [msgspec.to_builtins(issue) for issue in self.issues],
            "children": [child._asdict() for child in self.children],
        }


def refused_json(error: InputRefused) -> dict[str, Json]:
    """What ``branchkit import --json`` says of a file that is refused."""
    return {"ok": False, "refused": error.message, "hint": error.hint}


def sniff(path: Path | str) -> str:
    """The name of the file's format. Raises InputRefused, saying what it looks like instead."""
    path = Path(path)
    return recognise(_read(path), path).format


def import_file(
    path: Path | str,
    out: Path | str | None = None,
    *,
    format: str | None = None,  # noqa: A002 - the word of the command line
) -> Imported:
    """Write the run in ``path`` as a journal to ``out``, by default NAME.journal.jsonl here.

    ``path`` is only read. Raises InputRefused for what cannot be read, UsageError if ``out`` holds
    something else already.
    """
    path = Path(path)
    if format is not None and format not in FORMATS:
        raise UsageError(f"there is no format {format!r}", hint=f"known: {', '.join(FORMATS)}")
    data = _read(path)
    found = recognise(data, path, format)
    run = _run(found, path)
    origin = Origin(
        format=run.format,
        fidelity=run.fidelity,
        source=path.name,
        source_sha256=hashlib.sha256(data).hexdigest(),
        importer=IMPORTER,
        issues=run.issues,
        unknown=run.unknown,
    )
    journal = _target(path, None if out is None else Path(out))
    _publish(run, origin, journal)
    return _summary(run, journal)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputRefused(
            f"{path} cannot be read: {error.strerror}", hint="give the path of a file"
        ) from None


def _run(found: Found, path: Path) -> ImportedRun:
    try:
        return found.read()
    except InputRefused as error:
        raise InputRefused(f"{path.name}: {error.message}", hint=error.hint) from None


def _target(path: Path, out: Path | None) -> Path:
    if out is not None and not out.is_dir():
        return out
    stem = path.name
    for ending in _ENDINGS:
        if stem.endswith(ending):
            stem = stem.removesuffix(ending)
            break
    return (out or Path.cwd()) / f"{stem}{SUFFIX}"


def _publish(run: ImportedRun, origin: Origin, journal: Path) -> None:
    """Pack, journal and its head under their names, each in one step, in the order of reference."""
    blobs = Blobs(store_directory() / "blobs")
    disk.make_directory(journal.parent)
    written = disk.temporary_beside(journal)
    packed = disk.temporary_beside(pack_path(journal))
    try:
        addresses = write_run(run, origin, written, blobs)
        if addresses:
            write_pack(packed, [(f"blobs/{sha256}", blobs.get(sha256)) for sha256 in addresses])
        pairs = [
            (packed, pack_path(journal)), (written, journal),
            (head_path(written), head_path(journal)),
        ]  # fmt: skip
        present = [(new, target) for new, target in pairs if new.exists()]
        for new, target in present:
            _refuse_other(new, target)
        for new, target in present:
            disk.rename(new, target)
        disk.fsync_dir(journal.parent)
    finally:
        for left in (written, packed, head_path(written)):
            left.unlink(missing_ok=True)


def _refuse_other(new: Path, target: Path) -> None:
    if target.exists() and target.read_bytes() != new.read_bytes():
        raise UsageError(
            f"{target.name} exists and holds something else",
            hint="give another name: -o OUT; nothing was changed",
        )


def _summary(run: ImportedRun, journal: Path) -> Imported:
    calls = []
    for number, turn in enumerate(run.turns, start=1):
        for index, call in enumerate(turn.calls, start=1):
            own = call_step(number, index)
            sha256 = _sha256(call.text) if call.text is not None else None
            calls.append(CallSummary(call.provider_id or own, own, call.name, call.status, sha256))
    served = next((turn.served_model for turn in run.turns if turn.served_model), run.model)
    return Imported(
        ok=True,
        journal=journal,
        format=run.format,
        fidelity=run.fidelity,
        turns=len(run.turns),
        user_messages=sum(each.source != "harness" for each in run.inputs()),
        calls=calls,
        issues=run.issues,
        unknown=run.unknown,
        model=served,
        end=run.end_reason or run.end,
        totals=run.totals,
        compactions=[
            _compaction(each) for each in run.everything() if isinstance(each, Compaction)
        ],
        children=run.children,
        checkpoint_hints=run.checkpoint_hints,
    )


def _compaction(each: Compaction) -> dict[str, Any]:
    return {
        "trigger": each.trigger,
        "tokens_before": each.tokens_before,
        "tokens_after": each.tokens_after,
        "messages": len(each.messages),
    }


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
