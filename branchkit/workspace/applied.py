"""What a branch changed, brought back: as a patch, or written into a directory, on request only.

    branch ──freeze──▶ snapshot ──pairs with its base──▶ changes ─┬─▶ patch (git's form)
                                                                  └─▶ a directory, nothing but them

Nothing else in branchkit writes outside the store. A path of the directory that is not as the base
had it is a conflict, and with one conflict nothing is written at all.
"""

from __future__ import annotations

import shutil
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from branchkit import disk
from branchkit.errors import UsageError, WorkspaceError
from branchkit.workspace import compare, listing, scan
from branchkit.workspace.base import manifest
from branchkit.workspace.branch import Live
from branchkit.workspace.compare import Change
from branchkit.workspace.export import Exported, export_commit, patch, tip
from branchkit.workspace.mount import Workspaces
from branchkit.workspace.scan import Entry
from branchkit.workspace.store import Store

EXAMPLES = 5
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)  # of commits that nobody sees


class Applied(NamedTuple):
    """What was written into ``directory``, sorted by path."""

    directory: str
    changes: list[Change]


class _Step(NamedTuple):
    """One path as the base has it and as the branch has it (None: not there)."""

    path: str
    old: Entry | None
    new: Entry | None


class _Both(NamedTuple):
    """A branch's base and its newest state, open for reading, and what differs."""

    old: Live
    new: Live
    steps: list[_Step]


def apply(
    ws: Workspaces, name: str, directory: Path | None = None, *, force: bool = False
) -> Applied:
    """Write what branch ``name`` changed since its base into ``directory``, by default that base.

    What is there already is left alone. Other branches on a base that is written see it change
    under them: refused without ``force``. Raises UsageError, WorkspaceError when the directory
    differs from the base where the branch does.
    """
    with _opened(ws, name) as both:
        base = Path(both.old.base.directory)
        target = base if directory is None else Path(directory).resolve()
        if target == base and not force:
            _refuse_if_shared(ws, name, both.old.base.id)
        todo = _unapplied(target, both.steps)
        # Every content is fetched before anything changes: a file that was only moved still lies
        # in the base, and the base may be what is written.
        stage = _staged(target, todo, both.new)
        _write(target, stage, todo)
        shutil.rmtree(stage)
    return Applied(str(target), sorted(_change(step) for step in todo))


def patch_of(ws: Workspaces, name: str) -> str:
    """What branch ``name`` changed since its base, for ``git apply``; "" when nothing git can hold.

    Bytes that are not UTF-8 are surrogates: encode it with ``errors="surrogateescape"``.
    """
    with _opened(ws, name) as both, tempfile.TemporaryDirectory() as scratch:
        at = Path(scratch)
        repository = at / "repository"
        commits = [
            _commit(both.old, [s.old for s in both.steps if s.old], at / "a", repository),
            _commit(both.new, [s.new for s in both.steps if s.new], at / "b", repository),
        ]
        return patch(repository, *commits)


def export_branch(
    ws: Workspaces, name: str, repository: Path, *, ref: str | None = None
) -> Exported:
    """Branch ``name`` as it is now as a commit that ``ref`` (``branchkit/NAME``) then names.

    A child of what the ref named before. Raises UsageError, WorkspaceError.
    """
    branch = ws.branch(name)
    snapshot = branch.freeze()
    where = ref or f"branchkit/{name}"
    facts = {"Branch": name, "Snapshot": snapshot.id, "Tree": snapshot.tree_hash}
    trailers = "\n".join(f"Branchkit-{key}: {value}" for key, value in facts.items())
    return export_commit(
        branch.path,
        repository,
        ref=where,
        message=f"Branch {name}\n\n{trailers}\n",
        parent=tip(repository, where),
        date=datetime.now(UTC),
    )


def _commit(live: Live, entries: Sequence[Entry], directory: Path, repository: Path) -> str:
    """Only the files that differ, as a commit: the rest is the same on both sides of a patch."""
    directory.mkdir()
    for entry in entries:
        if entry.is_file or stat.S_ISLNK(entry.mode):
            path = directory / entry.path
            path.parent.mkdir(parents=True, exist_ok=True)
            listing.make(path, entry._replace(link=0), lambda e: listing.content(live, e))
            listing.set_meta(path, entry)
    name = directory.name
    return export_commit(directory, repository, ref=name, message=name, date=_EPOCH).commit


@contextmanager
def _opened(ws: Workspaces, name: str) -> Iterator[_Both]:
    snapshot = ws.branch(name).freeze()
    store = Store(ws.store, writable=False)
    try:
        old = store.view(snapshot.base, None)
        new = store.view(snapshot.base, snapshot.id)
        # The manifest and not the base itself: that may be half written by an earlier apply.
        known = {entry.path: entry for entry in manifest(ws.store, snapshot.base)}
        steps = []
        for pair in compare.pairs(old, new, logical=False):
            was = known.get(pair.path) if pair.old is not None else None
            now = None if pair.new is None else listing.entry_of(new, pair.new, pair.path)
            if not _same(was, now):
                steps.append(_Step(pair.path, was, now))
        yield _Both(old, new, steps)
        old.close()
        new.close()
    finally:
        store.close()


def _same(one: Entry | None, two: Entry | None) -> bool:
    """Whether two entries are equal, but for their times, which any reader of a tree moves."""
    if one is None or two is None:
        return one is two
    facts = [
        {k: v for k, v in scan.portable(entry).items() if k not in ("mtime_ns", "link")}
        for entry in (one, two)
    ]
    return facts[0] == facts[1]


def _unapplied(target: Path, steps: Sequence[_Step]) -> list[_Step]:
    """The steps that are still to be done. Raises WorkspaceError with the conflicts."""
    todo, conflicts = [], []
    for step in steps:
        there = scan.entry(target, step.path)
        if _same(there, step.new):
            continue
        if _same(there, step.old):
            todo.append(step)
        else:
            conflicts.append(step.path)
    if conflicts:
        more = f" and {len(conflicts) - EXAMPLES} more" if len(conflicts) > EXAMPLES else ""
        raise WorkspaceError(
            f"{target} is not as the branch's base was: {', '.join(conflicts[:EXAMPLES])}{more}",
            hint="nothing was written; take the patch instead: branchkit diff BRANCH --patch",
        )
    return todo


def _refuse_if_shared(ws: Workspaces, name: str, base_id: str) -> None:
    store = Store(ws.store, writable=False)
    try:
        named = store.named.values()
        others = sorted(o.name for o in named if o.base == base_id and o.name != name)
    finally:
        store.close()
    if others:
        raise UsageError(
            f"other branches stand on this base ({len(others)}): {', '.join(others[:EXAMPLES])}",
            hint="drop them, or say --force: they will find their base changed",
        )


def _staged(target: Path, todo: Sequence[_Step], live: Live) -> Path:
    """A directory in ``target`` with the content of each step under its number."""
    stage = Path(tempfile.mkdtemp(prefix=".branchkit-apply-", dir=target))
    try:
        for number, step in enumerate(todo):
            if step.new is not None and not step.new.is_dir:
                listing.make(stage / str(number), step.new, lambda e: listing.content(live, e))
    except BaseException:
        shutil.rmtree(stage)
        raise
    return stage


def _write(target: Path, stage: Path, todo: Sequence[_Step]) -> None:
    """Put what is staged in its place. A crash leaves the stage, and with it every content."""
    places = sorted(enumerate(todo), key=lambda one: one[1].path)
    for _, step in reversed(places):
        if step.old is not None and _must_go(step.old, step.new):
            _remove(target / step.path, step.old)
    for number, step in places:
        if step.new is not None and step.new.is_dir:
            (target / step.path).mkdir(exist_ok=True)
        elif step.new is not None:
            disk.rename(stage / str(number), target / step.path)
    for _, step in reversed(places):
        if step.new is not None:  # last: filling a directory moves its time
            listing.set_meta(target / step.path, step.new)


def _must_go(old: Entry, new: Entry | None) -> bool:
    return new is None or stat.S_IFMT(old.mode) != stat.S_IFMT(new.mode)


def _remove(path: Path, entry: Entry) -> None:
    if not entry.is_dir:
        path.unlink()
        return
    try:
        path.rmdir()
    except OSError as error:
        raise WorkspaceError(
            f"{path} holds files that the branch does not know", hint="move them, then apply again"
        ) from error


def _change(step: _Step) -> Change:
    if step.old is None:
        return Change(step.path, "added")
    return Change(step.path, "removed" if step.new is None else "changed")
