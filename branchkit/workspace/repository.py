"""Git repositories of the user: opened, asked and left as they are.

Every git command runs through `run_git`, in the repository that was named and nowhere else.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from branchkit.errors import DependencyMissing, UsageError, WorkspaceError

if TYPE_CHECKING:
    from git import Repo

# Each would reach beyond what is asked: into the user's repository, or into the bytes.
_SETTINGS = {
    "core.splitIndex": "false",  # it would put a shared index into the repository
    "core.fsmonitor": "false",
    "core.untrackedCache": "false",
    "i18n.commitEncoding": "utf-8",
}


def open_repository(path: Path) -> Repo:
    """The repository at ``path``, which is its top or its git directory.

    Raises UsageError if there is none, DependencyMissing where git is not installed.
    """
    try:
        import git
    except ImportError as error:  # GitPython asks for the program when it is imported
        raise DependencyMissing(f"git cannot be used: {error}", hint="apt install git") from error
    if not path.is_dir():
        raise UsageError(f"there is no directory {path}", hint="name a git repository")
    try:
        return git.Repo(path)
    except git.InvalidGitRepositoryError:
        raise UsageError(
            f"{path} is no git repository", hint="name its top directory, or a path that is free"
        ) from None


def make_repository(path: Path) -> Repo:
    """The repository at ``path``; a new bare one if nothing is there. Raises UsageError."""
    if path.is_dir() and any(path.iterdir()):
        return open_repository(path)
    if path.exists() and not path.is_dir():
        raise UsageError(f"{path} is a file", hint="name a git repository, or a path that is free")
    path.mkdir(parents=True, exist_ok=True)
    try:
        import git
    except ImportError as error:
        raise DependencyMissing(f"git cannot be used: {error}", hint="apt install git") from error
    return git.Repo.init(path, bare=True)


def run_git(
    repo: Repo, *arguments: str, env: Mapping[str, str] = {}, stdin: Path | None = None
) -> str:
    """What a git command says (surrogates for bytes that are not UTF-8).

    It runs in ``repo`` whatever GIT_DIR and its like say: a hook that calls us has them set. Raises
    WorkspaceError with git's own words.
    """
    from git.exc import GitCommandError

    command = [repo.git.GIT_PYTHON_GIT_EXECUTABLE]
    for key, value in _SETTINGS.items():
        command += ["-c", f"{key}={value}"]
    places = {
        "GIT_DIR": os.fspath(repo.git_dir),
        "GIT_COMMON_DIR": os.fspath(repo.common_dir),
        "GIT_OBJECT_DIRECTORY": os.path.join(repo.common_dir, "objects"),
        "GIT_INDEX_FILE": os.path.join(repo.git_dir, "index"),
    }
    try:
        with (stdin or Path(os.devnull)).open("rb") as stream:
            said = repo.git.execute(
                [*command, *arguments],
                istream=stream,
                env={**places, **env},
                stdout_as_string=False,
                strip_newline_in_stdout=False,
            )
    except GitCommandError as error:
        raise WorkspaceError(
            f"git {arguments[0]} failed in {repo.git_dir}: {_said(error.stderr)}",
            hint="the repository's refs, index and files are as they were",
        ) from None
    return said.decode("utf-8", "surrogateescape")


def commit_of(repo: Repo, name: str, kind: str = "commit") -> str:
    """The hash of the commit (or its ``tree``) that ``name`` means. Raises UsageError."""
    try:
        wanted = f"{name}^{{{kind}}}"
        return run_git(repo, "rev-parse", "--verify", "--quiet", "--end-of-options", wanted).strip()
    except WorkspaceError:
        raise UsageError(
            f"{repo.git_dir} has no commit {name!r}", hint="give a hash, a branch or a tag"
        ) from None


def _said(stderr: object) -> str:
    words = stderr.decode(errors="replace") if isinstance(stderr, bytes) else str(stderr)
    return words.strip().removeprefix("stderr:").strip(" '\n")
