"""Panel: in how many attention rows self-repair can happen, layer by layer, and how much it hides there."""

from __future__ import annotations

import altair as alt
import numpy as np
import pandas as pd

from dynamics.plot.axes import Panel, StepAxis, named, rows
from dynamics.plot.marks import labels, number, point_size, rules, spread, tooltip
from dynamics.plot.palette import FAINT, MUTED, WIDTH

HEIGHT = 120
_LINE = 13.5
# From the first layer to the last, and no colour that means a role.
_FIRST, _LAST = (185, 205, 196), (20, 92, 72)


def self_repair_panel(layers: pd.DataFrame, axis: StepAxis) -> Panel | None:
    """Draw the number of rows per example, and below it their mean interaction; a line for each layer."""
    if layers.empty or not layers["rows"].notna().any():
        return None
    names = sorted(layers["layer"].unique().tolist())
    shares = np.linspace(0, 1, len(names)) if len(names) > 1 else np.ones(1)
    colours = {
        layer: "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in zip(_FIRST, _LAST, strict=True))
        for layer, share in zip(names, shares, strict=True)
    }
    upper = _part(layers, axis.upper(), "rows", "rows per example", colours).properties(
        width=WIDTH,
        height=HEIGHT,
        title=alt.Title(
            "Attention self-repair",
            subtitle="Attention rows of a layer's heads, per example, in which two or more positions help: "
            "removing one may be repaired by another.",
        ),
    )
    lower = _part(layers, axis, "interaction", "interaction (nats)", colours).properties(
        width=WIDTH,
        height=HEIGHT,
        title=alt.Title(
            "",
            subtitle="Mean interaction in these rows: what removing the two largest scores together costs over "
            "removing one at a time; negative: less.",
        ),
    )
    chart = alt.vconcat(upper, lower, spacing=8).resolve_scale(x="independent", y="independent", color="independent")
    return chart, {"self_repair": rows(layers)}


def _part(
    layers: pd.DataFrame, axis: StepAxis, field: str, title: str, colours: dict[int, str]
) -> alt.LayerChart | alt.FacetChart:
    known = layers[field].dropna()
    low, high = min([0.0, *known]), max([0.0, *known]) or 1.0
    margin = 0.04 * (high - low)
    low, high = low - margin * (low < 0), high + margin
    base = named("self_repair").encode(
        x=axis.x(),
        y=alt.Y(
            f"{field}:Q",
            scale=alt.Scale(domain=[low, high], nice=False),
            axis=alt.Axis(title=title, tickCount=4, format="~r"),
        ),
        color=alt.Color("layer:N", legend=None, scale=alt.Scale(domain=list(colours), range=list(colours.values()))),
    )
    hint = tooltip(
        "'layer ' + datum.layer",
        {
            "step": "format(datum.step, ',d')",
            "rows per example": number("rows"),
            "mean interaction": number("interaction"),
        },
    )
    last = layers.dropna(subset=field).groupby("layer")[field].last()
    # Many layers share the labels' room: every k-th is named.
    stride = -(-len(last) * _LINE // HEIGHT)
    last = last.iloc[:: int(max(stride, 1))]
    heights = [HEIGHT * (high - value) / (high - low) for value in last]
    ends = [
        {"text": f"layer {layer}", "y": y, "colour": colours[layer] if layer > 0 else MUTED}
        for layer, y in zip(last.index, spread(heights, _LINE, HEIGHT), strict=True)
    ]
    return alt.layer(
        rules(HEIGHT, [0], color=FAINT).encode(y=alt.YDatum(0)),
        base.mark_line(strokeWidth=1.8),
        base.mark_point(filled=True, size=point_size(layers["step"].nunique(), 16), opacity=1, tooltip=hint),
        labels(ends, fontSize=11.5),
    )
