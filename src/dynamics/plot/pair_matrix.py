"""The matrix of pair interactions: which components stand in for each other, and which need each other."""

from __future__ import annotations

from typing import Protocol

import altair as alt
import numpy as np
import pandas as pd

from dynamics.analysis.importance import check_score
from dynamics.errors import AnalysisError
from dynamics.plot.axes import named, rows
from dynamics.plot.marks import number, tooltip
from dynamics.plot.palette import DIVERGING, MUTED, config
from dynamics.plot.parameters import selected

_SIDE, _CELL = 560, 26.0
"""Most the matrix takes, and most a cell takes, in pixels."""
_UNITS = {"exact_match": "accuracy lost", "loss": "nats of loss gained"}
_COLUMNS = ("first", "second", "score", "first_c", "second_c", "joint_c", "interaction")


class HasTable(Protocol):
    """What `pair_interactions` returns."""

    def table(self) -> pd.DataFrame:
        """Return one row per pair and score."""


def pair_matrix(pairs: HasTable | pd.DataFrame, score: str = "loss", title: str | None = None) -> alt.Chart:
    """Draw ``I_ij = C_ij - C_i - C_j`` of every pair of components, with C by mean ablation.

    Positive (green): the two stand in for each other (OR), so that each seems to matter less than it does. Negative
    (purple): the loss of one makes the other useless (AND). Colours go with the root, so that small ones are seen.

    Args:
        pairs: What `dynamics.pair_interactions` returns, or its table: ``first, second, score, first_c, second_c,
            joint_c, interaction``, a row for each pair.
        score: What C is measured in: ``"loss"`` or ``"exact_match"``.
        title: What stands above; default: a question.

    Returns:
        The chart, with its data: a notebook shows it, and ``chart.save("pairs.html", inline=True)`` writes
        a page that needs nothing else.

    Raises:
        AnalysisError: If the score is unknown, or the table lacks a column or has no pair of that score.
    """
    check_score(score)
    table = pairs if isinstance(pairs, pd.DataFrame) else pairs.table()
    missing = [name for name in _COLUMNS if name not in table]
    if missing:
        raise AnalysisError(
            f"a pair matrix needs the table of pair_interactions(...); its columns {', '.join(missing)} are missing."
        )
    table = table[table["score"] == score]
    if table.empty:
        raise AnalysisError(f"there is no pair with C by {score}; pair_interactions(...) needs at least 2 components.")
    order = list(dict.fromkeys([*table["first"], *table["second"]]))
    # Both halves are drawn: a row is then all that a component does with others.
    swapped = table.rename(columns={"first": "second", "second": "first", "first_c": "second_c", "second_c": "first_c"})
    cells = pd.concat([table, swapped[table.columns]], ignore_index=True).assign(component=lambda t: t["first"])
    sizes = cells["interaction"].abs()
    end = float(sizes[np.isfinite(sizes)].max()) if np.isfinite(sizes).any() else 0.0
    top = float(np.sqrt(end)) if end > 0 else 1.0
    side = min(_SIDE, _CELL * len(order))
    hint = tooltip(
        "datum.first + ' and ' + datum.second",
        {
            "I": number("interaction"),
            "C of both": number("joint_c"),
            "C of the first": number("first_c"),
            "C of the second": number("second_c"),
        },
    )
    small = side / len(order) < 11
    axis = alt.Axis(title=None, grid=False, labelFontSize=10, labelOverlap=small)
    colour = alt.Color(
        "root:Q",
        scale=alt.Scale(domain=[-top, -top / 2, 0, top / 2, top], range=list(DIVERGING)),
        legend=alt.Legend(
            orient="right",
            direction="vertical",
            values=[-top, -top / 2, 0, top / 2, top],
            labelExpr="datum.value === 0 ? '0' : format(datum.value * abs(datum.value), '+.2~g')",
            gradientLength=min(180, side),
            gradientThickness=9,
            title=["I", _UNITS[score]],
            titleFontWeight="normal",
            titleColor=MUTED,
            titleFontSize=11,
        ),
    )
    selection = selected()
    matrix = (
        named("pairs")
        .transform_filter("isValid(datum.interaction)")
        .transform_calculate(root="(datum.interaction < 0 ? -1 : 1) * sqrt(abs(datum.interaction))")
        .mark_rect(tooltip=hint, cursor="pointer", stroke="white", strokeWidth=0 if small else 1)
        .encode(
            x=alt.X("second:N", sort=order, scale=alt.Scale(domain=order), axis=axis.copy()),
            y=alt.Y("first:N", sort=order, scale=alt.Scale(domain=order), axis=axis.copy()),
            color=colour,
            opacity=alt.condition(selection, alt.value(1), alt.value(0.3)),
        )
        .add_params(selection)
    )
    return matrix.properties(
        config=config(),
        datasets={"pairs": rows(cells)},
        width=side,
        height=side,
        title=alt.Title(
            text=title or "Which components stand in for each other?",
            subtitle=[
                "Interaction of a pair: what ablating both costs, less what each costs alone.",
                "Green: one stands in for the other (OR). Purple: the loss of one makes the other useless (AND).",
            ],
        ),
    )
