"""The live map: branches x turns as bytes on a canvas, and what a cell stands for on a click.

The wire to ``map.js`` is the traits of ``ComparisonMap``, which are ``wire.Wire`` and the click; a
test compares their names. Contexts are sent on a click only.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import anywidget
import traitlets

from branchkit.notebook.detail import Place, detail
from branchkit.notebook.grid import Grid, grid_of
from branchkit.notebook.wire import rows_sent, wire_of

if TYPE_CHECKING:
    from branchkit.branch.comparison import Comparison

_MAPS: WeakKeyDictionary[Comparison, ComparisonMap] = WeakKeyDictionary()
_counts: dict[str, int] = {}


class ComparisonMap(anywidget.AnyWidget):
    """The widget. ``selected`` is [row, turn] from the page, ``detail`` the answer to it."""

    _esm = Path(__file__).with_name("map.js")

    cells = traitlets.Bytes().tag(sync=True)
    record = traitlets.Bytes().tag(sync=True)
    first_turn = traitlets.Int().tag(sync=True)
    turns = traitlets.Int().tag(sync=True)
    arms: traitlets.List[Any] = traitlets.List().tag(sync=True)  # [name, number of rows]
    titles: traitlets.List[Any] = traitlets.List().tag(sync=True)  # a sentence a row
    colours: traitlets.List[Any] = traitlets.List().tag(sync=True)  # [colour, ink] a class
    note = traitlets.Unicode().tag(sync=True)
    selected = traitlets.List(trait=traitlets.Int(), default_value=[-1, -1]).tag(sync=True)
    detail = traitlets.Dict().tag(sync=True)

    def __init__(self, grid: Grid, parent: str, journals: list[str]) -> None:
        wire, rows = wire_of(grid), rows_sent(grid)
        self._journals = [journals[row.place] for row in rows]
        self._parent_journal = parent
        super().__init__(model_id=_model_id(grid._replace(rows=rows)), **wire)
        self.observe(self._answer, names=["selected"])

    def _answer(self, change: dict[str, Any]) -> None:
        """Send what the chosen cell stands for."""
        row, turn = change["new"]
        if 0 <= row < len(self._journals):
            place = Place(self._parent_journal, self._journals[row], self.titles[row], turn)
            self.detail = dict(detail(place))


def map_of(comparison: Comparison) -> ComparisonMap:
    """The widget of a comparison, one for all the times that it is shown."""
    if comparison not in _MAPS:
        journals = [view.result.journal for view in comparison.branches]
        parent = str(comparison.recorded.path.absolute())
        _MAPS[comparison] = ComparisonMap(grid_of(comparison), parent, journals)
    return _MAPS[comparison]


def view_of(widget: ComparisonMap) -> dict[str, Any]:
    """What an output holds to show the widget."""
    return {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}


def _model_id(grid: Grid) -> str:
    """A name that the same notebook gives again, so that its saved file is the same again."""
    told = repr((grid.first_turn, grid.turns, [row[:-1] for row in grid.rows])).encode()
    name = hashlib.sha256(told + grid.cells).hexdigest()[:24]
    _counts[name] = _counts.get(name, 0) + 1
    return f"branchkit-{name}-{_counts[name]}"
