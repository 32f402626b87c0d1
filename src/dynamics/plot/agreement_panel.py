"""Panel: which score ranks components as ablation does, gradient magnitude or an attribution."""

from __future__ import annotations

import altair as alt
import pandas as pd

from dynamics.plot.axes import Panel, StepAxis, named, rows
from dynamics.plot.marks import bands, interval, labels, lonely, number, point_size, rules, spread, tooltip
from dynamics.plot.palette import FAINT, GREEN, INK, LUCK, OCHRE, ROSE, WIDTH
from dynamics.plot.parameters import ROLES_BY

HEIGHT = 165
MEASURES = {
    "gradient_norm": ("G", INK),
    "|gradient|": ("|attr. patching|", OCHRE),
    "|ig|": ("|integrated gr.|", ROSE),
    "|gim|": ("|GIM|", GREEN),
}
"""What is named: gradient magnitude, and attributions without their sign, since G has none."""
SIGNED = {name.strip("|"): colour for name, (_, colour) in MEASURES.items() if name.startswith("|")}
"""What is drawn beside: the attributions with their sign, dashed, in the colour of their size."""


def agreement_panel(agreement: pd.DataFrame, axis: StepAxis, level: float) -> Panel | None:
    """Draw rho of every measure with C, for the score that is chosen; where it is undefined the line has a gap.

    Args:
        agreement: The table `Findings.agreement`.
        axis: The step axis.
        level: Of the intervals and of the band of luck.
    """
    drawn = agreement[agreement["measure"].isin([*MEASURES, *SIGNED])]
    known = set(drawn["measure"])
    style = {name: look for name, look in MEASURES.items() if name in known}
    colours = {name: colour for name, (_, colour) in style.items()} | {n: c for n, c in SIGNED.items() if n in known}
    if len(style) < 2:
        # A run without attributions: another panel shows G.
        return None
    drawn = drawn.assign(lonely=lonely(drawn, "rho", ["score", "measure"]))
    y = alt.Y(
        "rho:Q",
        scale=alt.Scale(domain=[-1, 1]),
        axis=alt.Axis(
            title="Spearman ρ with C",
            values=[-1, -0.5, 0, 0.5, 1],
            labelExpr="datum.value === 0 ? '0' : format(datum.value, '+.1~f')",
        ),
    )
    base = (
        named("agreement")
        .transform_filter(f"datum.score === {ROLES_BY}")
        .encode(
            x=axis.x(),
            y=y,
            color=alt.Color(
                "measure:N",
                legend=None,
                scale=alt.Scale(domain=list(colours), range=list(colours.values())),
            ),
        )
    )
    names = {measure: name for measure, (name, _) in style.items()}
    titles = names | {
        measure: f"{names[f'|{measure}|'].strip('|')}, with its sign" for measure in colours.keys() - names
    }
    sized, signed = (f"{'' if known else '!'}test(/^\\||^gradient_norm$/, datum.measure)" for known in (True, False))
    hint = tooltip(
        f"{titles}[datum.measure]",
        {
            "step": "format(datum.step, ',d')",
            "ρ": number("rho"),
            f"{level:.0%} interval": f"isValid(datum.rho) && datum.reason || ({interval('low', 'high')})",
            f"{level:.0%} by luck": interval("null_low", "null_high"),
            "p (permuted)": number("p_value"),
        },
    )
    size = point_size(drawn["step"].nunique(), 18)
    ends = [
        {"text": names[measure], "y": y, "colour": style[measure][1], "score": score}
        for score, table in drawn.groupby("score")
        for measure, y in _ends(table, names).items()
    ]
    # Luck is the same for all measures, but for ties.
    luck = base.transform_filter("datum.measure === 'gradient_norm'").encode(color=alt.value(LUCK))
    intervals = base.transform_filter(sized)
    chart = alt.layer(
        *bands(luck, "null_low", "null_high", y, alone=13),
        *bands(intervals, "low", "high", y, opacity=0.13),
        rules(HEIGHT, [HEIGHT / 2], color=FAINT).encode(y=alt.YDatum(0)),
        base.transform_filter(signed).mark_line(strokeWidth=1.2, strokeDash=[3, 3], opacity=0.8),
        base.transform_filter(signed).mark_point(filled=True, size=size / 2, opacity=0.8, tooltip=hint),
        base.transform_filter(sized).mark_line(strokeWidth=1.8),
        base.transform_filter(sized).mark_point(filled=True, size=size, opacity=1, tooltip=hint),
        labels(ends, fontSize=11.5).transform_filter(f"datum.score === {ROLES_BY}"),
    ).properties(
        width=WIDTH,
        height=HEIGHT,
        title=alt.Title(
            text=alt.ExprRef(
                f"'Do attributions find what ablation finds? (C by ' + ({ROLES_BY} === 'loss' ? 'loss)' : 'accuracy)')"
            ),
            subtitle=[
                "Rank correlation with causal importance C of gradient magnitude G and of the size of each "
                "attribution (dashed: with its sign; C has one, too).",
                *_sure(drawn, level),
            ],
        ),
    )
    return chart, {"agreement": rows(drawn)}


def _sure(drawn: pd.DataFrame, level: float) -> list[str]:
    luck = f"Grey: {level:.0%} of all ρ by luck, components paired at random. Gap: undefined."
    reasons = drawn["reason"][drawn["rho"].notna()].dropna()
    if drawn["low"].isna().all() and len(reasons):
        return [f"No interval: {reasons.iloc[0]}.", luck]
    return [f"Bands: {level:.0%} interval over resampled probe batches. {luck}"]


def _ends(table: pd.DataFrame, names: dict[str, str]) -> dict[str, float]:
    """Return where the labels of the lines go: at each one's last value, apart from each other."""
    last = table.dropna(subset="rho").groupby("measure", sort=False)["rho"].last()
    measures = [measure for measure in names if measure in last.index]
    wanted = [HEIGHT * (1 - last[measure]) / 2 for measure in measures]
    return dict(zip(measures, spread(wanted, 13, HEIGHT), strict=True))
