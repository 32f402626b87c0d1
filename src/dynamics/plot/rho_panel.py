"""Panel: rank correlation of gradient and cause, how sure it is, and what luck alone gives."""

from __future__ import annotations

import altair as alt
import pandas as pd

from dynamics.plot.axes import Panel, StepAxis, named, rows
from dynamics.plot.marks import bands, interval, labels, lonely, number, point_size, rules, spread, tooltip
from dynamics.plot.palette import FAINT, INK, LUCK, MUTED, PURPLE, WIDTH

HEIGHT = 190
_LOWEST = -1.5
"""The axis goes on below -1, for crosses and bars that cannot be read as values."""
_TIES = (-1.45, -1.15)
"""Where bars of ties begin and end, on the axis of rho."""
_STYLE = {"exact_match": ("C by accuracy", INK), "loss": ("C by loss", PURPLE)}


def _height_of(rho: float) -> float:
    return HEIGHT * (1 - rho) / (1 - _LOWEST)


# Crosses lie below all values, in a line for each score.
_CROSSES = {"exact_match": _height_of(-1.22), "loss": _height_of(-1.38)}
_CROSS = "M-.5,-.5L.5,.5M.5,-.5L-.5,.5"


def rho_panel(rho: pd.DataFrame, axis: StepAxis, level: float) -> Panel:
    """Draw rho with both scores, with bands of its interval and of luck; below the values what weakens or forbids it.

    A cross marks a snapshot where rho is undefined, and says why; a bar the share of components that are tied in C.

    Args:
        rho: The table `ScoreFindings.rho` of both scores.
        axis: The step axis.
        level: Of both bands.
    """
    low, high = _TIES
    rho = rho.assign(
        lonely=lonely(rho, "rho", "score"),
        end=axis.ends(rho["step"]),
        ties_top=low + (high - low) * rho["ties"].where(rho["ties"] > 0),
    )
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
    ties = {"tied in C": "isValid(datum.ties) ? format(datum.ties, '.0%') : 'undefined'"}
    lines = {"step": "format(datum.step, ',d')", "ρ": number("rho")}
    counts = {name: number(name) for name in ("heroes", "bloats", "chance")}
    hint = tooltip(
        title,
        {
            **lines,
            f"{level:.0%} interval": f"datum.reason_interval || ({interval('low', 'high')})",
            f"{level:.0%} by luck": interval("null_low", "null_high"),
            "p (permuted)": number("p_null"),
            **ties,
            **counts,
        },
    )
    y = alt.Y(
        "rho:Q",
        scale=alt.Scale(domain=[_LOWEST, 1], nice=False),
        axis=alt.Axis(
            title="Spearman ρ (G, C)",
            values=[-1, -0.5, 0, 0.5, 1],
            labelExpr="datum.value === 0 ? '0' : format(datum.value, '+.1~f')",
        ),
    )
    snapshots = len(rho) // len(_STYLE)
    undefined, tied = rho["rho"].isna(), (rho["ties"] > 0).any()
    crosses = base.transform_filter("!isValid(datum.rho)").mark_point(
        shape=_CROSS,
        size=max(14, 40 * min(1, 50 / snapshots)),
        strokeWidth=1.2,
        opacity=1,
        filled=False,
        y=alt.ExprRef(f"{_CROSSES}[datum.score]"),
        tooltip=tooltip(title, {**lines, "why": "datum.reason", **ties}),
    )
    bars = (
        named("rho")
        .transform_filter("isValid(datum.ties_top)")
        .mark_rect(opacity=1, tooltip=tooltip(title, {"step": lines["step"], **ties}))
        .encode(
            x=axis.x(),
            x2="end:Q",
            y=alt.Y("ties_top:Q", scale=y["scale"]),
            y2=alt.Y2Datum(low),
            color=alt.value(FAINT),
        )
    )
    last = rho[~undefined].groupby("score").tail(1).set_index("score")["rho"]
    # A score without any value is named beside its crosses.
    wanted = [_height_of(last[score]) if score in last.index else _CROSSES[score] for score in _STYLE]
    ends = [
        {"text": name if score in last.index else f"{name}: undefined", "y": y, "colour": colour}
        for (score, (name, colour)), y in zip(_STYLE.items(), spread(wanted, 14, HEIGHT), strict=True)
    ]
    scale = [{"text": text, "y": _height_of(at), "colour": MUTED} for text, at in (("100% tied", high), ("0%", low))]
    # In one opaque colour for both scores: what is seen is where either may lie by luck.
    luck = base.encode(color=alt.value(LUCK), detail="score:N")
    chart = alt.layer(
        *bands(luck, "null_low", "null_high", y, alone=13),
        rules(HEIGHT, [_height_of(0)], color=FAINT).encode(y=alt.YDatum(0)),
        *([bars, labels(scale, "left", fontSize=9.5)] if tied else []),
        *bands(base, "low", "high", y, opacity=0.16),
        base.encode(y=y).mark_line(strokeWidth=2),
        base.encode(y=y).mark_point(filled=True, size=point_size(snapshots, 22), opacity=1, tooltip=hint),
        crosses,
        labels(ends, fontSize=11.5),
    ).properties(
        width=WIDTH,
        height=HEIGHT,
        title=alt.Title("Do gradients rank components as ablation does?", subtitle=_subtitle(rho, level)),
    )
    return chart, {"rho": rows(rho)}


def _subtitle(rho: pd.DataFrame, level: float) -> list[str]:
    what = "Rank correlation of gradient magnitude G and causal importance C; 1: the same order."
    lines = [f"{what} Bands: {level:.0%} interval over resampled probe batches."]
    reasons = rho["reason_interval"][rho["rho"].notna()].dropna()
    if rho["low"].isna().all() and len(reasons):
        lines = [what, f"No interval: {reasons.iloc[0]}."]
    lines.append(f"Grey: {level:.0%} of all ρ by luck, components paired at random; a ρ outside is beyond chance.")
    below = []
    if (rho["ties"] > 0).any():
        below.append("Bars: share of components that share their C with others.")
    if rho["rho"].isna().any():
        below.append("× : undefined, because one side is the same for all components or not finite.")
    return [*lines, *([" ".join(below)] if below else [])]
