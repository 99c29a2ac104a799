"""Pictures of results: valid, small, and the same bytes each run (STYLE 13)."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.image
import pytest
from kernels import SAMPLE

from branchkit.branch.comparison import Comparison
from branchkit.notebook import charts, formats
from branchkit.notebook.grid import grid_of
from branchkit.notebook.html import comparison_html, map_html
from branchkit.notebook.map import ComparisonMap, map_of
from branchkit.notebook.png import pooled
from branchkit.notebook.report import write_report

MACHINE = re.compile(r"/tmp|/root|/home|0x[0-9a-f]{6}")

# Everything that is shown, made in a process with a store and a hash seed of its own.
PROGRAM = """
import hashlib, json, sys
import branchkit
from branchkit.notebook import formats
from branchkit.notebook.offline import offline_page
from branchkit.journal.blobs import store_directory
with branchkit.open(sys.argv[1]) as run:
    found = run.fork(22, swap="truncation=none", check="git show-ref -q refs/heads/main")
    shown = {
        "comparison": formats.static_bundle(found, beside_widget=True),
        "rewound": formats.rewound_bundle(run.rewind(23)),
        "run": formats.run_bundle(run),
        "replayed": formats.replayed_bundle(run.replay()),
        "when": formats.when_bundle(run.when("git show-ref -q refs/heads/main", bisect=True)),
        "page": {"text/html": offline_page(found, "a fork")},
        "blame": formats.blame_bundle(run.blame("cleanup-notes.md")),
    }
    workspaces = run.workspaces()
    digests = {}
    for name, bundle in shown.items():
        for kind, body in bundle.items():
            raw = body if isinstance(body, bytes) else body.encode()
            digests[f"{name} {kind}"] = hashlib.sha256(raw).hexdigest()
    workspaces.stop()
print(json.dumps(digests))
"""


def start(store: Path, seed: str) -> subprocess.Popen[str]:
    """A process that prints the digests of all that it shows."""
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(SAMPLE)],
        env={**os.environ, "BRANCHKIT_STORE": str(store), "PYTHONHASHSEED": seed},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_two_processes_show_the_same_bytes(tmp_path: Path) -> None:
    """FIELD, notebooks 11: no uuid, time, pid, address or order of a set is in any output."""
    started = [start(tmp_path / seed, seed) for seed in ("1", "2")]
    first, second = (json.loads(process.communicate(timeout=100)[0]) for process in started)
    assert len(first) == 19
    assert first == second


@pytest.mark.parametrize(
    "bundle", [formats.static_bundle, formats.comparison_bundle], ids=["beside", "whole"]
)
def test_a_comparison_in_every_form(
    comparison: Comparison, bundle: Callable[[Comparison], dict[str, Any]]
) -> None:
    """R81: text, page and picture, none of which names a place of this machine."""
    found = bundle(comparison)
    picture = matplotlib.image.imread(io.BytesIO(found["image/png"]))
    assert picture.shape[1] > 600
    assert picture.std() > 0.05  # something is drawn
    for kind in ("text/plain", "text/html"):
        assert "truncation=none" in found[kind]
        assert not MACHINE.search(found[kind])
    assert "<script" not in found["text/html"]
    assert "http" not in found["text/html"]
    assert sum(len(found[kind]) for kind in ("text/plain", "text/html", "image/png")) < 100_000


def test_the_map_has_a_letter_in_every_cell(comparison: Comparison) -> None:
    """STYLE 15: colour is never the only sign."""
    html = "".join(map_html(grid_of(comparison)))
    cells = re.findall(r'<td class="k\d">(.)</td>', html)
    assert set(cells) >= {".", "a"}


def test_names_are_escaped(comparison: Comparison) -> None:
    facts = comparison.facts._replace(check="echo '<script>alert(1)</script>' && true")
    odd = Comparison(comparison.recorded, facts, comparison.plans, comparison.results)
    assert "<script>" not in comparison_html(odd)


def test_a_partial_comparison_says_so(comparison: Comparison) -> None:
    cut = Comparison(
        comparison.recorded, comparison.facts, comparison.plans, comparison.results[:2],
        partial=True,
    )  # fmt: skip
    bundle = formats.static_bundle(cut)
    assert "interrupted: partial" in bundle["text/html"]
    assert "interrupted: partial" in bundle["text/plain"]


def test_a_comparison_without_any_branch_can_be_shown(comparison: Comparison) -> None:
    empty = Comparison(
        comparison.recorded, comparison.facts, comparison.plans, [], partial=True
    )  # fmt: skip
    assert "No live turns" in formats.static_bundle(empty)["text/html"]


def test_a_thousand_branches_are_a_small_picture(comparison: Comparison) -> None:
    """More rows than pixels are pooled by their maximum: the rare branch stays to be seen."""
    grid = grid_of(comparison)
    [odd] = [row for row in grid.rows if max(row.cells) > 1][:1]
    plain = odd._replace(arm="control", cells=bytes([1] * grid.turns))
    many = grid._replace(rows=[plain] * 500 + [odd._replace(arm="control")] + [plain] * 500)
    drawn = pooled(many)
    assert len(drawn.rows) <= 240
    assert max(max(row.cells) for row in drawn.rows) == max(odd.cells)


def test_the_report_is_one_page_and_one_picture(comparison: Comparison, tmp_path: Path) -> None:
    html, png = write_report(comparison, tmp_path / "out", "fork")
    assert html.read_text("utf-8").startswith("<!doctype html>")
    assert not re.search(r"(src|href)=", html.read_text("utf-8"))
    assert png.read_bytes().startswith(b"\x89PNG")


def test_twenty_comparisons_are_a_notebook_below_a_megabyte(comparison: Comparison) -> None:
    """Of forty branches each, with the page, the picture and the text in every output."""
    both = [plan._replace(n=20) for plan in comparison.plans]
    results = [
        one._replace(number=one.number + 3 * copy)
        for one in comparison.results
        for copy in range(7)
    ]
    forty = Comparison(comparison.recorded, comparison.facts, both, results)
    outputs = []
    for _ in range(20):
        bundle = formats.static_bundle(forty, beside_widget=True)
        bundle["image/png"] = base64.b64encode(bundle["image/png"]).decode()
        outputs.append({"output_type": "display_data", "metadata": {}, "data": bundle})
    assert len(json.dumps(outputs)) < 1_000_000


def test_charts_are_plain_figures(comparison: Comparison) -> None:
    """STYLE 14: data for further work and no widget, or a notebook grows by megabytes."""
    rates = charts.rates_figure(comparison)
    assert list(rates.data[0].y) == ["control", "truncation=none"]
    agreement = charts.agreement_figure(comparison)
    assert len(agreement.to_json()) < 50_000


def test_the_wire_to_the_page_has_one_set_of_names(comparison: Comparison) -> None:
    """What map.js reads and writes is what ComparisonMap has, no more and no less."""
    script = Path(str(formats.__file__)).with_name("map.js").read_text(encoding="utf-8")
    used = set(re.findall(r'model\.(?:get|set)\("(\w+)"', script))
    used |= set(re.findall(r'"change:(\w+)"', script))
    wire = {name for name in map_of(comparison).keys if not name.startswith("_")}
    assert used == wire - {"layout", "tabbable", "tooltip"}  # those are of every widget


def test_a_click_answers_with_both_contexts(comparison: Comparison) -> None:
    """R84: what the map's cell stands for, read from the journals when it is asked for."""
    widget = map_of(comparison)
    assert isinstance(widget, ComparisonMap)
    row = next(i for i, title in enumerate(widget.titles) if title.startswith("truncation=none"))
    widget.selected = [row, 23]
    assert widget.detail["title"].startswith("turn 23: the record, and truncation=none")
    kinds = {line["kind"] for line in widget.detail["lines"]}
    assert kinds & {"changed", "right"}
    right = "\n".join(line["right"] for line in widget.detail["lines"])
    left = "\n".join(line["left"] for line in widget.detail["lines"])
    assert "protected by the release policy" in right
    assert "protected by the release policy" not in left
    assert "cut by head:12l" in left
