"""The page of a comparison that answers clicks by itself: what it holds (its clicks: t7_lab)."""

from __future__ import annotations

import base64
import json
import re
import zlib
from typing import Any

import pytest

from branchkit.branch.comparison import Comparison
from branchkit.notebook import offline
from branchkit.notebook.detail import Place, detail
from branchkit.notebook.offline import NOT_KEPT, offline_page


def told(page: str) -> dict[str, Any]:
    """What the page's script reads."""
    [packed] = re.findall(r'<script id="bk-told" type="text/plain">([^<]*)</script>', page)
    found: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(packed)))
    return found


def test_a_page_holds_the_diff_of_every_cell(comparison: Comparison) -> None:
    """One click through (R81): the same two columns that the living widget would be sent."""
    found = told(offline_page(comparison, "a fork"))
    parent = str(comparison.recorded.path)
    journals = {view.result.number: view.result.journal for view in comparison.branches
                if view.result.arm == "truncation=none"}  # fmt: skip
    row = next(at for at, one in enumerate(found["titles"]) if one.startswith("truncation=none"))
    number = int(re.findall(r"branch (\d+)", found["titles"][row])[0])
    for turn in (23, 24):
        place = found["places"][row][turn - found["first_turn"]]
        asked = Place(parent, journals[number], found["titles"][row], turn)
        assert found["diffs"][place] == detail(asked)["lines"]
    assert all(place != NOT_KEPT for places in found["places"] for place in places)


def test_equal_cells_share_one_diff(comparison: Comparison) -> None:
    """Branches that agree cost no more than one of them: a page of a thousand stays small."""
    found = told(offline_page(comparison, "a fork"))
    cells = sum(len(places) for places in found["places"])
    assert len(found["diffs"]) < cells
    assert len(found["diffs"]) == len({place for places in found["places"] for place in places})


def test_a_full_page_keeps_what_is_near_the_divergence(
    comparison: Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut to what fits, farthest first, and a cell that is left out is marked so."""
    whole = told(offline_page(comparison, "a fork"))
    sizes = [len(zlib.compress(json.dumps(lines).encode(), 9)) for lines in whole["diffs"]]
    with monkeypatch.context() as patch:
        patch.setattr(offline, "MAX_DIFFS", 0)
        empty = len(offline_page(comparison, "a fork").encode())
    room = empty + offline.SPARE_BYTES + sum(sizes) * 2 // 3
    monkeypatch.setattr(offline, "MAX_PAGE_BYTES", room)
    page = offline_page(comparison, "a fork")
    assert len(page.encode()) <= offline.MAX_PAGE_BYTES
    found = told(page)
    assert 0 < len(found["diffs"]) < len(whole["diffs"])
    assert {NOT_KEPT} < {place for places in found["places"] for place in places}
    left = next(at for at, one in enumerate(found["titles"]) if "left at turn 23" in one)
    assert found["places"][left][23 - found["first_turn"]] != NOT_KEPT


def test_a_page_names_no_place_of_this_machine(comparison: Comparison) -> None:
    page = offline_page(comparison, "<b>a fork</b>")
    assert "<b>a fork" not in page
    assert not re.search(r"/tmp|/root|/home|https?:|(src|href)=", page)
    assert not re.search(r"/tmp|/root|/home", json.dumps(told(page)["titles"]))
