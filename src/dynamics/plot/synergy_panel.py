"""Panels: what ablating a role's components together costs, against ablating them one at a time."""

from __future__ import annotations

import altair as alt
import pandas as pd

from dynamics.analysis.importance import SCORES
from dynamics.plot.axes import Panel, StepAxis, named, rows
from dynamics.plot.marks import labels, number, point_size, rules, spread, tooltip
from dynamics.plot.palette import BLOAT, FAINT, HERO, MUTED, WIDTH
from dynamics.plot.parameters import ROLES_BY

SIDE = 330
"""Side of the square in which joint effects are held against sums, in pixels."""
HEIGHT = 130
SETS = {"bloats": ("all Bloats", BLOAT), "heroes": ("all Heroes", HERO)}
RANDOM = "random"
_MOST = 20.0
"""A larger ratio is written instead of drawn: a sum that is nearly nothing makes it as large as one likes."""
_UNIT = f"({ROLES_BY} === 'loss' ? 'nats of loss gained' : 'accuracy lost')"
_RATIOS = {
    "ratio_to_sum": ("C together / sum of C", "Do effects add up? C of a set over the sum of C of its components",
                     "1, the line: they add up. More: its components stand in for each other. Less: one makes the "
                     "others useless, or the score cannot fall further."),
    "ratio_to_mean": ("C together / mean of C", "How many components is a set worth? C of a set over the mean of C of "
                      "its components",
                      "Dotted: the size of the set, where effects add up. The paper's 14 for bloats is this ratio."),
}  # fmt: skip


def joint_panel(joint: pd.DataFrame) -> Panel | None:
    """Draw C_S of every recorded set against the sum of C_i; ``None`` if the run has no synergy.

    Args:
        joint: What `joint_ablation_table` returns.
    """
    if joint.empty:
        return None
    drawn = joint.assign(of=joint["set"].where(joint["set"].isin(list(SETS)), RANDOM))
    ends = drawn.groupby("score")[["joint", "sum"]].agg(["min", "max"])
    diagonal = pd.DataFrame(
        [
            {"score": score, "sum": end, "joint": end}
            for score in ends.index
            for end in (min(0.0, *ends.loc[score].xs("min", level=1)), max(0.0, *ends.loc[score].xs("max", level=1)))
        ]
    )
    style = {name: colour for name, (_, colour) in SETS.items()} | {RANDOM: MUTED}
    names = {name: text for name, (text, _) in SETS.items()} | {RANDOM: "random set of the same size"}
    axes = [
        side(field, type="quantitative", scale=alt.Scale(nice=True, zero=False), axis=alt.Axis(title=title))
        for side, field, title in (
            (alt.X, "sum", "sum of C, one at a time"),
            (alt.Y, "joint", "C of the set, together"),
        )
    ]
    hint = tooltip(
        f"{names!r}[datum.of] + ', step ' + format(datum.step, ',d')",
        {
            "components": "datum.size",
            "C together": number("joint"),
            "sum of C": number("sum"),
            "mean of C": number("mean"),
            "together / sum": f"isValid(datum.reason) ? datum.reason : {number('ratio_to_sum')}",
            "together / mean": f"isValid(datum.reason) ? datum.reason : {number('ratio_to_mean')}",
            "roles judged by": "isValid(datum.judged_by) ? datum.judged_by : 'nothing: no roles'",
        },
    )
    chosen = f"datum.score === {ROLES_BY}"
    base = named("joint").transform_filter(chosen).encode(*axes)
    colour = alt.Color(
        "of:N",
        scale=alt.Scale(domain=list(style), range=list(style.values())),
        legend=alt.Legend(labelExpr=f"{names!r}[datum.label]", symbolType="circle", symbolStrokeWidth=0),
    )
    of_role = base.transform_filter(f"datum.of !== '{RANDOM}' && datum.size > 0")
    random = base.transform_filter(f"datum.of === '{RANDOM}'")
    path = of_role.mark_line(strokeWidth=1, opacity=0.6).encode(color=colour, order="step:Q")
    points = [
        random.mark_circle(tooltip=hint, opacity=0.4, size=20).encode(color=colour),
        of_role.mark_circle(tooltip=hint, opacity=1, size=70).encode(color=colour),
    ]
    # Points of later steps often lie near each other: the last is named, the tooltips name all.
    last = (
        of_role.transform_filter(f"datum.step === {int(joint['step'].max())}")
        .mark_text(dx=8, align="left", baseline="middle", fontSize=10.5)
        .encode(text=alt.Text("step:Q", format=",d"), color=colour)
    )
    line = (
        alt.Chart(alt.Data(values=rows(diagonal)))
        .transform_filter(chosen)
        .mark_line(color=FAINT, strokeDash=[4, 3])
        .encode(*axes)
    )
    chart = alt.layer(line, path, *points, last).properties(
        width=SIDE,
        height=SIDE,
        title=alt.Title(
            text=alt.ExprRef(f"'Together and one at a time (C in ' + {_UNIT} + ')'"),
            subtitle=[
                "A point is a set of components at one step; the thin line runs through the steps, the last is named.",
                "On the dashed line effects add up; above it the set costs more than the sum of its parts.",
            ],
        ),
    )
    return chart, {"joint": rows(drawn.sort_values("of", key=lambda of: of != RANDOM, kind="stable"))}


def ratio_panel(synergy: pd.DataFrame, axis: StepAxis, ratio: str) -> Panel | None:
    """Draw one ratio of joint to single effects over steps; ``None`` if the run has no synergy.

    Args:
        synergy: What `synergy_table` returns.
        axis: The step axis.
        ratio: ``"ratio_to_sum"`` or ``"ratio_to_mean"``.
    """
    if synergy.empty:
        return None
    title, question, reading = _RATIOS[ratio]
    parts = {"set": synergy[ratio], "random": synergy[f"control_{ratio}"]}
    if ratio == "ratio_to_mean":
        parts["size"] = synergy["size"].where(synergy["size"] > 0).astype(float)
    drawn = pd.concat([synergy.assign(what=what, shown=values) for what, values in parts.items()], ignore_index=True)
    drawn["beyond"] = drawn["shown"].abs() > _MOST
    known = drawn.loc[~drawn["beyond"], "shown"].dropna()
    low, high = min([0.0, *known]), 1.08 * max([1.5, *known])
    colours = {name: colour for name, (_, colour) in SETS.items()}
    dashes = {"set": [1, 0], "random": [5, 3], "size": [1, 3]}
    base = (
        named(ratio)
        .transform_filter(f"datum.score === {ROLES_BY}")
        .encode(
            x=axis.x(),
            y=alt.Y(
                "shown:Q",
                scale=alt.Scale(domain=[low, high], nice=False),
                axis=alt.Axis(title=title, tickCount=5, format="~g"),
            ),
            color=alt.Color("set:N", legend=None, scale=alt.Scale(domain=list(colours), range=list(colours.values()))),
            strokeDash=alt.StrokeDash(
                "what:N", legend=None, scale=alt.Scale(domain=list(dashes), range=list(dashes.values()))
            ),
            detail="what:N",
        )
    )
    names = {name: text for name, (text, _) in SETS.items()}
    hint = tooltip(
        f"(datum.what === 'random' ? 'random sets as large as ' : '') + {names!r}[datum.set]",
        {
            "step": "format(datum.step, ',d')",
            title: f"isValid(datum.shown) ? {number('shown')} : isValid(datum.reason) ? datum.reason : 'undefined'",
            "C together": number("joint"),
            "sum of C": number("sum"),
            "random, C together": f"{number('control_joint')} + ' (' + {number('control_low')} + ' to ' + "
            f"{number('control_high')} + ')'",
            "components": "datum.size",
        },
    )
    size = point_size(synergy["step"].nunique(), 24)
    reference = [rules(HEIGHT, [0], color=FAINT).encode(y=alt.YDatum(1))] if ratio == "ratio_to_sum" else []
    chart = alt.layer(
        *reference,
        base.mark_line(strokeWidth=1.8, clip=True),
        base.transform_filter("datum.what !== 'size' && !datum.beyond").mark_point(
            filled=True, size=size, opacity=1, tooltip=hint
        ),
        base.transform_filter("datum.beyond")
        .transform_calculate(mark="(datum.shown > 0 ? '▲ ' : '▼ ') + format(datum.shown, '.0f')")
        .mark_text(fontSize=10.5, tooltip=hint)
        .encode(text="mark:N", y=alt.value(7)),
        labels(_ends(drawn, low, high), fontSize=11.5).transform_filter(f"datum.score === {ROLES_BY}"),
    ).properties(
        width=WIDTH,
        height=HEIGHT,
        title=alt.Title(
            text=alt.ExprRef(f"'{question} (' + {_UNIT} + ')'"),
            subtitle=[
                reading,
                "Dashed: random sets of the same size. Gap: no such component, or the sum of C is not positive."
                + (f" ▲: beyond {_MOST:g}." if drawn["beyond"].any() else ""),
            ],
        ),
    )
    return chart, {ratio: rows(drawn)}


def _ends(drawn: pd.DataFrame, low: float, high: float) -> list[dict[str, object]]:
    """Return labels at the right of each set's line, and of its control's."""
    ends: list[dict[str, object]] = []
    for score in SCORES:
        found = []
        for name, (text, colour) in SETS.items():
            for what, label in (("set", text), ("random", f"random for {text.split()[-1]}")):
                part = drawn[(drawn["score"] == score) & (drawn["set"] == name) & (drawn["what"] == what)]
                known = part.dropna(subset="shown")["shown"]
                if len(known):
                    last = min(max(float(known.iloc[-1]), low), high)
                    found.append((HEIGHT * (high - last) / (high - low), label, colour if what == "set" else MUTED))
        places = spread([place for place, _, _ in found], 13, HEIGHT)
        ends += [
            {"text": label, "y": place, "colour": colour, "score": score}
            for place, (_, label, colour) in zip(places, found, strict=True)
        ]
    return ends
