"""A workspace as a commit in a git repository of the user's choice, and patches between commits.

    directory ──hash-object, no filters──▶ blobs ──an index of our own──▶ tree ──▶ commit ──▶ ref

The repository's own index, HEAD and work tree are never touched. Every file goes in, ignored ones
too, byte for byte: no line-ending or other filter of the workspace or of the user is run.

What git cannot hold is named in ``Exported.lost``. A ``.git`` in the workspace, at its top or
deeper, is left out as git itself would: a tree that holds one is refused by every push.
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from branchkit.errors import UsageError, WorkspaceError
from branchkit.workspace.repository import (
    commit_of,
    is_free,
    make_repository,
    open_repository,
    run_git,
)

if TYPE_CHECKING:
    from git import Repo

EXAMPLES = 3
HEADS = "refs/heads/"

_AUTHOR = re.compile(r"([^<>\n]*[^<>\n ]) <([^<>\n]*)>")
# What git takes for a .git on some system: upper case and short names (NTFS), dots and blanks
# behind. `git fsck` finds each of them an error wherever it runs.
_DOT_GIT = re.compile(rb"(?i:\.git|git~1)[. ]*(?::.*)?", re.DOTALL)
_IGNORED_BY_HFS = re.compile("[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]")
_TO_QUOTE = re.compile(rb'[\x00-\x1f"\\]')


class Exported(NamedTuple):
    """What was committed; ``lost`` says in words what git could not take of the workspace."""

    commit: str
    ref: str
    files: int
    lost: list[str]


class _Item(NamedTuple):
    """A file or a symbolic link that goes into the tree."""

    path: bytes  # relative to the workspace
    mode: bytes  # git's
    target: bytes | None  # of a symbolic link


def export_commit(
    directory: Path,
    repository: Path,
    *,
    ref: str,
    message: str,
    parent: str | None = None,
    author: str = "branchkit <branchkit@localhost>",
    date: datetime,
) -> Exported:
    """``directory`` as a commit that ``ref`` then names; a bare repository is made if need be.

    ``ref`` is a branch name or a full ref. It must be new or name ``parent``: nothing that it holds
    is lost. If it names this very commit already (same tree and message), that one is given.
    Equal arguments give equal commits. Raises UsageError, DependencyMissing, WorkspaceError.
    """
    person = _AUTHOR.fullmatch(author)
    if person is None:
        raise UsageError(f"{author!r} is no author", hint="write 'Name <mail@example.org>'")
    if date.tzinfo is None:
        raise UsageError(f"{date} has no time zone", hint="give an aware datetime")
    if repository.resolve().is_relative_to(directory.resolve()):
        raise UsageError(
            f"{repository} lies inside the workspace that it should take", hint="choose another"
        )
    with make_repository(repository) as repo, tempfile.TemporaryDirectory() as scratch:
        name = _free_ref(repo, ref)
        environment = _person(person, f"@{int(date.timestamp())} {date:%z}")
        writing = _Writing(repo, Path(scratch), environment)
        lost = _Lost()
        items = list(_items(os.fsencode(directory), lost))
        tree = writing.tree(os.fsencode(directory), items)
        commit = writing.commit(tree, name, message, parent)
    return Exported(commit, name, len(items), lost.words(bool(items)))


def patch(repository: Path, a: str, b: str) -> str:
    """What leads from ``a`` to ``b``, for ``git apply``: `git diff --binary` under no settings.

    Bytes that are not UTF-8 are surrogates: encode it with ``errors="surrogateescape"``. Raises
    UsageError if there is no such repository or commit.
    """
    with open_repository(repository) as repo:
        trees = [commit_of(repo, name, "tree") for name in (a, b)]
        plain = ["--binary", "--full-index", "--no-ext-diff", "--no-textconv", "--no-color"]
        return run_git(repo, "diff-tree", "-r", "-p", *plain, *trees)


def tip(repository: Path, ref: str) -> str | None:
    """The commit that ``ref`` names; None if there is no such ref, or no repository yet."""
    if is_free(repository):
        return None
    with open_repository(repository) as repo:
        return _tip(repo, full_ref(ref))


def full_ref(ref: str) -> str:
    """``ref`` with ``refs/heads/`` in front, if it was only the name of a branch."""
    return ref if ref.startswith("refs/") else HEADS + ref


def _free_ref(repo: Repo, ref: str) -> str:
    """The full name of ``ref``. Raises UsageError if it is no name, or somebody has it out."""
    name = full_ref(ref)
    try:
        run_git(repo, "check-ref-format", name)
    except WorkspaceError:
        raise UsageError(
            f"{ref!r} cannot be the name of a ref", hint="see git check-ref-format"
        ) from None
    # Moving a branch that is checked out would make every file there look changed.
    if f"branch {name}" in run_git(repo, "worktree", "list", "--porcelain").splitlines():
        raise UsageError(
            f"{name} is checked out in {repo.git_dir}", hint="choose another name and merge it"
        )
    return name


def _person(author: re.Match[str], date: str) -> dict[str, str]:
    facts = {"NAME": author[1], "EMAIL": author[2], "DATE": date}
    return {f"GIT_{role}_{k}": v for role in ("AUTHOR", "COMMITTER") for k, v in facts.items()}


def _tip(repo: Repo, name: str) -> str | None:
    try:
        return commit_of(repo, name)
    except UsageError:
        return None


class _Writing:
    """One export: its index and its lists lie in ``scratch``."""

    def __init__(self, repo: Repo, scratch: Path, person: Mapping[str, str]) -> None:
        self._repo, self._scratch = repo, scratch
        self._env = {**person, "GIT_INDEX_FILE": os.fspath(scratch / "index")}

    def tree(self, root: bytes, items: Sequence[_Item]) -> str:
        """The hash of a tree of ``items``, whose contents are read below ``root``."""
        places = [os.path.join(root, item.path) for item in items]
        for number, item in enumerate(items):
            if item.target is not None:  # git would follow the link
                at = self._scratch / f"target-{number}"
                at.write_bytes(item.target)
                places[number] = os.fsencode(at)
        lines = b"".join(_quoted(os.path.abspath(place)) + b"\n" for place in places)
        hashes = self._git("hash-object -w --no-filters --stdin-paths", lines).split()
        rows = zip(items, hashes, strict=True)
        listed = b"".join(b"%b %b 0\t%b\0" % (i.mode, h.encode(), i.path) for i, h in rows)
        self._git("update-index -z --index-info", listed)
        return self._git("write-tree").strip()

    def commit(self, tree: str, name: str, message: str, parent: str | None) -> str:
        """A commit of ``tree`` that the ref ``name`` is moved to."""
        old = _tip(self._repo, name)
        text = message.rstrip("\n") + "\n"
        if old is not None and self._is(old, tree, text):
            return old
        given = commit_of(self._repo, parent) if parent else None
        if old not in (None, given):
            raise UsageError(
                f"{name} exists and names {old}",
                hint="give that commit as parent, or choose another name",
            )
        parents = f" -p {given}" if given else ""
        data = text.encode("utf-8", "surrogateescape")
        commit = self._git(f"commit-tree {tree}{parents} -F -", data).strip()
        # git checks the old value under its lock: two exports at once cannot lose one another.
        run_git(self._repo, "update-ref", name, commit, old or "0" * len(commit))
        return commit

    def _is(self, commit: str, tree: str, text: str) -> bool:
        head, _, found = self._git(f"cat-file commit {commit}").partition("\n\n")
        return head.startswith(f"tree {tree}\n") and found == text

    def _git(self, command: str, data: bytes = b"") -> str:
        stdin = self._scratch / "stdin"
        stdin.write_bytes(data)
        return run_git(self._repo, *command.split(), env=self._env, stdin=stdin)


def _quoted(path: bytes) -> bytes:
    """``path`` as one line of a list of paths."""
    if not _TO_QUOTE.search(path):
        return path
    return b'"' + _TO_QUOTE.sub(lambda found: b"\\%03o" % found[0][0], path) + b'"'


class _Lost:
    """What git cannot hold, by kind."""

    def __init__(self) -> None:
        self._found: dict[str, list[str]] = {}
        self._names: dict[tuple[int, int], list[str]] = {}

    def note(self, kind: str, path: bytes) -> None:
        """One more of a kind."""
        self._found.setdefault(kind, []).append(os.fsdecode(path))

    def look(self, path: bytes, full: bytes, info: os.stat_result) -> None:
        """Note what ``path`` has beyond its content."""
        plain = (0o755,) if stat.S_ISDIR(info.st_mode) else (0o644, 0o755)
        if not stat.S_ISLNK(info.st_mode) and stat.S_IMODE(info.st_mode) not in plain:
            self.note("permissions other than 644 and 755", path)
        if not stat.S_ISDIR(info.st_mode) and info.st_nlink > 1:
            key = (info.st_dev, info.st_ino)
            self._names.setdefault(key, []).append(os.fsdecode(path))
        if _has_attributes(full):
            self.note("extended attributes", path)

    def words(self, any_file: bool) -> list[str]:
        """One line a kind: how many, and the first of them."""
        linked = [names[0] for names in self._names.values() if len(names) > 1]
        found = {**self._found, **({"hard links (each name has a copy)": linked} if linked else {})}
        lines = []
        for kind, paths in sorted(found.items()):
            more = f" and {len(paths) - EXAMPLES} more" if len(paths) > EXAMPLES else ""
            shown = ", ".join(path or "." for path in sorted(paths)[:EXAMPLES])
            lines.append(f"{kind}: {shown}{more}")
        return [*lines, "modification times"] if any_file else lines


def _has_attributes(full: bytes) -> bool:
    try:
        return bool(os.listxattr(full, follow_symlinks=False))
    except OSError:
        return False  # a file system without attributes has none


def _items(root: bytes, lost: _Lost) -> Iterator[_Item]:
    """What goes into the tree; ``lost`` is told of everything else."""
    waiting, directories, filled = [b""], list[bytes](), {b""}
    while waiting:
        below = waiting.pop()
        for name in sorted(_names(os.path.join(root, below))):
            path = os.path.join(below, name)
            full = os.path.join(root, path)
            info = os.lstat(full)
            if _is_refused(name, info.st_mode):
                lost.note("names that git keeps for itself, with all below", path)
                continue
            item = _item(path, full, info)
            if item is not None:
                _fill(filled, below)
                yield item
            elif stat.S_ISDIR(info.st_mode):
                waiting.append(path)
                directories.append(path)
            else:
                lost.note("pipes, sockets and devices", path)
                continue
            lost.look(path, full, info)
    for path in directories:
        if path not in filled:
            lost.note("directories without any file", path)


def _names(directory: bytes) -> list[bytes]:
    try:
        return os.listdir(directory)
    except OSError as error:
        raise WorkspaceError(
            f"cannot read {os.fsdecode(directory)}: {error.strerror}",
            hint="export as the user who owns the workspace",
        ) from error


def _fill(filled: set[bytes], directory: bytes) -> None:
    while directory not in filled:
        filled.add(directory)
        directory = os.path.dirname(directory)


def _item(path: bytes, full: bytes, info: os.stat_result) -> _Item | None:
    if stat.S_ISLNK(info.st_mode):
        return _Item(path, b"120000", os.readlink(full))
    if stat.S_ISREG(info.st_mode):
        return _Item(path, b"100755" if info.st_mode & stat.S_IXUSR else b"100644", None)
    return None


def _is_refused(name: bytes, mode: int) -> bool:
    """Whether git would take ``name`` for a repository (or a link for its list of submodules)."""
    plain = _IGNORED_BY_HFS.sub("", os.fsdecode(name)).encode("utf-8", "surrogateescape")
    if stat.S_ISLNK(mode) and plain.lower() == b".gitmodules":
        return True
    return any(_DOT_GIT.fullmatch(part) for part in (plain, *name.split(b"\\")[1:]))
