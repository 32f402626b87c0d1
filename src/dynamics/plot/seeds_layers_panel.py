"""Panel: how many Heroes and Bloats each layer holds over runs, against luck."""

from __future__ import annotations

import altair as alt
import pandas as pd

from dynamics.plot.axes import Panel, named, rows
from dynamics.plot.marks import labels, number, pixels, tooltip
from dynamics.plot.palette import INK, MUTED, WIDTH
from dynamics.plot.seeds_layout import (
    CHOSEN,
    COLOURS,
    LEFT,
    PLURALS,
    SIDE,
    absences,
    across,
    headings,
    question,
    row_height,
    texts,
)

_TOP = 42.0
_TEXT = 126.0
"""Room for the numbers at the right of each half, in pixels."""


def seeds_layers_panel(table: pd.DataFrame, missing: dict[str, str]) -> Panel:
    """Draw a bar for each layer and role, the interval over runs, what luck gives, and the p-value beside.

    Args:
        table: `SeedTables.layers`.
        missing: Why there is nothing, by score.
    """
    n_rows = int(table["row"].max()) + 1
    step = row_height(n_rows, 13, 28)
    height = _TOP + n_rows * step
    # The interval may reach beyond what a count can be.
    low, high = (table[name].clip(0, table["components"]) for name in ("low", "high"))
    unit = (SIDE - _TEXT) / max(table["mean"].max(), table["chance"].max(), high.max(skipna=True), 1e-9)
    left, middle = table["role"].map(LEFT), _TOP + (table["row"] + 0.5) * step
    drawn = table.assign(
        x=left,
        x2=left + table["mean"] * unit,
        x_low=left + low * unit,
        x_high=left + high * unit,
        x_chance=left + table["chance"] * unit,
        middle=middle,
        y=middle - 0.32 * step,
        y2=middle + 0.32 * step,
        y_low=middle - 0.46 * step,
        y_high=middle + 0.46 * step,
    )
    hint = tooltip(
        "'layer ' + datum.layer + ': ' + (datum.role === 'hero' ? 'Heroes' : 'Bloats')",
        {
            "mean over runs": number("mean"),
            "95 % interval": "isValid(datum.low) ? format(datum.low, '.2~f') + ' to ' + format(datum.high, '.2~f') "
            ": datum.reason",
            "least to most": "format(datum.least, '.2~f') + ' to ' + format(datum.most, '.2~f')",
            "by luck": number("chance"),
            "components": "datum.components",
            "runs": "datum.runs",
            "p": number("p_value"),
        },
    )
    base = named("role_layers").transform_filter(CHOSEN)
    scale = alt.Scale(domain=list(COLOURS), range=list(COLOURS.values()))
    words = [
        {
            "text": f"{row['mean']:.1f} of {row['components']},  {_p(row['p_value'])}",
            "x": LEFT[row["role"]] + SIDE - _TEXT + 14,
            "y": _TOP + (row["row"] + 0.5) * step,
            "colour": INK if row["beyond"] else MUTED,
            "score": row["score"],
            "beyond": bool(row["beyond"]),
        }
        for row in table.to_dict("records")
    ]
    scores = [str(score) for score in table["score"].unique()]
    runs = {score: int(table[table["score"] == score]["runs"].max()) for score in scores}
    note = {
        (score, role): f"mean over {n} runs, whisker: 95 % interval" if n > 1 else "1 run: no interval"
        for score, n in runs.items()
        for role in LEFT
    }
    chart = alt.layer(
        base.mark_rect(tooltip=hint).encode(
            x=across("x"),
            x2="x2:Q",
            y=pixels("y", height),
            y2="y2:Q",
            fill=alt.Fill("role:N", legend=None, scale=scale),
        ),
        base.mark_rule(color=INK, strokeWidth=1.3).encode(x=across("x_low"), x2="x_high:Q", y=pixels("middle", height)),
        base.mark_rule(color=INK, strokeWidth=1.3, strokeDash=[3, 2]).encode(
            x=across("x_chance"), y=pixels("y_low", height), y2="y_high:Q"
        ),
        texts(words, fontSize=11 if step > 16 else 9.5, fontWeight=alt.ExprRef("datum.beyond ? 700 : 400")),
        headings({role: f"{name} in each layer" for role, name in PLURALS.items()}, note),
        labels(
            [
                {"text": f"layer {row['layer']}", "y": _TOP + (row["row"] + 0.5) * step, "colour": INK}
                for row in table.drop_duplicates("row").to_dict("records")
            ],
            "left",
            fontSize=11 if step > 16 else 9.5,
        ),
        absences(missing),
    ).properties(
        width=WIDTH,
        height=height,
        title=question(
            "In which layers do Heroes and Bloats lie?",
            [
                "Dashed: what luck alone gives. p: two-sided, by permuting the components of each run; "
                f"bold: p < 0.05 over all {len(LEFT) * n_rows} of them.",
                "Gradients fall with depth by themselves, which makes early Bloats and late Heroes.",
            ],
        ),
    )
    return chart, {"role_layers": rows(drawn)}


def _p(value: float) -> str:
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}" if value < 0.1 else f"p = {value:.2f}"
