"""Panel: the role of every component over training, as a raster."""

from __future__ import annotations

import math
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from dynamics.plot.axes import Panel, StepAxis, columns, flattened
from dynamics.plot.marks import labels, number, pixels, tooltip
from dynamics.plot.palette import FAINT, INK, MUTED, ROLE_COLOURS, WIDTH
from dynamics.plot.parameters import ROLES_BY

_LEGEND = {
    "hero": "Hidden Hero",
    "bloat": "Gradient Bloat",
    "aligned": "aligned",
    "undefined": "undefined",
}
_LINE = 10.0
"""Least height of a line of small labels, in pixels."""


class RasterLayout:
    """Where the rows of the raster lie: components below each other, with a gap between layers.

    Args:
        components: One row per component, in order: ``component`` and ``layer``.
    """

    def __init__(self, components: pd.DataFrame) -> None:
        self.labels = list(components["component"])
        self.layers = components["layer"].to_numpy()
        n = len(components)
        self.row = min(15.0, max(4.0, 620 / n))
        self.gap = min(7.0, max(3.0, self.row / 2))
        starts = np.diff(self.layers, prepend=self.layers[0]) != 0
        self.top = np.arange(n) * self.row + np.cumsum(starts) * self.gap
        self.height = float(self.top[-1] + self.row)

    def component_labels(self) -> list[dict[str, Any]]:
        """Return labels of the rows: of all, or of each k-th of a layer if rows are lower than letters."""
        stride = math.ceil(_LINE / self.row)
        texts, free = [], -math.inf
        for layer in np.unique(self.layers):
            for position, index in enumerate(np.flatnonzero(self.layers == layer)):
                middle = self.top[index] + self.row / 2
                if position % stride == 0 and middle - free >= _LINE - 0.5:
                    texts.append({"text": self.labels[index], "y": middle, "colour": MUTED})
                    free = middle
        return texts

    def layer_labels(self) -> list[dict[str, Any]]:
        """Return one label per layer, at its middle; fewer if layers are lower than letters."""
        texts, free = [], -math.inf
        for layer in np.unique(self.layers):
            tops = self.top[self.layers == layer]
            middle = (tops[0] + tops[-1] + self.row) / 2
            if middle - free >= _LINE:
                texts.append({"text": f"layer {layer}", "y": middle, "colour": INK})
                free = middle
        return texts


def roles_panel(cells: pd.DataFrame, axis: StepAxis) -> Panel:
    """Draw each cell from its snapshot's step to the next, coloured by the role; tooltips hold every number."""
    layout = RasterLayout(cells.drop_duplicates("component"))
    cells = cells.assign(end=axis.ends(cells["step"]), y=np.tile(layout.top, len(cells) // len(layout.top)))
    by_score: dict[str, str] = {}
    for name, score in (("accuracy", "exact_match"), ("loss", "loss")):
        by_score |= {
            f"C by {name}": number(f"causal_{score}"),
            f"rank of C by {name}": number(f"rank_causal_{score}", ".1~f"),
            f"Δ by {name}": number(f"delta_{score}", "+.1~f"),
            f"role by {name}": f"datum.role_{score}",
        }
    hint = tooltip(
        "datum.component + ', step ' + format(datum.step, ',d')",
        {"G": number("gradient"), "rank of G": number("rank_gradient", ".1~f"), **by_score},
    )
    colours = alt.Scale(domain=list(ROLE_COLOURS), range=list(ROLE_COLOURS.values()))
    # A white frame tells cells apart where there is room. Where there is none, an outline in the cell's own colour
    # hides the seams that rounding to pixels leaves.
    framed = WIDTH / cells["step"].nunique() > 6 and layout.row > 7
    raster = (
        flattened("cells", cells)
        .transform_calculate(
            y2=f"datum.y + {layout.row:g}",
            role=f"{ROLES_BY} === 'loss' ? datum.role_loss : datum.role_exact_match",
        )
        .mark_rect(opacity=1, tooltip=hint, strokeWidth=1 if framed else 0.4)
        .encode(
            x=axis.x(),
            x2="end:Q",
            y=pixels("y", layout.height),
            y2="y2:Q",
            color=alt.Color(
                "role:N",
                scale=colours,
                legend=alt.Legend(
                    labelExpr=f"{_LEGEND!r}[datum.label]", symbolStrokeColor=FAINT, symbolStrokeWidth=0.6
                ),
            ),
            stroke=alt.value("white") if framed else alt.Stroke("role:N", scale=colours, legend=None),
        )
    )
    undefined = (cells["role_exact_match"] == "undefined").any()
    note = " Undefined: C is the same for all, as C by accuracy is while accuracy is 0." if undefined else ""
    small = min(10.5, max(8.5, layout.row - 1))
    chart = alt.layer(
        raster,
        labels(layout.component_labels(), "left", fontSize=small),
        labels(layout.layer_labels(), fontSize=11.5),
    ).properties(
        width=WIDTH,
        height=layout.height,
        title=alt.Title(
            text=alt.ExprRef(f"'Roles, with C by ' + ({ROLES_BY} === 'loss' ? 'loss' : 'accuracy')"),
            subtitle=f"A row is a component; a cell lasts from its snapshot to the next.{note}",
        ),
    )
    return chart, {"cells": columns(cells)}
