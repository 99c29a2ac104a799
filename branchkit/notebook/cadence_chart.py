"""The picture of ``%cadence``: what checkpoints cost against how far apart they are (R32)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from branchkit.durable.cadence import Advice, curve
from branchkit.notebook import palette

if TYPE_CHECKING:
    import plotly.graph_objects as go


def cadence_figure(advice: Advice) -> go.Figure:
    """Overhead in per cent over the interval in turns, its two parts, and the optimum marked."""
    import plotly.graph_objects as go

    table = curve(advice.load)
    figure = go.Figure()
    lines = {
        "pauses": ("paused", "dot", palette.ACTIONS[1]),
        "work done again": ("redone", "dash", palette.ACTIONS[2]),
        "both": ("overhead", "solid", palette.ACTIONS[0]),
    }
    for name, (column, dash, colour) in lines.items():
        figure.add_scatter(
            x=table["interval_turns"].to_numpy(),
            y=table[column].to_numpy() * 100,
            name=name,
            mode="lines",
            line={"dash": dash, "color": colour},
        )
    choices = advice.frame()
    figure.add_scatter(
        x=choices["interval_turns"].to_numpy(),
        y=choices["overhead"].to_numpy() * 100,
        text=choices["name"].to_numpy(),
        name="choices",
        mode="markers",
        marker={"size": 9, "symbol": "diamond", "color": palette.FAIL},
    )
    best = advice.best
    figure.add_annotation(
        # plotly takes the logarithm itself for data, but not for annotations on a log axis.
        x=math.log10(best.interval_turns),
        y=math.log10(best.overhead * 100),
        text=f"every {advice.turns} turns: {best.overhead:.2%}",
        ay=40,
    )
    figure.update_xaxes(type="log", title="checkpoint every ... turns")
    figure.update_yaxes(type="log", title="of the run's time, %")
    return figure.update_layout(title="What checkpoints cost", height=360)
