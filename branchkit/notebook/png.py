"""Pictures: map and rates of a comparison, and a page of text; the same bytes each run.

Drawn by matplotlib's Agg straight into memory. The user's own settings are left aside while it
draws, or two machines would give two pictures.
"""

from __future__ import annotations

import io
import textwrap
from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from branchkit.notebook import palette
from branchkit.notebook.grid import ABSENT, Grid, grid_of, symbol

if TYPE_CHECKING:
    from branchkit.branch.comparison import Comparison
    from branchkit.divergence.tables import ArmSummary
    from branchkit.durable.cadence import Advice

Box = tuple[tuple[float, float], ...]

DPI = 90
MAX_ROWS, MAX_COLUMNS = 240, 400  # more are pooled by their maximum
MAX_TEXT_LINES, TEXT_WIDTH = 80, 110
MAX_COLOURS = 64  # a dozen of ours, and the shades at the edges of letters


def comparison_png(comparison: Comparison) -> bytes:
    """Map on the left, success rates with 95 % intervals on the right."""
    from matplotlib import rc_context, rcParamsDefault

    grid = pooled(grid_of(comparison))
    height = min(9.0, max(2.6, 1.3 + 0.15 * len(grid.rows)))
    with rc_context(dict(rcParamsDefault)):
        figure = _figure(9.5, height)
        left, right = figure.subplots(1, 2, width_ratios=(3, 2))
        partial = " (partial)" if comparison.partial else ""
        name = comparison.recorded.path.name
        figure.suptitle(f"fork at turn {comparison.facts.turn} of {name}{partial}", fontsize=10)
        _draw_map(left, grid)
        _draw_rates(right, comparison.summaries)
        return _bytes(figure)


def text_png(text: str) -> bytes:
    """A page of text; what is too long or too wide is cut, and says so."""
    from matplotlib import rc_context, rcParamsDefault

    lines = [
        piece for line in text.splitlines() for piece in textwrap.wrap(line, TEXT_WIDTH) or [""]
    ]
    if len(lines) > MAX_TEXT_LINES:
        lines = [*lines[: MAX_TEXT_LINES - 1], f"… {len(lines) - MAX_TEXT_LINES + 1} more lines"]
    with rc_context(dict(rcParamsDefault)):
        figure = _figure(9.5, 0.3 + 0.155 * len(lines))
        # A dollar sign in a shell command is no formula.
        shown = "\n".join(lines).replace("$", r"\$")
        figure.text(0.01, 0.99, shown, family="monospace", fontsize=8, va="top", linespacing=1.2)
        return _bytes(figure)


def advice_png(advice: Advice) -> bytes:
    """Time lost against the checkpoint interval, its two parts, and the optimum (R32)."""
    from matplotlib import rc_context, rcParamsDefault

    from branchkit.durable.cadence import curve

    table, best = curve(advice.load), advice.best
    with rc_context(dict(rcParamsDefault)):
        figure = _figure(7.0, 3.0)
        axes = figure.subplots()
        for column, name, style in (
            ("overhead", "together", "-"),
            ("paused", "checkpoints", "--"),
            ("redone", "work done again", ":"),
        ):
            axes.plot(
                table["interval_turns"], table[column] * 100, style, label=name, color="black"
            )
        axes.plot([best.interval_turns], [best.overhead * 100], "D", color=palette.PASS)
        axes.annotate(f"{advice.turns} turns", (best.interval_turns, best.overhead * 100))
        axes.set(xscale="log", ylim=(0, max(5.0, best.overhead * 400)))
        axes.set_xlabel("turns between checkpoints", fontsize=8)
        axes.set_ylabel("time lost, %", fontsize=8)
        axes.legend(fontsize=8)
        return _bytes(figure)


def pooled(grid: Grid) -> Grid:
    """The grid with at most ``MAX_ROWS`` rows and ``MAX_COLUMNS`` columns; maxima survive."""
    step = -(-len(grid.rows) // MAX_ROWS) or 1
    wide = -(-grid.turns // MAX_COLUMNS) or 1
    rows = []
    for _, members in grid.arms():
        for start in range(0, len(members), step):
            together = members[start : start + step]
            cells = bytes(map(max, zip(*(row.cells for row in together), strict=True)))
            rows.append(together[0]._replace(cells=_narrow(cells, wide)))
    record = _narrow(grid.record, wide)
    return Grid(grid.first_turn, len(record), record, rows)


def _narrow(cells: bytes, step: int) -> bytes:
    return bytes(max(cells[at : at + step]) for at in range(0, len(cells), step))


def _figure(width: float, height: float) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _draw_map(axes: Any, grid: Grid) -> None:
    axes.set_title("map of actions, branches × turns", fontsize=9)
    lettered = len(grid.rows) <= 70 and grid.turns <= 40
    boxes: defaultdict[str, list[Box]] = defaultdict(list)
    labels, y = [], 0
    for arm, rows in grid.arms():
        labels.append((y, f"{arm} ({len(rows)})"))
        y += 1
        for row in rows:
            for column, cell in enumerate(row.cells):
                if cell == ABSENT:
                    continue
                boxes[palette.colour(cell)].append(_box(column, y))
                if lettered:
                    axes.text(
                        column + 0.47, y + 0.47, symbol(cell), color=palette.ink(cell),
                        fontsize=6.5, ha="center", va="center", family="monospace",
                    )  # fmt: skip
            y += 1
    _draw_boxes(axes, boxes)
    for place, name in labels:
        axes.text(0, place + 0.85, _plain(name), fontsize=8, va="bottom")
    axes.set_xlim(0, max(grid.turns, 8))
    axes.set_ylim(max(y, 1), 0)
    step = -(-grid.turns // 12) or 1
    ticks = range(0, grid.turns, step)
    axes.set_xticks([tick + 0.47 for tick in ticks], [str(grid.first_turn + t) for t in ticks])
    axes.set_yticks([])
    axes.tick_params(labelsize=8, length=0)
    axes.spines[:].set_visible(False)
    axes.set_xlabel(". as the record   A B C other action   a b c other context too", fontsize=7.5)


def _box(x: float, y: float) -> Box:
    return ((x, y), (x + 0.94, y), (x + 0.94, y + 0.9), (x, y + 0.9))


def _draw_boxes(axes: Any, boxes: Mapping[str, list[Box]]) -> None:
    """All boxes of a colour as one thing to draw: one a cell takes a minute for a large map."""
    from matplotlib.collections import PolyCollection

    for colour, places in sorted(boxes.items()):
        drawn = PolyCollection(places, facecolors=colour, linewidths=0)
        drawn.set_in_layout(False)
        axes.add_collection(drawn, autolim=False)


def _draw_rates(axes: Any, summaries: list[ArmSummary]) -> None:
    axes.set_title("success, 95 % interval", fontsize=9)
    for place, one in enumerate(summaries):
        rate = one.success
        axes.hlines(place, rate.low * 100, rate.high * 100, color=palette.PASS, linewidth=3)
        if rate.share is None:
            text = "no verdict"
        else:
            axes.plot(rate.share * 100, place, "o", color="black", markersize=6)
            text = f"{rate.k} of {rate.n}"
        spare = f", {rate.none} without verdict" if rate.none else ""
        p = "" if one.against is None else f", p = {one.against.p:.4f}"
        axes.text(0, place - 0.18, _plain(f"{one.arm}: {text}{spare}{p}"), fontsize=8, va="bottom")
    axes.set_xlim(-2, 102)
    axes.set_ylim(len(summaries) - 0.4, -0.7)
    axes.set_yticks([])
    axes.set_xlabel("%", fontsize=8)
    axes.tick_params(labelsize=8)
    axes.spines[["left", "right", "top"]].set_visible(False)


def _plain(text: str) -> str:
    """An arm's name without matplotlib's formulas, and short enough for its place."""
    return textwrap.shorten(text, 70).replace("$", r"\$")


def _bytes(figure: Any) -> bytes:
    """The drawing as PNG with a palette: a third of the size, and every saved output has one."""
    from PIL import Image

    figure.canvas.draw()
    size = figure.canvas.get_width_height()
    drawn = Image.frombuffer("RGBA", size, figure.canvas.buffer_rgba()).convert("RGB")
    few = drawn.quantize(MAX_COLOURS, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    stream = io.BytesIO()
    few.save(stream, format="png", optimize=True)  # no text chunk: no version, no time
    return stream.getvalue()
