"""``--workspace DIR|REPO@COMMIT``: the files that branches of a run without any start from."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from branchkit import disk
from branchkit.errors import UsageError


def base_directory(spec: str, store: Path) -> Path:
    """The directory that ``spec`` names; for ``REPO@COMMIT`` a clone of it, checked out once.

    A clone carries ``.git``, because agents ask git questions. Raises UsageError if there is no
    such directory, repository or commit.
    """
    directory = Path(spec)
    if directory.is_dir():
        return directory
    repository, at, commit = spec.rpartition("@")
    if not at or not Path(repository).is_dir():
        raise UsageError(f"there is no directory {spec!r}", hint="write DIR or REPO@COMMIT")
    return _checked_out(repository, commit, store / "checkouts")


def _checked_out(repository: str, commit: str, checkouts: Path) -> Path:
    import git

    try:
        sha = git.Repo(repository).commit(commit).hexsha
    except (git.InvalidGitRepositoryError, git.NoSuchPathError, git.BadName, ValueError) as error:
        raise UsageError(
            f"{repository} has no commit {commit!r}: {error}", hint="write REPO@COMMIT"
        ) from None
    target = checkouts / sha
    if target.is_dir():
        return target
    checkouts.mkdir(parents=True, exist_ok=True)
    half = checkouts / f".{sha}.{os.getpid()}"
    try:
        clone = git.Repo.clone_from(repository, half, no_checkout=True, local=True)
        clone.git.checkout("--quiet", "--detach", sha)
        clone.close()
        disk.rename(half, target)
    finally:
        shutil.rmtree(half, ignore_errors=True)
    return target
