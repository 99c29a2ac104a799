"""A comparison as one page that needs nothing else and still answers a click on its map.

The page holds the widget's own script, the map as bytes, and the side-by-side diffs of its cells,
compressed. Diffs are kept once each; where they would make the file larger than ``MAX_PAGE_BYTES``
those farthest from a branch's first divergence are left out, and a click there says so. Without
scripts the map is the table of ``html.py``.
"""

from __future__ import annotations

import json
import zlib
from base64 import b64encode
from collections import defaultdict
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from branchkit.divergence.align import TurnHashes, by_turn
from branchkit.errors import BranchkitError
from branchkit.notebook.detail import Line, compared, moment, opened
from branchkit.notebook.grid import Grid, grid_of
from branchkit.notebook.html import comparison_html
from branchkit.notebook.wire import rows_sent, wire_of

if TYPE_CHECKING:
    from branchkit.branch.comparison import Comparison

MAX_PAGE_BYTES = 1_000_000
MAX_DIFFS = 1_000  # each is two rewinds, some 20 ms
MAX_DIFFS_BYTES = 480_000  # compressed; base64 adds a third, map and tables need the rest
NOT_KEPT = -1

SCRIPTS = Path(__file__).parent


class Cell(NamedTuple):
    """A turn of a branch by what it shows: cells that are equal here share one diff."""

    turn: int
    hashes: TurnHashes | None


class Wanted(NamedTuple):
    """Where a cell's diff can be read, and how far that is from where the branch left."""

    away_turns: int
    order: int
    cell: Cell
    journal: str


def offline_page(comparison: Comparison, title: str) -> str:
    """The page, at most ``MAX_PAGE_BYTES``; the same bytes each run, no address in it."""
    grid = grid_of(comparison)
    rows = _cells(comparison, grid)
    diffs = _kept(_diffs(comparison, _wanted(comparison, grid, rows)))
    place = {cell: at for at, cell in enumerate(diffs)}
    wire = wire_of(grid)
    told = {
        **wire,
        "cells": b64encode(wire["cells"]).decode(),
        "record": b64encode(wire["record"]).decode(),
        "diffs": list(diffs.values()),
        "places": [[place.get(cell, NOT_KEPT) for cell in row] for row in rows],
    }
    head = '<!doctype html><html lang="en"><meta charset="utf-8">'
    head += f'<meta name="color-scheme" content="light dark"><title>{escape(title)}</title>'
    body = f'<main>{comparison_html(comparison)}</main><script id="bk-told" type="text/plain">'
    packed = b64encode(_packed(told)).decode()
    return f"{head}\n<body>{body}{packed}</script>\n<script>{_script()}</script></body></html>\n"


def _script() -> str:
    """The widget's own drawing, and what stands in for its kernel."""
    drawing = (SCRIPTS / "map.js").read_text("utf-8").replace("export default { render };", "")
    return f"(() => {{\n{drawing}\n{(SCRIPTS / 'offline.js').read_text('utf-8')}}})();"


def _packed(value: object) -> bytes:
    return zlib.compress(json.dumps(value, separators=(",", ":")).encode(), 9)


def _cells(comparison: Comparison, grid: Grid) -> list[list[Cell]]:
    """The cells of each row that is sent."""
    turns = range(grid.first_turn, grid.first_turn + grid.turns)
    vectors = [by_turn(comparison.branches[row.place].row.vector) for row in rows_sent(grid)]
    return [[Cell(turn, vector.get(turn)) for turn in turns] for vector in vectors]


def _wanted(comparison: Comparison, grid: Grid, rows: list[list[Cell]]) -> list[Wanted]:
    """Each different cell once, those where a branch left its baseline first."""
    best: dict[Cell, Wanted] = {}
    for row, cells in zip(rows_sent(grid), rows, strict=True):
        journal = comparison.branches[row.place].result.journal
        left = grid.first_turn + grid.turns if row.t_div is None else row.t_div
        for cell in cells:
            one = Wanted(abs(cell.turn - left), len(best), cell, journal)
            if cell not in best or one.away_turns < best[cell].away_turns:
                best[cell] = one
    return sorted(best.values(), key=lambda one: one[:2])[:MAX_DIFFS]


def _diffs(comparison: Comparison, wanted: Iterable[Wanted]) -> dict[Cell, list[Line]]:
    """The diffs, in the order of ``wanted``; a journal is opened once."""
    of_journal: defaultdict[str, list[Cell]] = defaultdict(list)
    found: dict[Cell, list[Line]] = {}
    for one in wanted:
        of_journal[one.journal].append(one.cell)
        found[one.cell] = []
    with opened(str(comparison.recorded.path)) as parent:
        for journal, cells in of_journal.items():
            try:
                with opened(journal) as branch:
                    for cell in cells:
                        there = moment(parent, cell.turn), moment(branch, cell.turn)
                        found[cell] = compared(*there)
            except BranchkitError as error:
                said: Line = {"left": "", "right": error.message, "kind": "head"}
                found.update((cell, [said]) for cell in cells if not found[cell])
    return found


def _kept(diffs: dict[Cell, list[Line]]) -> dict[Cell, list[Line]]:
    """As many of them, in their order, as the page has room for."""
    room, kept = MAX_DIFFS_BYTES, dict[Cell, list[Line]]()
    for cell, lines in diffs.items():
        room -= len(_packed(lines))
        if room >= 0:
            kept[cell] = lines
    return kept
