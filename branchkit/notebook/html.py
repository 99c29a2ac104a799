"""HTML of what was found: one piece, no script, no address, the same bytes each run.

It is what a saved notebook shows without a kernel. Letters stand in every cell of the map, so it
can be read where a host strips the styles.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from branchkit.notebook import palette
from branchkit.notebook.grid import ABSENT, WORDS, Grid, Row, folded, grid_of, row_title, symbol

if TYPE_CHECKING:
    from branchkit.branch.comparison import Comparison
    from branchkit.divergence.tables import ArmSummary

MAX_ROWS, MAX_TURNS = 60, 120  # of the static map; the widget and the tables have all
_COLOURS = palette.of_cells()

LEGEND = (
    "<b>.</b> the record's action · <b>A B C</b> another action of that turn, the commonest first "
    "· <b>a b c</b> the same with another context · blank: no such turn · ×n equal branches"
)
# JupyterLab without a kernel has no model for the widget and says so in its place, or "Loading
# widget…" for ever (tests/t7_lab). That is the output before this one. The picture below is what
# there is to see then; next to a living widget that picture is one too many.
WITH_WIDGET = (
    ".jp-OutputArea-child:not(:has(.bk-live)):has(+.jp-OutputArea-child .bk-beside){display:none}"
    ".jp-OutputArea-child:has(.bk-live)+.jp-OutputArea-child .bk-beside .bk-map{display:none}"
)


@functools.cache
def style() -> str:
    """The style sheet of every piece, a class for each colour of the map at its end."""
    colours = "".join(
        f".bk.bk .map td.k{place}{{background:{colour};color:{ink}}}"
        for place, (colour, ink) in enumerate(_COLOURS)
    )
    return Path(__file__).with_name("style.css").read_text(encoding="utf-8") + colours


def piece(body: str, *, kind: str = "", css: str = "") -> str:
    """``body`` with all that it needs to be shown anywhere."""
    return f'<style>{style()}{css}</style><div class="bk {kind}">{body}</div>'


def comparison_html(comparison: Comparison, *, beside_widget: bool = False) -> str:
    """Map, rates with intervals, ends, verdicts."""
    body = "".join(_comparison(comparison, grid_of(comparison)))
    if beside_widget:
        return piece(body, kind="bk-beside", css=WITH_WIDGET)
    return piece(body)


def _comparison(comparison: Comparison, grid: Grid) -> Iterator[str]:
    facts = comparison.facts
    partial = " (interrupted: partial)" if comparison.partial else ""
    name = escape(comparison.recorded.path.name)
    size = sum(plan.n for plan in comparison.plans)
    yield f"<p class='h'>fork at turn {facts.turn} of {name}, {size} branches{partial}</p>"
    if facts.check is not None:
        ok = {True: "passes", False: "fails", None: "gives no verdict on"}[facts.record_ok]
        yield f"<p>check: <code>{escape(facts.check)}</code><br>record's own end: the check {ok} it"
        yield "</p>"
    if facts.workspace_note:
        yield f"<p>note: {escape(facts.workspace_note)}</p>"
    yield f'<div class="bk-map">{"".join(map_html(grid))}</div>'
    yield from _rates(comparison.summaries)
    yield "<p class='h'>ends (equal workspaces together)</p><table>"
    for group in comparison.outcomes():
        where = escape((group.workspace or "not hashed")[:23])
        yield f'<tr><td class="r">×{group.count}</td><td>{WORDS[group.ok]}</td><td>{where}…</td>'
        yield "</tr>"
    yield "</table>"
    yield from (f"<p><b>{escape(sentence)}</b></p>" for sentence in comparison.verdicts())
    errors = {view.result.error for view in comparison.branches if view.result.error is not None}
    yield from (f"<p>error: {escape(error)}</p>" for error in sorted(errors))
    same = "unchanged" if comparison.parent_unchanged else "CHANGED"
    yield f'<p class="dim">parent {same}; model calls for turns 1..{facts.turn}: '
    yield f"{comparison.prefix_model_calls}<br>left out of workspace hashes: "
    yield f"{escape(', '.join(facts.volatile))}</p>"


def map_html(grid: Grid) -> Iterator[str]:
    """The map as a table: equal rows once, arms apart, a letter in every cell."""
    if not grid.rows or not grid.turns:
        yield "<p>No live turns to show.</p>"
        return
    shown = min(grid.turns, MAX_TURNS)
    yield '<table class="map"><tr><th class="l">turn</th>'
    yield from (f"<th>{grid.first_turn + column}</th>" for column in range(shown))
    yield f"</tr>{_line('record', 'the record itself', grid.record[:shown], '')}"
    left_out = 0
    for arm, rows in grid.arms():
        folds = folded(rows)
        left_out += max(len(folds) - MAX_ROWS, 0)
        count = f"{len(rows)} {'branch' if len(rows) == 1 else 'branches'}"
        span = f'colspan="{shown + 2}" style="text-align:left"'
        yield f'<tr><th class="l a" {span}>{escape(arm)} ({count})</th></tr>'
        for row, times in folds[:MAX_ROWS]:
            yield _fold(row, times, shown)
    yield f'</table><p class="dim">{LEGEND}</p>'
    if left_out or shown < grid.turns:
        yield f'<p class="dim">cut: {left_out} further rows and {grid.turns - shown} further turns '
        yield "are in hashes_table() and in the widget</p>"


def _fold(row: Row, times: int, shown: int) -> str:
    name = "=" if row.t_div is None else f"t{row.t_div}"
    tail = f"{WORDS[row.ok]} ×{times}" if times > 1 else WORDS[row.ok]
    return _line(name, row_title(row), row.cells[:shown], tail)


def _line(name: str, title: str, cells: bytes, tail: str) -> str:
    drawn = "".join(_cell(cell) for cell in cells)
    first = f'<td class="l" title="{escape(title)}">{name}</td>'
    return f'<tr>{first}{drawn}<td class="l" style="text-align:left">{tail}</td></tr>'


@functools.cache
def _cell(cell: int) -> str:
    if cell == ABSENT:
        return "<td></td>"
    place = _COLOURS.index((palette.colour(cell), palette.ink(cell)))
    return f'<td class="k{place}">{symbol(cell)}</td>'


def _rates(summaries: list[ArmSummary]) -> Iterator[str]:
    yield "<p class='h'>success, with 95 % intervals</p><table><tr><th>arm</th><th>success</th>"
    yield "<th>0 … 100 %</th><th>interval</th><th>p</th><th>distinct</th><th>diverged</th></tr>"
    for one in summaries:
        rate = one.success
        share = "no verdict" if rate.share is None else f"{rate.k}/{rate.n} = {rate.share:.0%}"
        spare = f" (+{rate.none} without verdict)" if rate.none else ""
        low, high = rate.low * 100, rate.high * 100
        bar = f'<div class="span" style="left:{low:.1f}%;width:{high - low:.1f}%"></div>'
        if rate.share is not None:
            bar += f'<div class="tick" style="left:{rate.share * 100:.1f}%"></div>'
        p = "" if one.against is None else f"{one.against.p:.4f}"
        yield f'<tr><td>{escape(one.arm)}</td><td class="r">{share}{spare}</td>'
        yield f'<td><div class="track">{bar}</div></td><td>{low:.0f} … {high:.0f} %</td>'
        yield f'<td class="r">{p}</td><td class="r">{one.distinct}</td>'
        yield f'<td class="r">{one.diverged}</td></tr>'
    yield "</table>"
