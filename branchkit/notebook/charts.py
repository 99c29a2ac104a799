"""Charts for further work: plotly figures of a comparison, plain ``go.Figure`` without a script."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from branchkit.notebook import palette

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from branchkit.branch.comparison import Comparison

_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")


def rates_figure(comparison: Comparison) -> go.Figure:
    """Success of each arm in per cent with its 95 % interval; arms without a verdict lack."""
    import plotly.graph_objects as go

    known = [one for one in comparison.summaries if one.success.share is not None]
    share = np.array([one.success.k / one.success.n for one in known]) * 100
    low = np.array([one.success.low for one in known]) * 100
    high = np.array([one.success.high for one in known]) * 100
    figure = go.Figure(
        go.Scatter(
            x=share,
            y=np.array([one.arm for one in known], dtype=object),
            text=np.array([f"{one.success.k} of {one.success.n}" for one in known], dtype=object),
            mode="markers+text",
            textposition="top center",
            marker={"size": 10, "color": palette.PASS},
            error_x={"type": "data", "array": high - share, "arrayminus": share - low},
        )
    )
    figure.update_xaxes(range=[-3, 103], title="success, %")
    figure.update_yaxes(autorange="reversed")
    return figure.update_layout(title="Success with 95 % intervals", height=320)


def agreement_figure(comparison: Comparison) -> go.Figure:
    """The share of each arm's branches that still agree with the record after each turn."""
    import plotly.graph_objects as go

    figure = go.Figure()
    for place, (arm, rows) in enumerate(comparison.agreement_table().groupby("arm", sort=False)):
        figure.add_scatter(
            x=rows["turn"].to_numpy(),
            y=rows["agree"].to_numpy() * 100,
            name=str(arm),
            mode="lines+markers",
            line={
                "shape": "hv",
                "dash": _DASHES[place % len(_DASHES)],
                "color": palette.ACTIONS[place % len(palette.ACTIONS)],
            },
        )
    figure.update_xaxes(title="turn")
    figure.update_yaxes(range=[-3, 103], title="still as the record, %")
    return figure.update_layout(title="Agreement with the record", height=320)
