"""Panels: how much of the score the highest ranked components bring back, over training and at its last row."""

from __future__ import annotations

import altair as alt
import pandas as pd

from dynamics.plot.agreement_panel import MEASURES
from dynamics.plot.axes import Panel, StepAxis, named, rows
from dynamics.plot.marks import labels, number, point_size, rules, spread, tooltip
from dynamics.plot.palette import FAINT, MUTED, PURPLE, WIDTH
from dynamics.plot.parameters import ROLES_BY

HEIGHT = 165
_LINE = 13.5
"""Distance of labels, in pixels."""
_LEAST, _MOST = -0.5, 1.5
"""Nothing is drawn beyond: small differences between the whole model and none blow the ratio up."""
_NAMES = {"gradient_norm": "G", "gradient": "attr. patching", "gim": "GIM", "ig": "integrated gr."}
_COLOURS = {name.strip("|"): colour for name, (_, colour) in MEASURES.items()}
RANKINGS = {
    **{name: (text, _COLOURS[name]) for name, text in _NAMES.items()},
    "ablation": ("ablation", PURPLE),
    "random": ("random", FAINT),
    **{f"|{name}|": (f"|{_NAMES[name]}|", _COLOURS[name]) for name in ("gradient", "gim", "ig")},
}
"""Name and colour of every ranking; magnitudes are dashed, in the colour of what they are the magnitude of."""
_BY = f"({ROLES_BY} === 'loss' ? 'score: minus the loss' : 'score: accuracy')"


def faithfulness_panel(table: pd.DataFrame, axis: StepAxis) -> Panel | None:
    """Draw CPR over steps, a line for each ranking; ``None`` if there are less than two rows, which make no line."""
    if table["step"].nunique() < 2:
        return None
    # A whole model that is no better than one without any component turns the ratio upside down.
    table = table.assign(shown=table["cpr"].where(table["full"] > table["empty"]))
    base = _lines("faithfulness", table, "shown", "CPR").encode(x=axis.x())
    hint = tooltip(
        f"{_texts(table)}[datum.ranking]",
        {
            "step": "format(datum.step, ',d')",
            "CPR": number("cpr"),
            "CMD": number("cmd"),
            "m, whole model": number("full"),
            "m, no component": number("empty"),
        },
    )
    low, high = _domain(table["shown"])
    ends = []
    for score, of_score in table.groupby("score"):
        last = of_score.dropna(subset="shown").groupby("ranking", sort=False)["shown"].last()
        heights = [HEIGHT * (high - min(max(value, low), high)) / (high - low) for value in last]
        ends += [
            {"text": _style(name)[0], "y": y, "colour": _label_colour(name), "score": score}
            for name, y in zip(last.index, spread(heights, _LINE, HEIGHT), strict=True)
        ]
    size = point_size(table["step"].nunique(), 22)
    chart = alt.layer(
        rules(HEIGHT, [0], color=FAINT).encode(y=alt.YDatum(0)),
        base.mark_line(strokeWidth=1.8, clip=True),
        base.mark_point(filled=True, size=size, opacity=1, tooltip=hint, clip=True),
        labels(ends, fontSize=11.5).transform_filter(f"datum.score === {ROLES_BY}"),
    ).properties(
        width=WIDTH,
        height=HEIGHT,
        title=alt.Title(
            text=alt.ExprRef(f"'Does a ranking find what the model needs? (' + {_BY} + ')'"),
            subtitle="CPR: how much of the score the highest ranked components bring back alone, averaged over their "
            f"number. Gap: the whole model is no better than none.{_cut(table['shown'])}",
        ),
    )
    return chart, {"faithfulness": rows(_control_first(table))}


def curve_panel(curves: pd.DataFrame, table: pd.DataFrame) -> Panel | None:
    """Draw f(k) at the last row, a line for each ranking, and its CPR beside; ``None`` if there is no row."""
    if not len(curves):
        return None
    step, n = int(curves["step"].max()), int(curves["kept"].max())
    last = table[table["step"] == step]
    better = last[last["full"] > last["empty"]][["score", "ranking", "cpr"]]
    drawn = curves[curves["step"] == step].merge(better[["score", "ranking"]], on=["score", "ranking"])
    base = _lines("curves", last, "faithfulness", "share of the score, f(k)", drawn["faithfulness"]).encode(
        x=alt.X(
            "kept:Q",
            scale=alt.Scale(domain=[0, n], nice=False),
            axis=alt.Axis(
                title="components kept (k), the highest ranked first",
                grid=False,
                labelFlush=False,
                tickMinStep=1,
                tickCount=min(n, 20),
                format="d",
            ),
        )
    )
    hint = tooltip(f"{_texts(last)}[datum.ranking]", {"kept": "datum.kept", "f(k)": number("faithfulness")})
    ends: list[dict[str, object]] = []
    for score in last["score"].unique():
        found = better[better["score"] == score].sort_values("cpr", ascending=False, kind="stable")
        texts = [
            (f"{_style(name)[0]}  {cpr:.2f}", _label_colour(name)) for name, cpr in found[["ranking", "cpr"]].values
        ]
        lines = [("CPR", MUTED), *texts] if texts else [("undefined", MUTED)]
        ends += [
            {"text": text, "y": 6 + row * (_LINE + 2), "colour": colour, "score": score}
            for row, (text, colour) in enumerate(lines)
        ]
    chart = alt.layer(
        rules(HEIGHT, [0], color=FAINT).encode(y=alt.YDatum(0)),
        rules(HEIGHT, [0], color=FAINT, strokeDash=[3, 3]).encode(y=alt.YDatum(1)),
        base.mark_line(strokeWidth=1.8, clip=True),
        base.mark_point(filled=True, size=point_size(n + 1, 16), opacity=1, tooltip=hint, clip=True),
        labels(ends, fontSize=11.5).transform_filter(f"datum.score === {ROLES_BY}"),
    ).properties(
        width=WIDTH,
        height=HEIGHT,
        title=alt.Title(
            text=alt.ExprRef(f"'How few components suffice at step {step:,}? (' + {_BY} + ')'"),
            subtitle="Share of the score that the k highest ranked components bring back, all others at their mean. "
            f"Dashed: the whole model.{_cut(drawn['faithfulness'])}",
        ),
    )
    return chart, {"curves": rows(_control_first(drawn))}


def _lines(name: str, table: pd.DataFrame, field: str, title: str, values: pd.Series | None = None) -> alt.Chart:
    """Return a chart of one field over what x is to be, coloured and dashed by ranking, for the chosen score."""
    names = list(dict.fromkeys(table["ranking"]))
    low, high = _domain(table[field] if values is None else values)
    return (
        named(name)
        .transform_filter(f"datum.score === {ROLES_BY}")
        .encode(
            y=alt.Y(
                f"{field}:Q",
                scale=alt.Scale(domain=[low, high], nice=False),
                axis=alt.Axis(title=title, values=[-0.5, -0.25, 0, 0.25, 0.5, 0.75, 1, 1.25, 1.5], format=".2~f"),
            ),
            color=alt.Color(
                "ranking:N", legend=None, scale=alt.Scale(domain=names, range=[_style(name)[1] for name in names])
            ),
            strokeDash=alt.StrokeDash(
                "ranking:N",
                legend=None,
                scale=alt.Scale(domain=names, range=[[4, 3] if name.startswith("|") else [1, 0] for name in names]),
            ),
        )
    )


def _control_first(table: pd.DataFrame) -> pd.DataFrame:
    # Lines are drawn in the order of their rows: the control lies behind all others.
    return table.sort_values("ranking", key=lambda ranking: ranking != "random", kind="stable")


def _domain(values: pd.Series) -> tuple[float, float]:
    """Return the ends of the vertical axis: 0 to 1, and as far beyond as values go, within limits."""
    known = values.dropna()
    lowest, highest = min([0.0, *known]), max([1.0, *known])
    # A margin, so that a point at the end is not cut in half.
    return max(_LEAST, lowest - 0.03 * (lowest < 0)), min(_MOST, highest + 0.03 * (highest > 1))


def _cut(values: pd.Series) -> str:
    """Return the sentence that says where the axis ends, if a value lies beyond."""
    known = values.dropna()
    beyond = len(known) and (known.min() < _LEAST or known.max() > _MOST)
    return f" Cut off at {_LEAST:g} and {_MOST:g}." if beyond else ""


def _style(ranking: str) -> tuple[str, str]:
    return RANKINGS.get(ranking, (ranking, MUTED))


def _label_colour(ranking: str) -> str:
    # A line may be faint, letters may not.
    return MUTED if ranking == "random" else _style(ranking)[1]


def _texts(table: pd.DataFrame) -> dict[str, str]:
    return {ranking: _style(ranking)[0] for ranking in table["ranking"].unique()}
