"""The versions of a path over snapshots: files, directories, links, what is no version (R65)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from branchkit.errors import UsageError
from branchkit.workspace import Branch, Workspaces
from branchkit.workspace.history import Taken, Version, history

from .kit import Open

Act = Callable[[Path], object]


@pytest.fixture
def ws(opened: Open, backend: str) -> Workspaces:
    return opened(backend=backend)


class Lived:
    """A branch that is frozen after each turn, and the history of what happened in it."""

    def __init__(self, ws: Workspaces, base: Path) -> None:
        self.ws, self.base = ws, ws.add_base(base)
        self.branch: Branch = ws.create("run", base=self.base)
        self.taken = [Taken(self.branch.freeze().id, 0)]

    def turn(self, act: Act) -> None:
        act(self.branch.path)
        self.taken.append(Taken(self.branch.freeze().id, self.taken[-1].turn + 1))

    def versions(self, path: str) -> list[Version]:
        return history(self.ws, base=self.base, taken=self.taken, path=path)

    def what(self, path: str) -> list[tuple[int, str, str]]:
        return [(one.turn, one.path, one.what) for one in self.versions(path)]


@pytest.fixture
def lived(ws: Workspaces, base: Path) -> Lived:
    return Lived(ws, base)


def test_added_changed_removed_and_added_again(lived: Lived) -> None:
    lived.turn(lambda root: (root / "notes").write_text("one"))
    lived.turn(lambda root: (root / "other").write_text("not this one"))
    lived.turn(lambda root: (root / "notes").write_text("three"))
    lived.turn(lambda root: (root / "notes").unlink())
    lived.turn(lambda root: (root / "notes").write_text("one"))
    assert lived.what("notes") == [
        (1, "notes", "added"),
        (3, "notes", "changed"),
        (4, "notes", "removed"),
        (5, "notes", "added"),
    ]
    one, three, gone, again = lived.versions("notes")
    assert (one.sha256, one.size) == (again.sha256, 3)
    assert three.sha256 not in (None, one.sha256)
    assert (gone.sha256, gone.size, gone.mode) == (None, None, None)
    assert one.snapshot == lived.taken[1].snapshot


def test_a_file_of_the_base_begins_as_present(lived: Lived) -> None:
    lived.turn(lambda root: (root / "README").write_text("new\n"))
    first, second = lived.versions("README")
    assert (first.turn, first.what, first.snapshot) == (0, "present", None)
    assert (second.turn, second.what) == (1, "changed")
    assert [one.what for one in lived.versions("src/main.py")] == ["present"]


def test_times_alone_are_no_version(lived: Lived) -> None:
    lived.turn(lambda root: os.utime(root / "README", ns=(1, 1)))
    lived.turn(lambda root: (root / "README").write_bytes((root / "README").read_bytes()))
    lived.turn(lambda root: (root / "src" / "x").touch())  # the time of src changes with it
    lived.turn(lambda root: (root / "src" / "x").unlink())
    assert [one.what for one in lived.versions("README")] == ["present"]
    assert [one for one in lived.what("src") if one[1] == "src"] == [(0, "src", "present")]


def test_modes_targets_and_attributes_are(lived: Lived) -> None:
    lived.turn(lambda root: (root / "README").chmod(0o600))
    lived.turn(lambda root: os.setxattr(root / "README", "user.k", b"v"))

    def relink(root: Path) -> None:
        (root / "src" / "link").unlink()
        (root / "src" / "link").symlink_to("elsewhere")

    lived.turn(relink)
    assert [one[0] for one in lived.what("README")] == [0, 1, 2]
    assert [one[0] for one in lived.what("src/link")] == [0, 3]


def test_a_directory_is_everything_below_it(lived: Lived) -> None:
    """Removed as a whole, moved, and a file in its place: each path below is told."""
    lived.turn(lambda root: (root / "src" / "deep" / "more").write_text("more"))
    lived.turn(lambda root: os.rename(root / "src" / "deep", root / "moved"))
    lived.turn(lambda root: shutil.rmtree(root / "moved"))
    lived.turn(lambda root: (root / "moved").write_text("a file now"))
    assert lived.what("src/deep") == [
        (0, "src/deep", "present"),
        (0, "src/deep/data", "present"),
        (1, "src/deep/more", "added"),
        (2, "src/deep", "removed"),
        (2, "src/deep/data", "removed"),
        (2, "src/deep/more", "removed"),
    ]
    assert lived.what("moved") == [
        (2, "moved", "added"),
        (2, "moved/data", "added"),
        (2, "moved/more", "added"),
        (3, "moved", "removed"),
        (3, "moved/data", "removed"),
        (3, "moved/more", "removed"),
        (4, "moved", "added"),
    ]


def test_the_whole_workspace_and_ways_to_write_a_path(lived: Lived) -> None:
    lived.turn(lambda root: (root / "a").write_text("a"))
    everything = {path for _, path, _ in lived.what(".")}
    assert {"", "a", "README", "src/deep/data", "odd \n naïve", "pipe"} <= everything
    for spelled in ("a", "./a", "/a", "a/", "src/../a", "src/./../a"):
        assert lived.what(spelled) == [(1, "a", "added")], spelled


def test_a_name_that_is_a_prefix_of_another_is_not_it(lived: Lived) -> None:
    lived.turn(lambda root: (root / "READ").write_text("x"))
    assert {path for _, path, _ in lived.what("READ")} == {"READ"}


def test_a_name_that_is_not_utf8(lived: Lived) -> None:
    lived.turn(lambda root: (root / os.fsdecode(b"caf\xe9")).write_text("x"))
    assert lived.what(os.fsdecode(b"caf\xe9")) == [(1, "caf\udce9", "added")]


def test_a_write_through_another_name_of_the_file_is_seen(lived: Lived) -> None:
    lived.turn(lambda root: (root / "src" / "hard").write_text("through the other name"))
    assert [one[0] for one in lived.what("README")] == [0, 1]


def test_turns_without_changes_and_snapshots_of_others_do_not_show(
    lived: Lived, ws: Workspaces
) -> None:
    other = ws.create("other", base=lived.base)
    (other.path / "README").write_text("of another branch")
    other.freeze()
    lived.turn(lambda root: None)
    lived.turn(lambda root: (root / "README").write_text("two"))
    assert [one[0] for one in lived.what("README")] == [0, 2]


@pytest.mark.parametrize(
    ("path", "words"), [("missing", "never had"), ("..", "leads out"), ("a/../../x", "leads out")]
)
def test_what_was_never_there_is_an_error(lived: Lived, path: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        lived.versions(path)
    assert caught.value.hint
