"""A workspace as a commit in the user's repository: with real git, and nothing else touched."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from branchkit.errors import TurnOutside, UsageError
from branchkit.replay.exported import export_turn
from branchkit.replay.recorded import Recorded
from branchkit.workspace import Workspaces
from branchkit.workspace.export import Exported, export_commit, patch, tip

from .kit import Open, git, picture

SAMPLE = (
    Path(__file__).resolve().parents[2]
    / "sample_journals/branch_cleanup/branch_cleanup.journal.jsonl"
)
DATE = datetime(2026, 3, 2, 4, 5, 6, tzinfo=timezone(timedelta(hours=2)))
ODD = b'caf\xe9 "q" back\\slash\r\n\tend\r'


@pytest.fixture
def ws(opened: Open, backend: str) -> Workspaces:
    return opened(backend=backend)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A user's repository in the middle of work: staged, changed and new files, a stash."""
    root = tmp_path / "mine"
    root.mkdir()
    git(root, "init", "-q", "-b", "main")
    (root / "file").write_text("one\n")
    (root / "other").write_text("one\n")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "one")
    (root / "file").write_text("stashed\n")
    git(root, "stash", "-q")
    (root / "file").write_text("changed\n")
    (root / "other").write_text("staged\n")
    git(root, "add", "other")
    (root / "new").write_text("new\n")
    return root


def export(directory: Path, repository: Path, **changes: object) -> Exported:
    plain = {"ref": "out", "message": "Exported\n\nby a test", "date": DATE}
    return export_commit(directory, repository, **(plain | changes))  # type: ignore[arg-type]


def archived(repository: Path, commit: str) -> dict[bytes, tuple[int, bytes]]:
    """What `git archive` gives back: mode and content (or target) by name."""
    command = ["git", "-C", str(repository), "-c", "tar.umask=0022", "archive", commit]
    data = subprocess.run(command, check=True, capture_output=True).stdout
    found = {}
    with tarfile.open(fileobj=io.BytesIO(data), encoding="utf-8") as tar:
        for member in tar:
            name = member.name.encode("utf-8", "surrogateescape")
            if member.issym():
                found[name] = (0o120000, member.linkname.encode("utf-8", "surrogateescape"))
            elif (stream := tar.extractfile(member)) is not None:
                found[name] = (member.mode, stream.read())
    return found


def test_every_file_comes_back_from_git_archive(ws: Workspaces, base: Path, tmp_path: Path) -> None:
    """Contents, exec bit, links, odd names, ignored files; what git cannot hold is named."""
    branch = ws.create("one", base=ws.add_base(base))
    root = os.fsencode(branch.path)
    with open(os.path.join(root, ODD), "wb") as stream:
        stream.write(b"odd\n")
    os.symlink(b"to/caf\xe9", os.path.join(root, b"dangling"))
    os.symlink(b"/etc/passwd", os.path.join(root, b"outside"))
    (branch.path / ".gitignore").write_text("*.log\nhidden/\n")
    (branch.path / "a.log").write_text("ignored\n")
    (branch.path / "hidden").mkdir()
    (branch.path / "hidden" / "x").write_text("ignored too\n")
    (branch.path / "tool").write_bytes(b"\0\1\2")
    (branch.path / "tool").chmod(0o4711)
    repository = tmp_path / "out.git"
    done = export(branch.path, repository)
    assert archived(repository, done.commit) == {
        ODD: (0o644, b"odd\n"),
        b"dangling": (0o120000, b"to/caf\xe9"),
        b"outside": (0o120000, b"/etc/passwd"),
        b".gitignore": (0o644, b"*.log\nhidden/\n"),
        b"a.log": (0o644, b"ignored\n"),
        b"hidden/x": (0o644, b"ignored too\n"),
        b"tool": (0o755, b"\0\1\2"),
        b"README": (0o644, b"read me\n"),
        b"src/main.py": (0o644, b"print('hello')\n"),
        b"src/deep/data": (0o644, bytes(range(256)) * 1000),
        b"src/link": (0o120000, b"main.py"),
        b"src/hard": (0o644, b"read me\n"),
        b"run.sh": (0o755, b"#!/bin/sh\n"),
        "odd \n naïve".encode(): (0o644, b""),
    }
    assert done.files == 14
    assert done.lost == [
        "directories without any file: empty",
        "extended attributes: README, src/hard",
        "hard links (each name has a copy): README",
        "names that git keeps for itself, with all below: .git",
        "permissions other than 644 and 755: tool",
        "pipes, sockets and devices: pipe",
        "modification times",
    ]
    git(repository, "fsck", "--strict")


def test_no_filter_of_the_workspace_or_the_user_is_run(
    ws: Workspaces, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Line endings, ident and clean filters would change bytes, or run somebody's program."""
    ran = tmp_path / "ran"
    for number, (key, value) in enumerate(
        [("core.autocrlf", "true"), ("filter.spy.clean", f"touch {ran}; cat")]
    ):
        monkeypatch.setenv(f"GIT_CONFIG_KEY_{number}", key)
        monkeypatch.setenv(f"GIT_CONFIG_VALUE_{number}", value)
    monkeypatch.setenv("GIT_CONFIG_COUNT", "2")
    branch = ws.create("one", base=ws.add_base(base))
    (branch.path / ".gitattributes").write_text("* text ident filter=spy eol=lf\n")
    (branch.path / "dos").write_bytes(b"a\r\n$Id$\r\n")
    done = export(branch.path, tmp_path / "out.git")
    monkeypatch.delenv("GIT_CONFIG_COUNT")
    said = ["git", "-C", str(tmp_path / "out.git"), "cat-file", "blob", f"{done.commit}:dos"]
    assert subprocess.run(said, check=True, capture_output=True).stdout == b"a\r\n$Id$\r\n"
    assert not ran.exists()


def test_the_users_repository_stays_as_it_is(ws: Workspaces, base: Path, repository: Path) -> None:
    """HEAD, index, work tree, stash and reflogs are the same bytes; only objects and a ref came."""
    before = picture(repository)
    status = git(repository, "status", "--porcelain=v2", "--branch")
    before_status = picture(repository)  # `git status` itself may write the index anew
    branch = ws.create("one", base=ws.add_base(base))
    done = export(branch.path, repository, ref="agent/out")
    after = picture(repository)
    new = {name for name in after if name not in before}
    assert {name.split("/")[1] for name in new} <= {"objects", "refs", "logs"}
    assert {name for name in new if "/refs/" in name and "out" in name} == {
        ".git/refs/heads/agent/out",
        ".git/logs/refs/heads/agent/out",
    }
    changed = {name for name in before if after[name] != before_status[name]}
    assert all(after[name][2] == before[name][2] for name in before)  # not one content
    assert changed <= {  # times of directories that got the new objects and the ref
        ".git/objects", ".git/refs/heads", ".git/logs/refs/heads",
        *(name for name in before if name.startswith(".git/objects/")), ".git",
    }  # fmt: skip
    assert git(repository, "status", "--porcelain=v2", "--branch") == status
    assert git(repository, "rev-parse", "agent/out").strip() == done.commit
    git(repository, "fsck", "--strict")


def test_author_date_message_and_parent(ws: Workspaces, base: Path, repository: Path) -> None:
    """The commit says who, when and why in exactly the words given, and is the same each time."""
    branch = ws.create("one", base=ws.add_base(base))
    one = export(branch.path, repository, author="Ada Byron <ada@example.org>", message="Grüße\n")
    shown = git(repository, "show", "-s", "--format=%an|%ae|%aI|%cn|%cI|%P|%B", one.commit)
    date = "2026-03-02T04:05:06+02:00"
    assert shown.strip() == f"Ada Byron|ada@example.org|{date}|Ada Byron|{date}||Grüße"
    (branch.path / "more").write_text("more\n")
    two = export(branch.path, repository, parent=one.commit)
    assert git(repository, "rev-list", "out").split() == [two.commit, one.commit]
    again = export(branch.path, repository, parent=two.commit)
    assert again == two  # the ref holds this already
    elsewhere = export(branch.path, repository, ref="refs/branchkit/x", parent=one.commit)
    assert (elsewhere.commit, elsewhere.ref) == (two.commit, "refs/branchkit/x")


def test_diff_push_patch_and_apply(
    ws: Workspaces, base: Path, repository: Path, tmp_path: Path
) -> None:
    """`git diff A B` and `git push` work; the patch takes A's files to B's, binary ones too."""
    branch = ws.create("one", base=ws.add_base(base))
    one = export(branch.path, repository)
    (branch.path / "src" / "main.py").write_text("print('bye')\n")
    (branch.path / "latin").write_bytes(b"caf\xe9\n")
    (branch.path / "src" / "deep" / "data").write_bytes(bytes(reversed(range(256))) * 900)
    (branch.path / "run.sh").chmod(0o644)
    (branch.path / "README").unlink()
    two = export(branch.path, repository, parent=one.commit)
    assert git(repository, "diff", "--name-status", one.commit, two.commit).split("\n") == [
        "D\tREADME", "A\tlatin", "M\trun.sh", "M\tsrc/deep/data", "M\tsrc/main.py", "",
    ]  # fmt: skip

    bare = tmp_path / "bare.git"
    git(tmp_path, "init", "-q", "--bare", str(bare))
    git(bare, "config", "receive.fsckObjects", "true")
    git(repository, "push", "-q", str(bare), "out")
    assert git(bare, "rev-parse", "out").strip() == two.commit

    git(repository, "config", "diff.noprefix", "true")
    git(repository, "config", "color.ui", "always")
    text = patch(repository, one.commit, "out")
    assert "+print('bye')" in text
    (tmp_path / "it.patch").write_bytes(text.encode("utf-8", "surrogateescape"))
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(bare), str(clone))
    git(clone, "checkout", "-q", "-b", "work", one.commit)
    git(clone, "apply", "--index", str(tmp_path / "it.patch"))
    assert git(clone, "write-tree") == git(clone, "rev-parse", f"{two.commit}^{{tree}}")
    assert patch(repository, two.commit, two.commit) == ""


def test_nested_repositories_lose_their_git_directory_alone(
    ws: Workspaces, base: Path, tmp_path: Path
) -> None:
    """git add would make a link to a commit of them, or fail: here the files are there."""
    branch = ws.create("one", base=ws.add_base(base))
    nested = branch.path / "vendor" / "lib"
    nested.mkdir(parents=True)
    (nested / "code").write_text("code\n")
    git(nested, "init", "-q")
    git(nested, "add", ".")
    git(nested, "commit", "-q", "-m", "x")
    (branch.path / "worktree").mkdir()
    (branch.path / "worktree" / ".git").write_text("gitdir: elsewhere\n")
    for trap in (".GIT", "git~1", ".git. ", "a\\.git", ".g\u200cit"):
        (branch.path / "traps").mkdir(exist_ok=True)
        (branch.path / "traps" / trap).mkdir()
        (branch.path / "traps" / trap / "config").write_text("x\n")
    (branch.path / "traps" / ".gitmodules").symlink_to("x")
    (branch.path / "traps" / ".gitignored").write_text("a plain file\n")
    done = export(branch.path, tmp_path / "out.git")
    names = archived(tmp_path / "out.git", done.commit).keys()
    assert b"vendor/lib/code" in names
    assert {name for name in names if name.startswith(b"traps/")} == {b"traps/.gitignored"}
    assert not any(b".git/" in name or name.endswith(b".git") for name in names)
    (line,) = [line for line in done.lost if line.startswith("names that git")]
    assert line.endswith(".git, traps/.GIT, traps/.git.  and 6 more")
    git(tmp_path / "out.git", "fsck", "--strict")


def test_an_empty_workspace_is_an_empty_commit(ws: Workspaces, tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    branch = ws.create("one", base=ws.add_base(tmp_path / "nothing"))
    done = export(branch.path, tmp_path / "out.git")
    assert (done.files, done.lost) == (0, [])
    assert git(tmp_path / "out.git", "ls-tree", "-r", done.commit) == ""


def test_a_hook_that_calls_us_does_not_mislead(
    base: Path, repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inside a hook, GIT_DIR and GIT_INDEX_FILE are those of the repository that runs it."""
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "a").write_text("a\n")
    before = (repository / ".git" / "index").read_bytes()
    monkeypatch.setenv("GIT_DIR", str(repository / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(repository / ".git" / "index"))
    monkeypatch.setenv("GIT_WORK_TREE", str(repository))
    done = export(tmp_path / "plain", tmp_path / "out.git")
    for name in ("GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE"):
        monkeypatch.delenv(name)
    assert git(tmp_path / "out.git", "rev-parse", "out").strip() == done.commit
    assert (repository / ".git" / "index").read_bytes() == before
    assert tip(repository, "out") is None


def test_a_repository_that_is_a_worktree(base: Path, repository: Path, tmp_path: Path) -> None:
    """Its git directory lies elsewhere; a branch that any of them has out is refused."""
    git(repository, "worktree", "add", "-q", "-b", "side", str(tmp_path / "side"))
    done = export(base, tmp_path / "side", ref="out")
    assert git(repository, "rev-parse", "out").strip() == done.commit
    for where in (repository, tmp_path / "side"):
        for ref in ("main", "refs/heads/side"):
            with pytest.raises(UsageError, match="is checked out"):
                export(base, where, ref=ref, parent=ref)


def test_a_ref_is_never_moved_away_from_what_it_holds(base: Path, repository: Path) -> None:
    git(repository, "branch", "precious")
    held = git(repository, "rev-parse", "precious")
    for parent in (None, "stash@{0}"):
        with pytest.raises(UsageError, match="exists and names"):
            export(base, repository, ref="precious", parent=parent)
    assert git(repository, "rev-parse", "precious") == held
    done = export(base, repository, ref="precious", parent="precious")
    assert git(repository, "rev-parse", "precious~1") == held
    assert git(repository, "rev-parse", "precious").strip() == done.commit


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ref": "a..b"}, "cannot be the name of a ref"),
        ({"ref": "-x y"}, "cannot be the name of a ref"),
        ({"ref": ""}, "cannot be the name of a ref"),
        ({"ref": "main"}, "is checked out"),
        ({"parent": "nothing"}, "has no commit 'nothing'"),
        ({"author": "nobody"}, "is no author"),
        ({"author": "a\n <b>"}, "is no author"),
        ({"date": datetime(2026, 1, 1)}, "has no time zone"),
    ],
)
def test_what_is_asked_wrongly(
    base: Path, repository: Path, changes: dict[str, object], words: str
) -> None:
    before = {name: entry[2] for name, entry in picture(repository).items() if "refs" in name}
    with pytest.raises(UsageError, match=words) as caught:
        export(base, repository, **changes)
    assert caught.value.hint
    assert before == {n: entry[2] for n, entry in picture(repository).items() if "refs" in n}


def test_where_no_repository_can_be(base: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("x")
    (tmp_path / "file").write_text("x")
    for place, words in [
        (tmp_path / "full", "is no git repository"),
        (tmp_path / "file", "is a file"),
        (base / "inside", "lies inside the workspace"),
    ]:
        with pytest.raises(UsageError, match=words) as caught:
            export(base, place)
        assert caught.value.hint
    for place in (tmp_path / "full", tmp_path / "missing"):
        with pytest.raises(UsageError):
            patch(place, "a", "b")
    assert not (base / "inside").exists()


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    with pytest.MonkeyPatch.context() as patcher:
        patcher.setenv("BRANCHKIT_STORE", str(tmp_path_factory.mktemp("blobs")))
        run = Recorded.open(SAMPLE)
        yield run
        run.close()


def test_turns_of_the_sample(
    sample: Recorded, ws: Workspaces, repository: Path, tmp_path: Path
) -> None:
    """Two turns: `git diff` shows what the agent wrote between them, `git push` takes them."""
    one = export_turn(sample, 20, repository, workspaces=ws)
    two = export_turn(sample, sample.turns + 1, repository, workspaces=ws)
    run_id = sample.record.run_id
    assert one.ref == two.ref == f"refs/heads/branchkit/{run_id[:8]}"
    assert git(repository, "diff", "--name-status", one.commit, two.commit) == (
        "A\tcleanup-notes.md\nA\tcleanup-report.md\n"
    )
    assert git(repository, "rev-list", two.ref).split() == [two.commit, one.commit]
    message = git(repository, "show", "-s", "--format=%B", one.commit)
    assert message.startswith("Before turn 20 of branch_cleanup.journal.jsonl\n\n")
    last = sample.events_until(19)[-1]
    trailers = dict(line.split(": ", 1) for line in message.splitlines() if ": " in line)
    assert trailers.pop("Branchkit-Context").startswith("sha256:")
    assert trailers == {
        "Branchkit-Run": run_id,
        "Branchkit-Turn": "20",
        "Branchkit-Event": last.event_hash,
        "Branchkit-Tree": sample.record_after(19).snapshots[-1].tree_hash,
    }
    dated = git(repository, "show", "-s", "--format=%aI", one.commit).strip()
    recorded_at = datetime.fromisoformat(last.recorded_at).replace(microsecond=0)
    assert datetime.fromisoformat(dated) == recorded_at
    assert export_turn(sample, sample.turns + 1, repository, workspaces=ws) == two
    bare = tmp_path / "bare.git"
    git(tmp_path, "init", "-q", "--bare", str(bare))
    git(repository, "push", "-q", str(bare), two.ref)
    git(repository, "fsck", "--strict")
    assert ws.branches() == []


def test_an_exported_turn_is_the_same_commit_everywhere(
    sample: Recorded, opened: Open, tmp_path: Path
) -> None:
    """Equal journals give equal commits, whichever backend restored the files."""
    commits = {
        export_turn(
            sample, 22, tmp_path / f"{kind}.git", workspaces=opened(tmp_path / kind, backend=kind)
        ).commit
        for kind in ("fuse", "copy")
    }
    assert len(commits) == 1


def test_a_turn_that_cannot_be_exported(sample: Recorded, ws: Workspaces, tmp_path: Path) -> None:
    """And when the repository refuses, no branch is left in the store."""
    for turn in (0, sample.turns + 2):
        with pytest.raises(TurnOutside):
            export_turn(sample, turn, tmp_path / "out.git", workspaces=ws)
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError):
        export_turn(sample, 1, tmp_path / "file", workspaces=ws)
    assert not (tmp_path / "out.git").exists()
    assert ws.branches() == []


def test_a_time_zone_is_kept_in_utc_too(base: Path, tmp_path: Path) -> None:
    done = export(base, tmp_path / "out.git", date=datetime(2001, 2, 3, tzinfo=UTC))
    shown = git(tmp_path / "out.git", "show", "-s", "--format=%aI", done.commit)
    assert shown.strip() == "2001-02-03T00:00:00+00:00"
