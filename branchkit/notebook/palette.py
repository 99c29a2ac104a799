"""Colours that colour-blind readers tell apart (Okabe and Ito 2008), and which class has which."""

from __future__ import annotations

from branchkit.notebook.grid import ABSENT, OTHER, OTHER_CONTEXT, SAME

PASS, FAIL, NONE = "#0072b2", "#d55e00", "#767676"
SAME_COLOUR, ABSENT_COLOUR = "#c9ced6", "#ffffff"
ACTIONS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
RARER = "#5c5c5c"
INK = {"#e69f00": "#000000", "#56b4e9": "#000000", "#cc79a7": "#000000"}  # else white


def colour(cell: int) -> str:
    """The colour of a cell's class as ``#rrggbb``."""
    if cell == ABSENT:
        return ABSENT_COLOUR
    if cell in (SAME, OTHER_CONTEXT):
        return SAME_COLOUR
    rank = (cell - OTHER) // 2
    return ACTIONS[rank] if rank < len(ACTIONS) else RARER


def ink(cell: int) -> str:
    """The colour of the letter on ``colour(cell)``."""
    if cell in (ABSENT, SAME, OTHER_CONTEXT):
        return "#000000"
    return INK.get(colour(cell), "#ffffff")


def of_cells() -> list[tuple[str, str]]:
    """Every colour that a cell can have, with its letter's, each once."""
    return list(dict.fromkeys((colour(cell), ink(cell)) for cell in range(SAME, 256)))
