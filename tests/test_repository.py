"""What is true of the repository as a whole: what lies where, what no file says, what is pinned."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections import defaultdict
from pathlib import Path

import pytest

from branchkit import errors

ROOT = Path(__file__).resolve().parent.parent

TOP_LEVEL = {
    ".ci",
    ".github",
    ".gitignore",
    "CHANGELOG.md",
    "LICENSE",
    "Makefile",
    "README.md",
    "branchkit",
    "docs",
    "extensions",
    "notebooks",
    "pyproject.toml",
    "requirements.lock",
    "sample_journals",
    "tests",
}

# Put together here so that this file may be searched like any other.
FORBIDDEN = {
    "a path of one machine": re.compile("(?<![A-Za-z0-9_.~})-])/(" + "work|root|farm" + ")/"),
    "the host of a package index": re.compile(
        "|".join(
            re.escape(name + "." + domain)
            for name, domain in [
                ("pypi", "org"),
                ("pythonhosted", "org"),
                ("npmjs", "org"),
                ("npmjs", "com"),
                ("yarnpkg", "com"),
                ("deb.debian", "org"),
                ("archive.ubuntu", "com"),
            ]
        )
    ),
    "work left undone": re.compile(r"\b(" + "TO" + "DO|FIX" + "ME)" + r"\b"),
}


def tracked() -> list[Path]:
    """Every file that git has and that is still there."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True
    ).stdout
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def lock_lines() -> list[str]:
    return (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()


def pinned_names() -> set[str]:
    return {line.partition("==")[0] for line in lock_lines()}


def declared(*, with_groups: bool) -> set[str]:
    """The names of the packages that pyproject.toml asks for."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project = settings["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    if with_groups:
        lists += settings["dependency-groups"].values()
    return {re.split(r"[ <>=!~;\[]", one)[0].lower() for each in lists for one in each}


def test_the_top_level_holds_only_what_belongs_there() -> None:
    found = {path.relative_to(ROOT).parts[0] for path in tracked()}
    assert found <= TOP_LEVEL, f"new at the top level: {sorted(found - TOP_LEVEL)}"


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_file_says(what: str) -> None:
    found = []
    for path in tracked():
        # Bytes that are not text are looked at all the same: a pack may hold a path too.
        text = path.read_bytes().decode("utf-8", errors="replace")
        for match in FORBIDDEN[what].finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            found.append(f"{path.relative_to(ROOT)}:{line}: {match.group()}")
    assert found == []


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("a path of one machine", "see /" + "root/notes"),
        ("a path of one machine", '"/' + 'work/main"'),
        ("the host of a package index", "https://files.python" + "hosted.org/x"),
        ("work left undone", "# TO" + "DO: later"),
    ],
)
def test_what_no_file_may_say_would_be_found(what: str, text: str) -> None:
    assert FORBIDDEN[what].search(text)


def test_the_lock_file_pins_each_package_once_and_names_no_address() -> None:
    pin = re.compile(r"[a-z0-9][a-z0-9.-]*==[A-Za-z0-9.!+]+( ; [^;@#]+)?")
    assert [line for line in lock_lines() if not pin.fullmatch(line)] == []
    assert "://" not in "\n".join(lock_lines())
    assert len(lock_lines()) == len(pinned_names())


def test_the_lock_file_holds_every_declared_dependency() -> None:
    """Forgetting `make lock` after a change of pyproject.toml is found here."""
    assert declared(with_groups=True) <= pinned_names()


def test_every_dependency_is_explained() -> None:
    """docs/dependencies.md has a row for each package that pyproject.toml asks for."""
    text = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    explained = set(re.findall(r"^\| ([a-z0-9-]+) \|", text, re.MULTILINE))
    assert declared(with_groups=False) <= explained


def test_the_licence_is_there() -> None:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text


def test_exit_codes_are_one_to_a_class_and_stand_in_the_drawing() -> None:
    """A class has its own code or its parent's, in the range that is promised, and is drawn."""
    drawn = dict(re.findall(r"[├└]── (\w+) .*exit (\d+)$", errors.__doc__ or "", re.MULTILINE))
    kinds = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.BranchkitError | errors.Diverged)
    ]
    assert drawn == {kind.__name__: str(kind.exit_code) for kind in kinds}
    owners = defaultdict(list)
    for kind in kinds:
        if "exit_code" in vars(kind):
            owners[kind.exit_code].append(kind.__name__)
    assert [names for names in owners.values() if len(names) > 1] == []
    assert all(code in {2, 3} or 64 <= code <= 124 for code in owners)
