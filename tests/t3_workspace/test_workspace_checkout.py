"""``--workspace DIR|REPO@COMMIT``: what can be named, and that the repository stays as it is."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from branchkit.errors import UsageError
from branchkit.workspace.checkout import base_directory

from .kit import git, picture


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Two commits; feature/login, an annotated tag and a light one name the first."""
    root = tmp_path / "repo"
    root.mkdir()
    git(root, "init", "-q", "-b", "main")
    (root / "file").write_text("first\n")
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "first")
    git(root, "branch", "feature/login")
    git(root, "tag", "-a", "v1", "-m", "v1")
    git(root, "tag", "light/v1")
    (root / "file").write_text("second\n")
    git(root, "commit", "-q", "-a", "-m", "second")
    return root


def first(repository: Path) -> str:
    return git(repository, "rev-parse", "main~1").strip()


@pytest.mark.parametrize(
    "name", ["feature/login", "v1", "light/v1", "main~1", "HEAD@{1}", "refs/heads/feature/login"]
)
def test_whatever_git_calls_a_commit(repository: Path, tmp_path: Path, name: str) -> None:
    found = base_directory(f"{repository}@{name}", tmp_path / "store")
    assert (found / "file").read_text() == "first\n"
    assert found.name == first(repository)


def test_a_short_hash(repository: Path, tmp_path: Path) -> None:
    found = base_directory(f"{repository}@{first(repository)[:7]}", tmp_path / "store")
    assert found.name == first(repository)


def test_a_commit_that_no_branch_holds(repository: Path, tmp_path: Path) -> None:
    git(repository, "checkout", "-q", "--detach")
    git(repository, "commit", "-q", "--allow-empty", "-m", "alone")
    alone = git(repository, "rev-parse", "HEAD").strip()
    git(repository, "checkout", "-q", "main")
    found = base_directory(f"{repository}@{alone}", tmp_path / "store")
    assert git(found, "log", "-1", "--format=%s") == "alone\n"


def test_the_clone_answers_git_and_leads_nowhere(repository: Path, tmp_path: Path) -> None:
    """Agents ask git questions; an unconfined one must not push into the user's repository."""
    found = base_directory(f"{repository}@main", tmp_path / "store")
    assert git(found, "status", "--porcelain") == ""
    assert git(found, "branch", "--format=%(refname:short)").splitlines()[1:] == [
        "feature/login",
        "main",
    ]
    assert git(found, "tag") == "light/v1\nv1\n"
    assert git(found, "remote", "-v") == ""
    assert str(repository) not in (found / ".git" / "config").read_text()
    assert (found / "run.sh").stat().st_mode & 0o777 == 0o755
    assert not (found / ".git" / "hooks").exists()
    git(found, "fsck", "--strict")


def test_a_directory_is_itself(repository: Path, tmp_path: Path) -> None:
    assert base_directory(str(repository), tmp_path / "store") == repository
    assert not (tmp_path / "store").exists()


def test_a_directory_with_the_sign_in_its_name(repository: Path, tmp_path: Path) -> None:
    there = repository.rename(tmp_path / "a@b")
    assert base_directory(str(there), tmp_path / "store") == there
    found = base_directory(f"{there}@feature/login", tmp_path / "store")
    assert (found / "file").read_text() == "first\n"


def test_a_dirty_repository_stays_as_it_is(repository: Path, tmp_path: Path) -> None:
    """Not one byte or time of it changes; what is not committed does not come along."""
    (repository / "file").write_text("not committed\n")
    (repository / "new").write_text("not even added\n")
    (repository / "staged").write_text("staged\n")
    git(repository, "add", "staged")
    before = picture(repository)
    found = base_directory(f"{repository}@main", tmp_path / "store")
    # Objects are shared as hard links; nothing else of the repository is.
    assert {name: entry[:4] for name, entry in picture(repository).items()} == {
        name: entry[:4] for name, entry in before.items()
    }
    assert (found / "file").read_text() == "second\n"
    assert sorted(path.name for path in found.iterdir()) == [".git", "file", "run.sh"]


def test_the_second_call_reuses_the_clone(repository: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    one = base_directory(f"{repository}@feature/login", store)
    before = picture(one)
    assert base_directory(f"{repository}@v1", store) == one
    assert picture(one) == before
    assert [path.name for path in (store / "checkouts").iterdir()] == [one.name]


def test_two_at_once_get_the_same(repository: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: base_directory(f"{repository}@main", store), range(4)))
    assert len(set(found)) == 1
    assert git(found[0], "status", "--porcelain") == ""
    assert [path.name for path in (store / "checkouts").iterdir()] == [found[0].name]


def test_a_foreign_git_environment_does_not_mislead(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inside a git hook GIT_DIR names another repository than the one asked for."""
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "-q")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other / ".git" / "index"))
    found = base_directory(f"{repository}@v1", tmp_path / "store")
    assert (found / "file").read_text() == "first\n"
    assert not (other / ".git" / "index").exists()


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("{repo}@nothing", "has no commit 'nothing'"),
        ("{repo}@-x", "has no commit '-x'"),
        ("{repo}@", "has no commit ''"),
        ("{repo}@v1:file", "has no commit 'v1:file'"),
        ("{plain}@main", "is no git repository"),
        ("{repo}/src@main", "is no git repository"),
        ("{plain}/missing", "there is no directory"),
        ("{plain}/missing@main", "there is no directory"),
        ("@main", "there is no directory"),
    ],
)
def test_what_cannot_be_named_is_an_error(
    repository: Path, tmp_path: Path, spec: str, words: str
) -> None:
    (tmp_path / "plain").mkdir()
    (repository / "src").mkdir()
    with pytest.raises(UsageError, match=words) as caught:
        base_directory(spec.format(repo=repository, plain=tmp_path / "plain"), tmp_path / "store")
    assert caught.value.hint
    assert not (tmp_path / "store").exists()
