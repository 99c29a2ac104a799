"""What a page is told to draw the map: the names and types that ``map.js`` reads.

The living widget sends them as traits, a page of its own holds them in itself.
"""

from __future__ import annotations

from typing import TypedDict

from branchkit.notebook import palette
from branchkit.notebook.grid import Grid, Row, row_title

MAX_CELLS = 500_000  # with the rows' titles about 1 MB


class Wire(TypedDict):
    """``cells`` and ``record`` hold a class a byte (see ``grid.py``), rows one after the other."""

    cells: bytes
    record: bytes
    first_turn: int
    turns: int
    arms: list[tuple[str, int]]  # name, number of rows
    titles: list[str]  # a sentence a row
    colours: list[tuple[str, str]]  # colour and ink of each class
    note: str


def rows_sent(grid: Grid) -> list[Row]:
    """The rows that fit."""
    return grid.rows[: MAX_CELLS // max(grid.turns, 1)]


def wire_of(grid: Grid) -> Wire:
    """The map of ``rows_sent(grid)``; ``note`` says what was left out."""
    rows = rows_sent(grid)
    shown = grid._replace(rows=rows)
    cut = f"{len(rows)} of {len(grid.rows)} branches; all are in hashes_table()"
    return {
        "cells": shown.cells,
        "record": grid.record,
        "first_turn": grid.first_turn,
        "turns": grid.turns,
        "arms": [(name, len(members)) for name, members in shown.arms()],
        "titles": [row_title(row) for row in rows],
        "colours": [(palette.colour(cell), palette.ink(cell)) for cell in range(256)],
        "note": cut if len(rows) < len(grid.rows) else "",
    }
