"""Panel: in how many runs each component is a Hero, and a Bloat, as two grids of layers and places in the layer."""

from __future__ import annotations

import altair as alt
import pandas as pd

from dynamics.analysis.roles import BLOAT, HERO
from dynamics.plot.axes import Panel, named, rows
from dynamics.plot.marks import labels, number, pixels, tooltip
from dynamics.plot.palette import GRID, INK, MUTED, WIDTH
from dynamics.plot.parameters import selected
from dynamics.plot.seeds_layout import (
    CHOSEN,
    COLOURS,
    HEAD,
    LEFT,
    SIDE,
    absences,
    across,
    headings,
    question,
    row_height,
    texts,
)

NAMES = {HERO: "Hidden Hero", BLOAT: "Gradient Bloat"}
_NAMED = 3
"""So many components that have a role most often are named."""


def seeds_frequency_panel(table: pd.DataFrame, missing: dict[str, str], window: str) -> Panel:
    """Draw both grids; a frame marks what luck gives too rarely.

    Args:
        table: `SeedTables.frequency`.
        missing: Why there is nothing, by score.
        window: The window in words.
    """
    n_rows, n_columns = int(table["row"].max()) + 1, int(table["column"].max()) + 1
    cell_height, cell_width = row_height(n_rows, 9, 30), min(64.0, SIDE / n_columns)
    height = HEAD + n_rows * cell_height
    drawn = table.assign(
        x=table["role"].map(LEFT) + table["column"] * cell_width, y=HEAD + table["row"] * cell_height
    ).assign(x2=lambda t: t["x"] + cell_width - 2, y2=lambda t: t["y"] + cell_height - 2)
    hint = tooltip(
        "datum.component + ': ' + (datum.role === 'hero' ? 'Hidden Hero' : 'Gradient Bloat')",
        {
            "runs": "datum.runs + ' of ' + datum.of",
            "by luck": number("by_luck", ".2~f"),
            "p, at least so many": number("p_value"),
            "hero in": "datum.heroes",
            "bloat in": "datum.bloats",
            "aligned in": "datum.aligned",
            "no majority in": "datum.mixed",
        },
    )
    base = named("frequency").transform_filter(CHOSEN)
    place = {"x": across("x"), "x2": "x2:Q", "y": pixels("y", height), "y2": "y2:Q"}
    ink = alt.condition(selected(), alt.value(1), alt.value(0.25))
    cells = base.mark_rect(tooltip=hint, strokeWidth=1).encode(
        **place,
        fill=alt.Fill("role:N", legend=None, scale=alt.Scale(domain=list(COLOURS), range=list(COLOURS.values()))),
        fillOpacity=alt.FillOpacity("share:Q", legend=None, scale=alt.Scale(domain=[0, 1], range=[0.03, 1])),
        stroke=alt.value(GRID),
        opacity=ink,
    )
    frames = (
        base.transform_filter("datum.beyond")
        .mark_rect(filled=False, stroke=INK, strokeWidth=2, fillOpacity=0, tooltip=hint)
        .encode(**place, opacity=ink)
    )
    layers = [cells, frames]
    if cell_width >= 15 and cell_height >= 11:
        middle = base.transform_calculate(cx="(datum.x + datum.x2) / 2", cy="(datum.y + datum.y2) / 2")
        layers.append(
            middle.mark_text(
                baseline="middle",
                fontSize=12 if cell_height > 18 else 9.5,
                fontWeight=alt.ExprRef("datum.beyond ? 700 : 400"),
                fill=alt.ExprRef(f"datum.share > 0.55 ? 'white' : datum.runs ? '{INK}' : '{MUTED}'"),
                tooltip=hint,
            ).encode(x=across("cx"), y=pixels("cy", height), text="runs:Q", opacity=ink)
        )
    columns = table[table["position"] != ""].drop_duplicates("column")
    if cell_width >= 22 or n_columns == 1:
        layers.append(
            texts(
                [
                    {"text": text, "x": LEFT[role] + (column + 0.5) * cell_width - 1, "y": HEAD - 9, "colour": MUTED,
                     "score": score}
                    for text, column in zip(columns["position"], columns["column"], strict=True)
                    for role in LEFT
                    for score in table["score"].unique()
                ],
                align="center",
                fontSize=10.5,
            )
        )  # fmt: skip
    stride = 1 if cell_height >= 11 else 2
    names = [
        {"text": f"layer {row['layer']}", "y": HEAD + (row["row"] + 0.5) * cell_height - 1, "colour": INK}
        for row in table.drop_duplicates("row").to_dict("records")
        if row["row"] % stride == 0
    ]
    scores = table.groupby("score")
    second = {(str(score), role): _most_often(of[of["role"] == role]) for score, of in scores for role in LEFT}
    tests = len(LEFT) * table["component"].nunique()
    # With few runs no frame is possible, however alike they are.
    too_few = [
        {
            "text": f"Luck alone, over all {tests} cells, explains even {n} of {n} runs (p > 0.05): "
            "nothing can be framed.",
            "x": 0,
            "y": height + 10,
            "colour": INK,
            "score": str(score),
        }
        for score, of in scores
        for n in of["of"].head(1)
        if not of["possible"].any()
    ]
    chart = alt.layer(
        cells.add_params(selected()),
        *layers[1:],
        headings({role: f"{name}: number of runs" for role, name in NAMES.items()}, second),
        labels(names, "left", fontSize=11),
        texts(too_few),
        absences(missing),
    ).properties(
        width=WIDTH,
        height=height + (18 if too_few else 0),
        title=question(
            "Which components have the same role in run after run?",
            [
                f"A run counts where the component has the role at most of its snapshots ({window}).",
                "Framed: in more runs than luck explains, were the ranks of G and C independent "
                f"(p < 0.05 over all {tests} cells; depth alone can do that).",
            ],
        ),
    )
    return chart, {"frequency": rows(drawn)}


def _most_often(table: pd.DataFrame) -> str:
    """Return the second line above a grid: what is most often, and what luck gives."""
    most, of = int(table["runs"].max()), int(table["of"].iloc[0])
    luck = f"luck: {table['by_luck'].iloc[0]:.1f} of {of}"
    if not most:
        return f"none · {luck}"
    names = table[table["runs"] == most]["component"].tolist()
    listed = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
    return f"most often {listed}: {most} of {of} · {luck}"
