"""Panel: the role of every component over training, as a raster."""

from __future__ import annotations

import math
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from dynamics.analysis import SCORES
from dynamics.plot.axes import Panel, StepAxis, columns, flattened
from dynamics.plot.marks import labels, number, pixels, tooltip
from dynamics.plot.palette import FAINT, INK, MUTED, ROLE_COLOURS, WIDTH
from dynamics.plot.parameters import ROLES_BY, chosen, selected

_LEGEND = {
    "hero": "Hidden Hero",
    "bloat": "Gradient Bloat",
    "aligned": "aligned",
    "undefined": "undefined",
}
_LINE = 10.0
"""Least height of a line of small labels, in pixels."""
_PALEST, _UNSURE = 0.3, 0.2
"""Opacity of a role that at most this share of the resamples has."""
_DIMMED = 0.1
"""Opacity of cells that are not selected, when others are."""


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
                    label = self.labels[index]
                    texts.append({"text": label, "y": middle, "colour": MUTED, "component": label})
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
    """Draw each cell from its snapshot's step to the next, coloured by the role; tooltips hold every number.

    The more resamples give the role, too, the more opaque is the cell. A click selects a component.
    """
    layout = RasterLayout(cells.drop_duplicates("component"))
    cells = cells.assign(end=axis.ends(cells["step"]), y=np.tile(layout.top, len(cells) // len(layout.top)))
    defined = any((cells[f"role_{score}"] != "undefined").any() for score in SCORES)
    known = any(cells[f"p_hero_{score}"].notna().any() for score in SCORES)
    selection = selected()
    by_score: dict[str, str] = {}
    for name, score in (("accuracy", "exact_match"), ("loss", "loss")):
        by_score |= {
            f"C by {name}": number(f"causal_{score}"),
            f"rank of C by {name}": number(f"rank_causal_{score}", ".1~f"),
            f"Δ by {name}": number(f"delta_{score}", "+.1~f"),
            f"role by {name}": f"datum.role_{score} + ({_sure(score)})",
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
            role=chosen("role"),
            p_hero=chosen("p_hero"),
            p_bloat=chosen("p_bloat"),
        )
        # Where nothing is known of it, as in undefined cells, the colour is full.
        .transform_calculate(sure=f"isValid(datum.p_hero) ? {_probability('datum.role', 'datum.p_')} : 1")
        .mark_rect(tooltip=hint, strokeWidth=1 if framed else 0.4, cursor="pointer")
        .encode(
            x=axis.x(),
            x2="end:Q",
            y=pixels("y", layout.height),
            y2="y2:Q",
            color=alt.Color(
                "role:N",
                scale=colours,
                legend=alt.Legend(
                    labelExpr=f"{_LEGEND!r}[datum.label]",
                    symbolStrokeColor=FAINT,
                    symbolStrokeWidth=0.6,
                    symbolOpacity=1,
                ),
            ),
            stroke=alt.value("white") if framed else alt.Stroke("role:N", scale=colours, legend=None),
            opacity=alt.condition(selection, _opacity(known), alt.value(_DIMMED)),
        )
        .add_params(selection)
    )
    undefined = (cells["role_exact_match"] == "undefined").any()
    notes = []
    if known:
        notes.append("The paler, the less sure: opacity is the share of resampled probes that give it that role, too.")
    elif defined:
        notes.append("How sure a role is cannot be told: the probe has a single batch, and none can be resampled.")
    if undefined:
        notes.append("Undefined: C is the same for all, as C by accuracy is while accuracy is 0.")
    small = min(10.5, max(8.5, layout.row - 1))
    chart = alt.layer(
        raster,
        # The raster's selection hears of clicks on all of the panel's marks, but Vega-Lite keeps those from the mouse
        # that have no tooltip.
        labels(
            layout.component_labels(),
            "left",
            fontSize=small,
            cursor="pointer",
            tooltip=alt.ExprRef("datum.component + ': click to select'"),
        ).encode(
            color=alt.condition(selection, alt.value(INK), alt.value(MUTED), empty=False),
            opacity=alt.condition(selection, alt.value(1), alt.value(0.4)),
        ),
        labels(layout.layer_labels(), fontSize=11.5),
    ).properties(
        width=WIDTH,
        height=layout.height,
        title=alt.Title(
            text=alt.ExprRef(f"'Roles, with C by ' + ({ROLES_BY} === 'loss' ? 'loss' : 'accuracy')"),
            subtitle=[
                "A row is a component; a cell lasts from its snapshot to the next. "
                "A click on a row selects its component, a double click none.",
                *notes,
            ],
        ),
    )
    return chart, {"cells": columns(cells)}


def _probability(role: str, prefix: str, suffix: str = "") -> str:
    """Return the expression of the share of resamples in which a component has the role."""
    hero, bloat = f"{prefix}hero{suffix}", f"{prefix}bloat{suffix}"
    return f"({role} === 'hero' ? {hero} : {role} === 'bloat' ? {bloat} : 1 - {hero} - {bloat})"


def _sure(score: str) -> str:
    """Return the expression that writes that share, or nothing if there is none."""
    share = _probability(f"datum.role_{score}", "datum.p_", f"_{score}")
    return f"isValid(datum.p_hero_{score}) ? ', in ' + format({share}, '.0%') + ' of resamples' : ''"


def _opacity(known: bool) -> alt.Opacity:
    legend = alt.Legend(
        values=[0.4, 0.6, 0.8, 1],
        labelExpr="datum.value === 1 ? '100% of resamples' : format(datum.value, '.0%')",
        symbolFillColor=MUTED,
        symbolStrokeWidth=0,
        # Beside the legend of roles.
        orient="none",
        legendX=440,
        legendY=-23,
    )
    scale = alt.Scale(domain=[_UNSURE, 1], range=[_PALEST, 1], clamp=True)
    return alt.Opacity("sure:Q", scale=scale, legend=legend if known else None)
