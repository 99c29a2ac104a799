"""Git repositories of the user: opened, asked and left as they are.

Every git command runs through `run_git`, in the repository that was named and nowhere else.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
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
# What git itself calls local to a repository, but for settings: those are the user's wish.
_MISLEADING = (
    "GIT_DIR", "GIT_WORK_TREE", "GIT_COMMON_DIR", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_IMPLICIT_WORK_TREE", "GIT_PREFIX", "GIT_NAMESPACE",
    "GIT_SHALLOW_FILE", "GIT_GRAFT_FILE", "GIT_REPLACE_REF_BASE", "GIT_NO_REPLACE_OBJECTS",
)  # fmt: skip


def open_repository(path: Path) -> Repo:
    """The repository at ``path``, which is its top or its git directory.

    Raises UsageError if there is none, DependencyMissing where git is not installed.
    """
    git = _gitpython()
    if not path.is_dir():
        raise UsageError(f"there is no directory {path}", hint="name a git repository")
    try:
        repo: Repo = git.Repo(path)
    except git.InvalidGitRepositoryError:
        raise UsageError(
            f"{path} is no git repository", hint="name its top directory, or a path that is free"
        ) from None
    return repo


def make_repository(path: Path) -> Repo:
    """The repository at ``path``; a new bare one if nothing is there. Raises UsageError."""
    if path.exists() and not path.is_dir():
        raise UsageError(f"{path} is a file", hint="name a git repository, or a path that is free")
    if is_free(path):
        path.mkdir(parents=True, exist_ok=True)
        run_git(path.resolve(), "init", "--quiet", "--bare", ".")
    return open_repository(path)


def is_free(path: Path) -> bool:
    """Whether a repository could be made at ``path``: nothing is there, or nothing is in it."""
    return not path.exists() or (path.is_dir() and not any(path.iterdir()))


def run_git(
    where: Repo | Path, *arguments: str, env: Mapping[str, str] = {}, stdin: Path | None = None
) -> str:
    """What a git command says (surrogates for bytes that are not UTF-8), in a repository.

    ``where`` is a directory for commands that make a repository there. Raises WorkspaceError with
    git's own words, DependencyMissing where git is not installed.
    """
    git = _gitpython()
    runner = git.Git(where) if isinstance(where, Path) else where.git
    places = {} if isinstance(where, Path) else {"GIT_DIR": os.fspath(where.git_dir)}
    # A hook that calls us has them set for its own repository. GitPython can set, but not unset.
    command = ["env", *(word for name in _MISLEADING for word in ("-u", name))]
    command += [f"{name}={value}" for name, value in {**places, **env}.items()]
    command.append(str(runner.GIT_PYTHON_GIT_EXECUTABLE))
    for key, value in _SETTINGS.items():
        command += ["-c", f"{key}={value}"]
    try:
        with (stdin or Path(os.devnull)).open("rb") as stream:
            said = runner.execute(
                [*command, *arguments],
                istream=stream,
                stdout_as_string=False,
                strip_newline_in_stdout=False,
            )
    except git.GitCommandError as error:
        raise WorkspaceError(
            f"git {arguments[0]} failed in {places.get('GIT_DIR', where)}: {_said(error.stderr)}",
            hint="the repository's refs, index and files are as they were",
        ) from None
    return bytes(said).decode("utf-8", "surrogateescape")


def commit_of(repo: Repo, name: str, kind: str = "commit") -> str:
    """The hash of the commit (or its ``tree``) that ``name`` means. Raises UsageError."""
    try:
        wanted = f"{name}^{{{kind}}}"
        return run_git(repo, "rev-parse", "--verify", "--quiet", "--end-of-options", wanted).strip()
    except WorkspaceError:
        raise UsageError(
            f"{repo.git_dir} has no commit {name!r}", hint="give a hash, a branch or a tag"
        ) from None


def _gitpython() -> ModuleType:
    try:
        import git
    except ImportError as error:  # GitPython asks for the program when it is imported
        raise DependencyMissing(f"git cannot be used: {error}", hint="apt install git") from error
    return git


def _said(stderr: object) -> str:
    words = stderr.decode(errors="replace") if isinstance(stderr, bytes) else str(stderr)
    return words.strip().removeprefix("stderr:").strip(" '\n")
