"""The magics in a real IPython: they return what the Python API returns, and eat nothing (R80)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from IPython.core.interactiveshell import InteractiveShell

from branchkit.branch.api import Run
from branchkit.branch.comparison import Comparison
from branchkit.errors import TurnOutside, UsageError
from branchkit.notebook import session
from branchkit.notebook.magics import _MAGICS
from branchkit.replay.recorded import Recorded
from branchkit.replay.rewind import Rewound, rewind
from branchkit.replay.strict import Replayed
from branchkit.replay.when import Blame, When

KEPT = "git show-ref -q --verify refs/heads/release/2.1"
BODY = "Keep {braces}, {0}, $dollars, {{doubled}} and `ticks`.\n  Task: $task\n\n"
FORK = "found = %fork 22 -n 1 --no-control"


def run(shell: InteractiveShell, code: str) -> None:
    """Run a cell that has to go well."""
    shell.run_cell(code).raise_error()


def value(shell: InteractiveShell, code: str, name: str = "found") -> Any:
    """What the cell left in ``name``."""
    run(shell, code)
    return shell.user_ns[name]


def test_each_magic_returns_what_its_function_returns(shell: InteractiveShell) -> None:
    """R80: ``r = %rewind 23`` is a value as any other; magics and twins share one session."""
    assert isinstance(shell.user_ns["run"], Run)
    found = value(shell, "found = %rewind 23")
    assert isinstance(found, Rewound)
    assert found.context_hash == session.rewind(23).context_hash
    assert isinstance(value(shell, "found = %replay"), Replayed)
    assert session.replay().ok
    found = value(shell, f"found = %when --check '{KEPT}' --bisect")
    assert isinstance(found, When)
    assert (found.turn, found.calls) == (23, session.when(KEPT).calls)
    found = value(shell, "found = %blame cleanup-notes.md")
    assert isinstance(found, Blame)
    assert found == session.blame("cleanup-notes.md")
    found = value(shell, "found = %versions cleanup-notes.md")
    assert isinstance(found, pd.DataFrame)
    assert found.equals(session.versions("cleanup-notes.md"))


def test_fork_branches_and_compare(shell: InteractiveShell, tmp_path: Path) -> None:
    sized = f"{FORK} --swap truncation=none --size truncation=none=2"
    found = value(shell, f"{sized} --check 'test $(( 1 + 1 )) = 2'")
    assert isinstance(found, Comparison)
    assert (found.facts.check, found.summaries[0].success.k) == ("test $(( 1 + 1 )) = 2", 2)
    assert shell.user_ns["found"] is session.compare()
    table = value(shell, "table = %branches", "table")
    assert list(table["arm"]) == ["truncation=none"] * 2
    assert list(table["journal"]) == [Path(one.journal).name for one in found.results]
    again = value(shell, f"again = %compare {found.directory}", "again")
    assert again.to_json()["arms"] == found.to_json()["arms"]
    page = value(shell, f"page = %report {tmp_path}/fork.html", "page")
    assert page.read_text("utf-8").startswith("<!doctype html>")
    assert session.report(page) == page
    with pytest.raises(UsageError, match="cannot be written"):
        session.report(tmp_path / "nowhere" / "fork.html")


def test_the_text_below_fork_reaches_the_model_to_the_byte(shell: InteractiveShell) -> None:
    """FIELD, notebooks 10: braces and dollars of a cell's text are nobody's but the model's."""
    run(shell, f"%%fork 22 -n 1 --no-control --swap prompt=@cell\n{BODY}")
    [branch] = session.compare().results
    recorded = Recorded.open(branch.journal)
    system = str(rewind(recorded, 23).context[0]["content"])
    recorded.close()
    assert recorded.parent is not None
    recorded.parent.close()
    assert system.startswith("Keep {braces}, {0}, $dollars, {{doubled}} and `ticks`.\n  Task: ")
    assert "$task" not in system  # the template's own word was filled in


def test_the_same_text_gives_the_same_arm(shell: InteractiveShell) -> None:
    names = set()
    for _ in range(2):
        run(shell, f"%%fork 22 -n 1 --no-control --swap prompt=@cell\n{BODY}")
        names.add(session.compare().plans[0].name)
    assert len(names) == 1


def test_one_word_in_braces_is_a_variable(shell: InteractiveShell) -> None:
    shell.user_ns["CHECK"] = "test {a} = '{a}'"
    found = value(shell, f"{FORK} --check {{CHECK}}")
    assert (found.facts.check, found.results[0].ok) == ("test {a} = '{a}'", True)


@pytest.mark.parametrize(
    ("cell", "kind", "message", "hint"),
    [
        ("%rewind 99", TurnOutside, "turn 99 is outside 1..27", "26 turns"),
        ("%fork", UsageError, "the following arguments are required: turn", "%fork --help"),
        ("%fork 22 --what", UsageError, "unrecognized arguments: --what", "%fork --help"),
        ("%fork 22 --swap colour=red", UsageError, "colour", ""),
        ("%fork 22 --check 'open", UsageError, "No closing quotation", "single quotes"),
        ("%fork 22 --check {nowhere}", UsageError, "no variable 'nowhere'", "{NAME}"),
        ("%fork 22 --swap prompt=@cell", UsageError, "needs the text of a cell", "%%fork"),
        ("%%fork 22 --swap truncation=none\ntext", UsageError, "is not used", "@cell"),
        ("%report", UsageError, "nothing was forked", "%fork T"),
        ("%when", UsageError, "required: --check", "%when --help"),
        ("%blame no/such/file", UsageError, "no/such/file", "relative to the workspace"),
    ],
)
def test_an_error_is_two_lines(
    shell: InteractiveShell,
    capsys: pytest.CaptureFixture[str],
    cell: str,
    kind: type[UsageError],
    message: str,
    hint: str,
) -> None:
    """R82: what is wrong with its values, what to do about it, and no traceback."""
    result = shell.run_cell(cell)
    assert type(result.error_in_exec) is kind
    shown = "".join(capsys.readouterr()).strip().splitlines()
    assert len(shown) == 2, shown
    assert shown[0].startswith(f"{kind.__name__}: ")
    assert message in shown[0]
    assert hint in shown[1]


def test_a_mistake_of_ours_keeps_its_traceback(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    shell.run_cell("run.rewind('three')")
    assert "Traceback" in "".join(capsys.readouterr())


def test_help_is_the_docstring_with_an_example_that_runs(shell: InteractiveShell) -> None:
    for name in _MAGICS:
        text = str(value(shell, f"found = %{name} --help"))
        [example] = [line for line in text.splitlines() if line.strip().startswith(f"%{name}")][-1:]
        if name in ("settle", "approve"):  # the sample waits for nobody: the example is understood
            result = shell.run_cell(example.strip())
            assert type(result.error_in_exec) is UsageError
            assert "t0007.1" in str(result.error_in_exec)
        elif name not in ("journal", "fork", "branches", "compare", "report"):  # those run above
            run(shell, example.strip())


def test_no_magic_takes_a_name_of_ipythons_own(shell: InteractiveShell) -> None:
    """``%history`` lists what was typed, so the history of a path is ``%versions``."""
    assert "history" in shell.user_ns["OWN_MAGICS"]
    assert not set(_MAGICS) & shell.user_ns["OWN_MAGICS"]
