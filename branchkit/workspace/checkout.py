"""``--workspace DIR|REPO@COMMIT``: the files that branches of a run without any start from."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from branchkit import disk
from branchkit.errors import UsageError
from branchkit.workspace.repository import commit_of, open_repository, run_git

_DEFAULT_HINT = "write DIR or REPO@COMMIT"


def base_directory(spec: str, store: Path) -> Path:
    """The directory that ``spec`` names; for ``REPO@COMMIT`` a clone of it, checked out once.

    A clone carries ``.git`` with the repository's branches and tags, because agents ask git
    questions; it has no remote, so nothing that runs in it finds the way back. What is not
    committed stays behind. Raises UsageError if there is no such directory, repository or commit.
    """
    directory = Path(spec)
    if directory.is_dir():
        return directory
    for repository, commit in _readings(spec):
        return _checked_out(repository, commit, store / "checkouts")
    raise UsageError(f"there is no directory {spec!r}", hint=_DEFAULT_HINT)


def _readings(spec: str) -> Iterator[tuple[Path, str]]:
    """Where ``spec`` can be cut so that a directory stands in front: ``a@b@main``, ``r@HEAD@{1}``.

    The longest directory first.
    """
    for at in range(len(spec) - 1, 0, -1):
        if spec[at] == "@" and Path(spec[:at]).is_dir():
            yield Path(spec[:at]), spec[at + 1 :]


def _checked_out(repository: Path, commit: str, checkouts: Path) -> Path:
    with open_repository(repository) as repo:
        sha = commit_of(repo, commit)
        source = os.path.abspath(repo.common_dir)
    target = checkouts / sha
    if target.is_dir():
        return target
    checkouts.mkdir(parents=True, exist_ok=True)
    half = Path(tempfile.mkdtemp(prefix=f".{sha}.", dir=checkouts))
    try:
        _clone(source, sha, half / "tree")
        disk.rename(half / "tree", target)
    except OSError:
        if not target.is_dir():  # else somebody else was faster with the same commit
            raise
    finally:
        shutil.rmtree(half)
    return target


def _clone(source: str, sha: str, directory: Path) -> None:
    """A work tree of ``sha`` with a repository of its own, whose objects are hard links."""
    # Bare first: so every branch arrives as a branch, not as one of a remote. And without the
    # user's template: its hooks would run in a workspace that others are meant to change.
    directory.mkdir()
    run_git(directory, "clone", "--quiet", "--bare", "--local", "--template=", source, ".git")
    with open_repository(directory / ".git") as repo:
        run_git(repo, "config", "core.bare", "false")
        run_git(repo, "remote", "remove", "origin")
    with open_repository(directory) as repo:
        run_git(repo, "checkout", "--quiet", "--detach", sha, env={"GIT_WORK_TREE": str(directory)})
