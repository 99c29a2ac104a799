"""What Tab offers after a magic, asked of a real IPython and of a real kernel (R80)."""

from __future__ import annotations

from pathlib import Path

import pytest
from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell
from kernels import SAMPLE, Kernel

from branchkit.branch.swap import SWAPPABLE, parse_swap
from branchkit.notebook.complete import SPECS, offers
from branchkit.notebook.magics import _MAGICS

_PARSERS = {name: parser for name, (_, parser) in _MAGICS.items()}


def offered(shell: InteractiveShell, text: str) -> list[str]:
    """The words that IPython's own completer gives at the end of ``text``."""
    with provisionalcompleter():
        return [one.text for one in shell.Completer.completions(text, len(text))]


def test_turns_of_the_open_run(shell: InteractiveShell) -> None:
    assert offered(shell, "%rewind 2") == ["2", *(str(turn) for turn in range(20, 28))]
    assert offered(shell, "%fork ")[:3] == ["0", "1", "10"]
    assert "27" not in offered(shell, "%fork 2")


def test_components_and_their_specs(shell: InteractiveShell) -> None:
    assert set(offered(shell, "%fork 22 --swap ")) == {f"{name}=" for name in SWAPPABLE}
    assert offered(shell, "%fork 22 --swap tr") == ["truncation="]
    assert offered(shell, "%fork 22 --swap truncation=he") == ["head:12l", "head:40l"]
    assert offered(shell, "%fork 22 --swap truncation=head:1") == ["head:12l"]
    assert offered(shell, "found = %fork 22 --swap policy=d") == ["deny:"]
    assert offered(shell, "%%fork 22 --swap sampling=s") == ["slip:0", "slip:0.2"]
    assert offered(shell, "%fork 22 --swap truncation=none --size tr") == ["truncation=none="]


@pytest.mark.parametrize("component", sorted(SPECS))
def test_every_spec_that_is_offered_whole_is_one(component: str) -> None:
    for spec in SPECS[component]:
        if not spec.endswith((":", "@")):
            assert parse_swap(f"{component}={spec}", {}).name == f"{component}={spec}"


def test_options(shell: InteractiveShell) -> None:
    found = offered(shell, "%fork 22 --")
    assert {"--swap", "--check", "--max-turns", "--no-sandbox"} <= set(found)
    assert offered(shell, "%when --b") == ["--bisect"]
    assert offers(_PARSERS, "%fork 22 --seed ") == ("", [])
    assert offers(_PARSERS, "%notours 2") == ("", [])


def test_journals_and_folders(
    shell: InteractiveShell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "one.journal.jsonl").touch()
    (tmp_path / "runs" / "notes.txt").touch()
    monkeypatch.chdir(tmp_path)
    assert offered(shell, "%journal r") == ["runs/"]
    assert offered(shell, "%journal runs/") == ["runs/one.journal.jsonl"]
    assert offered(shell, f"%journal {tmp_path}/ru") == [f"{tmp_path}/runs/"]
    assert offered(shell, "%fork 22 --swap prompt=@runs/n") == ["runs/notes.txt"]


def test_calls_forks_and_files(shell: InteractiveShell) -> None:
    assert offered(shell, "%settle t0023") == ["t0023.1"]
    shell.run_cell("found = %fork 25 -n 1").raise_error()
    directory = str(shell.user_ns["found"].directory)
    assert any(directory.endswith(Path(one).name) for one in offered(shell, "%compare "))
    shell.run_cell("moment = %rewind 23").raise_error()
    assert "cleanup-notes.md" in offered(shell, "%blame cl")


def test_nothing_is_offered_and_nothing_raised_without_a_run(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    session = "from branchkit.notebook.session import SESSION; SESSION._run = None"
    shell.run_cell(session).raise_error()
    assert offered(shell, "%rewind 2") == []
    assert offered(shell, "%journal no/such/folder/x") == []
    assert capsys.readouterr().err == ""


def test_a_kernel_answers_as_jupyterlab_asks(living: Kernel) -> None:
    """Through the wire: complete_request, its reply, and the place that is replaced."""
    text = "%fork 22 --swap truncation=no"
    reply = living.client.complete(text, reply=True, timeout=60)["content"]
    assert reply["matches"] == ["none"]
    assert text[reply["cursor_start"] : reply["cursor_end"]] == "no"
    folder = f"{SAMPLE.parent}/"
    reply = living.client.complete(f"%journal {folder}", reply=True, timeout=60)["content"]
    assert reply["matches"] == [str(SAMPLE)]
