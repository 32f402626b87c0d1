"""Panel: the rank of every component over training, by cause or by gradient."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from dynamics.analysis.importance import SCORES
from dynamics.plot.axes import Panel, StepAxis, columns, flattened
from dynamics.plot.marks import (
    FEW,
    KIND_NAMES,
    KINDS,
    labels,
    layer_colour,
    number,
    point_size,
    rank_ticks,
    spread,
    tooltip,
)
from dynamics.plot.palette import BLOAT, HERO, INK, MUTED, WIDTH
from dynamics.plot.parameters import AT_SNAPSHOT, BY_SCORE, HOVERED, ROLES_BY, SELECTED, hovered, of_score, selected

_SIDES = {"causal": ("C", "causal importance C", "needed most"), "gradient": ("G", "gradient magnitude G", "largest")}
_NEEDED = ("snapshot", "step", "component", "layer", "kind", "rank_gradient")
_BY_SCORE = ("rank_causal", "delta", "role")
_FRONT: Any = {"or": [{"param": SELECTED, "empty": False}, {"param": HOVERED, "empty": False}]}
"""Which components are brought forward: the selected ones, and the one under the pointer."""


def bump_panel(cells: pd.DataFrame, snapshots: pd.DataFrame, axis: StepAxis, side: str) -> Panel:
    """Draw a line for each component, with a mark wherever it is a hero or a bloat.

    Args:
        cells: `Tables.cells`.
        snapshots: `Tables.snapshots`.
        axis: The step axis.
        side: ``"causal"``: ranks of C, with a gap where rho is undefined; ``"gradient"``: ranks of G.
    """
    symbol, words, best = _SIDES[side]
    n = cells["component"].nunique()
    few = n <= FEW
    cells = cells[[*_NEEDED, *(f"{name}_{score}" for score in SCORES for name in _BY_SCORE)]]
    height = n * min(15.0, max(2.4, 380 / n))
    # Without rho there is no ranking: all C are the same, or not all are finite.
    rank = "datum.role === 'undefined' ? null : datum.rank_causal" if side == "causal" else "datum.rank_gradient"
    base = (
        flattened("cells", cells)
        .transform_calculate(**of_score(_BY_SCORE))
        .transform_calculate(rank=rank)
        .encode(
            x=axis.x(),
            y=alt.Y(
                "rank:Q",
                scale=alt.Scale(domain=[0.5, n + 0.5], nice=False),
                axis=alt.Axis(title=f"rank of {symbol} ({n}: {best})", values=rank_ticks(n), format="d"),
            ),
        )
    )
    pick, over = selected(), hovered()
    opacity = _by_state(1, 0.85 if few else 0.45, 0.13)
    lines = base.mark_line().encode(
        detail="component:N",
        color=layer_colour(cells, legend="stroke" if side == "causal" else None),
        # Within a layer, too, MLPs can be told from heads.
        strokeDash=alt.StrokeDash(
            "kind:N",
            scale=alt.Scale(domain=list(KINDS), range=[[1, 0], [7, 3]]),
            legend=alt.Legend(title="kind", titleFontWeight="normal", labelExpr=KIND_NAMES, symbolType="stroke")
            if side == "causal"
            else None,
        ),
        opacity=opacity,
        strokeWidth=_by_state(3, *[1.6 if few else 0.9] * 2),
    )
    # A line is too thin to be hit: what is clicked is a wider one, which is not seen.
    handles = (
        base.mark_line(
            strokeWidth=max(3.0, min(10.0, height / n)),
            opacity=0,
            cursor="pointer",
        )
        .encode(detail="component:N")
        .add_params(pick, over)
    )
    hint = tooltip(
        "datum.component + ', step ' + format(datum.step, ',d')",
        {
            "rank of G": number("rank_gradient", ".1~f"),
            "rank of C": number("rank_causal", ".1~f"),
            "Δ = rank of G − rank of C": number("delta", "+.1~f"),
            "role": "datum.role",
        },
    )
    # Of many components only those in front have marks: all together would hide the lines.
    points = (base if few else base.transform_filter(_FRONT)).transform_filter("isValid(datum.rank)")
    size = point_size(cells["step"].nunique(), 42) if few else 26
    roles = (
        points.transform_filter("datum.role === 'hero' || datum.role === 'bloat'")
        .mark_point(filled=True, size=size)
        .encode(
            fill=alt.Fill("role:N", scale=alt.Scale(domain=["hero", "bloat"], range=[HERO, BLOAT]), legend=None),
            opacity=opacity,
        )
    )
    targets = points.mark_point(filled=True, size=2 * size, opacity=0, tooltip=hint, cursor="pointer")
    shown = (
        flattened("snapshots", snapshots)
        .transform_filter(f"datum.snapshot === {AT_SNAPSHOT} && datum.score === {ROLES_BY}")
        .mark_rule(color=INK, strokeWidth=1, strokeDash=[2, 3])
        .encode(x=axis.x())
    )
    gap = " Gap: ρ is undefined." if side == "causal" else ""
    chart = alt.layer(shown, lines, handles, roles, targets, _names(cells, side, height, few)).properties(
        width=WIDTH,
        height=height,
        title=alt.Title(
            text=alt.ExprRef(f"'Which components does the model need? (C by ' + {BY_SCORE} + ')'")
            if side == "causal"
            else "Which components have large gradients?",
            subtitle=f"A line is a component's rank by {words}. Dots: it is a Hidden Hero (blue) or a Gradient "
            f"Bloat (orange) there.{gap} Click to follow one.",
        ),
    )
    return chart, {"cells": columns(cells), "snapshots": columns(snapshots)}


def _by_state(front: float, usual: float, behind: float) -> Any:
    """Return the value of an encoding: in front, while nothing is selected, and behind what is selected."""
    return (
        alt.when(selected(), empty=False)
        .then(alt.value(front))
        .when(hovered(), empty=False)
        .then(alt.value(front))
        .when(selected())
        .then(alt.value(usual))
        .otherwise(alt.value(behind))
    )


def _names(cells: pd.DataFrame, side: str, height: float, few: bool) -> alt.Chart:
    """Return labels at the lines' ends; of many components only those in front are named."""
    n = cells["component"].nunique()
    texts: list[dict[str, Any]] = []
    for score in SCORES:
        field = f"rank_causal_{score}" if side == "causal" else "rank_gradient"
        known = cells if side == "gradient" else cells[cells[f"role_{score}"] != "undefined"]
        last = known.dropna(subset=field).groupby("component", sort=False)[field].last()
        wanted = [height * (n + 0.5 - rank) / n for rank in last]
        places = spread(wanted, min(11.0, height / n), height) if few else wanted
        texts += [
            {"text": name, "component": name, "y": y, "colour": MUTED, "score": score}
            for name, y in zip(last.index, places, strict=True)
        ]
    chart = labels(texts, fontSize=10).transform_filter(f"datum.score === {ROLES_BY}")
    if not few:
        return chart.transform_filter(_FRONT)
    return chart.encode(opacity=_by_state(1, 1, 0.3))
