"""Results in a real kernel: what an output holds; a wrong request fails a run (R80, R82)."""

from __future__ import annotations

from pathlib import Path

import pytest
from kernels import Kernel, Outputs
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat.v4 import new_code_cell, new_notebook

WIDGET = "application/vnd.jupyter.widget-view+json"
STATIC = {"text/plain", "text/html", "image/png"}


def data(outputs: Outputs) -> list[dict[str, object]]:
    """The bundles that were shown."""
    return [one["data"] for one in outputs if one["type"] in ("display_data", "execute_result")]


def test_a_comparison_is_the_live_map_and_below_it_the_picture(living: Kernel) -> None:
    """R81: with a kernel the widget, without one what is beside it."""
    shown = data(living.run("%fork 22 --swap truncation=none -n 1 --check true"))
    assert [set(bundle) for bundle in shown] == [{WIDGET, "text/plain"}, STATIC]


@pytest.mark.parametrize(
    "cell",
    ["%rewind 23", "run", "%replay", "%when --check true --bisect", "%blame cleanup-notes.md"],
)
def test_every_result_has_its_three_forms(living: Kernel, cell: str) -> None:
    [bundle] = data(living.run(cell))
    assert set(bundle) == STATIC


def test_without_widgets_the_page_alone(living: Kernel) -> None:
    """FIELD, notebooks 12: a front end without them shows the picture."""
    code = (
        "from unittest.mock import patch\n"
        "with patch('branchkit.notebook.formats.find_spec', return_value=None):\n"
        "    display(found)\n"
    )
    living.printed("found = %fork 22 -n 1")
    assert [set(bundle) for bundle in data(living.run(code))] == [STATIC]


def test_progress_is_one_display_that_ends_as_the_summary(living: Kernel) -> None:
    """STYLE 16: nothing under CI; else one place, updated."""
    living.run("import os; del os.environ['CI']")
    try:
        shown = living.run("found = %fork 22 -n 2")
    finally:
        living.run("os.environ['CI'] = '1'")
    places = {one["transient"]["display_id"] for one in shown if one.get("transient")}
    assert len(places) == 1
    assert [one["type"] for one in shown if "data" in one].count("display_data") == 1
    first, *_, last = data_of_updates(shown)
    assert "at most" in first
    assert last == "fork 22: 2 of 2 branches ended"


def data_of_updates(outputs: Outputs) -> list[str]:
    """The texts of a display and its updates."""
    return [str(one["data"]["text/plain"]) for one in outputs if "data" in one]


@pytest.mark.parametrize("cell", ["%fork", "%rewind 99", "%journal nowhere.journal.jsonl"])
def test_an_error_is_an_error_output_of_two_lines(living: Kernel, cell: str) -> None:
    [shown] = [one for one in living.run(cell) if one["type"] not in ("status", "execute_input")]
    assert shown["type"] == "error"
    assert len("\n".join(shown["traceback"]).splitlines()) == 2


def test_a_wrong_request_fails_the_notebook(tmp_path: Path) -> None:
    """FIELD, notebooks 1: IPython's own UsageError would let this notebook pass."""
    cells = [new_code_cell("%load_ext branchkit"), new_code_cell("%fork")]  # type: ignore[no-untyped-call]
    client = NotebookClient(
        new_notebook(cells=cells),  # type: ignore[no-untyped-call]
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    )
    with pytest.raises(CellExecutionError) as raised:
        client.execute()
    assert raised.value.ename == "UsageError"
    assert "%fork" in raised.value.evalue
