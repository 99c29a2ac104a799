"""A comparison as one page that needs nothing else and still answers a click on its map.

The page holds the widget's own script, the map as bytes, and the side-by-side diffs of its cells,
compressed. Diffs are kept once each; where they would make the file larger than ``MAX_PAGE_BYTES``
those farthest from a branch's first divergence are left out, and a click there says so. Without
scripts the map is the table of ``html.py``.
"""

from __future__ import annotations

import json
import re
import zlib
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from functools import cache
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
    from branchkit.replay.recorded import Recorded
    from branchkit.replay.rewind import Rewound

MAX_PAGE_BYTES = 1_000_000
MAX_DIFFS = 400  # each is two rewinds and a diff: 20 ms, in long runs 100
SPARE_BYTES = 20_000  # for the places of diffs, which are longer numbers than NOT_KEPT
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
    head = f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}'
    head += '</title><meta name="color-scheme" content="light dark"></head>'
    # In a notebook nobody knows which level a heading would have; here it is the second.
    found = re.sub("<p class='h'>(.*?)</p>", r"<h2>\1</h2>", comparison_html(comparison))
    body = f"{head}\n<body><main><h1 class='bk-page'>{escape(title)}</h1>{found}</main>"
    tail = f"\n<script>{_script()}</script></body></html>\n"
    room = MAX_PAGE_BYTES - len((body + tail).encode()) - len(_told(grid, rows, {})) - SPARE_BYTES
    diffs = _kept(_diffs(comparison, _wanted(comparison, grid, rows)), room * 3 // 4)
    told = _told(grid, rows, diffs)
    return f'{body}<script id="bk-told" type="text/plain">{told}</script>{tail}'


def _told(grid: Grid, rows: list[list[Cell]], diffs: Mapping[Cell, list[Line]]) -> str:
    """What the page's script reads: the map, the diffs, and which diff a cell shows."""
    wire = wire_of(grid)
    place = {cell: at for at, cell in enumerate(diffs)}
    told = {
        **wire,
        "cells": b64encode(wire["cells"]).decode(),
        "record": b64encode(wire["record"]).decode(),
        "diffs": list(diffs.values()),
        "places": [[place.get(cell, NOT_KEPT) for cell in row] for row in rows],
    }
    return b64encode(_packed(told)).decode()


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


def _diffs(comparison: Comparison, wanted: Iterable[Wanted]) -> Iterator[tuple[Cell, list[Line]]]:
    """The diffs, in the order of ``wanted``; journals stay open for the next that needs them."""
    with ExitStack() as stack:
        parent = stack.enter_context(opened(str(comparison.recorded.path)))

        @cache
        def left(turn: int) -> Rewound | None:
            return moment(parent, turn)

        @cache
        def branch(journal: str) -> Recorded:
            return stack.enter_context(opened(journal))

        for one in wanted:
            try:
                turn = one.cell.turn
                yield one.cell, compared(left(turn), moment(branch(one.journal), turn))
            except BranchkitError as error:
                yield one.cell, [{"left": "", "right": error.message, "kind": "head"}]


def _kept(diffs: Iterable[tuple[Cell, list[Line]]], room_bytes: int) -> dict[Cell, list[Line]]:
    """As many of them, in their order, as there is room for; the others are not even made."""
    kept: dict[Cell, list[Line]] = {}
    for cell, lines in diffs:
        room_bytes -= len(_packed(lines))
        if room_bytes < 0:
            break
        kept[cell] = lines
    return kept
