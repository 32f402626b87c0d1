"""Panel: rank correlation of gradient and cause."""

from __future__ import annotations

import altair as alt
import pandas as pd

from dynamics.plot.axes import Panel, StepAxis, named, rows
from dynamics.plot.marks import labels, number, point_size, rules, spread, tooltip
from dynamics.plot.palette import FAINT, INK, PURPLE, WIDTH

HEIGHT = 165
_LOWEST = -1.3
"""The axis goes on below -1, so that a cross cannot be read as a value."""
_STYLE = {"exact_match": ("C by accuracy", INK), "loss": ("C by loss", PURPLE)}


def _height_of(rho: float) -> float:
    return HEIGHT * (1 - rho) / (1 - _LOWEST)


# Crosses lie below all values, in a line for each score.
_CROSSES = {"exact_match": _height_of(-1.12), "loss": _height_of(-1.22)}
_CROSS = "M-.5,-.5L.5,.5M.5,-.5L-.5,.5"


def rho_panel(rho: pd.DataFrame, axis: StepAxis) -> Panel:
    """Draw rho with both scores; a cross below the values marks a snapshot where it is undefined, and says why."""
    base = named("rho").encode(
        x=axis.x(),
        color=alt.Color(
            "score:N",
            legend=None,
            scale=alt.Scale(domain=list(_STYLE), range=[colour for _, colour in _STYLE.values()]),
        ),
    )
    names = {score: name for score, (name, _) in _STYLE.items()}
    title = f"datum.score === 'loss' ? '{names['loss']}' : '{names['exact_match']}'"
    lines = {"step": "format(datum.step, ',d')", "ρ": number("rho")}
    counts = {name: number(name) for name in ("heroes", "bloats", "chance")}
    hint = tooltip(title, {**lines, "p": number("p_value"), **counts})
    y = alt.Y(
        "rho:Q",
        scale=alt.Scale(domain=[_LOWEST, 1]),
        axis=alt.Axis(
            title="Spearman ρ (G, C)",
            values=[-1, -0.5, 0, 0.5, 1],
            labelExpr="datum.value === 0 ? '0' : format(datum.value, '+.1~f')",
        ),
    )
    snapshots = len(rho) // len(_STYLE)
    undefined = rho["rho"].isna()
    crosses = base.transform_filter("!isValid(datum.rho)").mark_point(
        shape=_CROSS,
        size=max(14, 40 * min(1, 50 / snapshots)),
        strokeWidth=1.2,
        opacity=1,
        filled=False,
        y=alt.ExprRef(f"{_CROSSES}[datum.score]"),
        tooltip=tooltip(title, {**lines, "why": "datum.reason"}),
    )
    last = rho[~undefined].groupby("score").tail(1).set_index("score")["rho"]
    # A score without any value is named beside its crosses.
    wanted = [_height_of(last[score]) if score in last.index else _CROSSES[score] for score in _STYLE]
    ends = [
        {"text": name if score in last.index else f"{name}: undefined", "y": y, "colour": colour}
        for (score, (name, colour)), y in zip(_STYLE.items(), spread(wanted, 14, HEIGHT), strict=True)
    ]
    note = " × : undefined, because one side is the same for all components or not finite." if undefined.any() else ""
    chart = alt.layer(
        rules(HEIGHT, [_height_of(0)], color=FAINT).encode(y=alt.YDatum(0)),
        base.encode(y=y).mark_line(strokeWidth=2),
        base.encode(y=y).mark_point(filled=True, size=point_size(snapshots, 22), opacity=1, tooltip=hint),
        crosses,
        labels(ends, fontSize=11.5),
    ).properties(
        width=WIDTH,
        height=HEIGHT,
        title=alt.Title(
            "Do gradients rank components as ablation does?",
            subtitle=f"Rank correlation of gradient magnitude G and causal importance C; 1: the same order.{note}",
        ),
    )
    return chart, {"rho": rows(rho)}
