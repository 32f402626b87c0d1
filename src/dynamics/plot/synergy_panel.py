"""Panels: what ablating a role's components together costs, against ablating them one at a time."""

from __future__ import annotations

import math

import altair as alt
import pandas as pd

from dynamics.plot.axes import Panel, StepAxis, named, rows
from dynamics.plot.marks import labels, number, point_size, rules, spread, tooltip
from dynamics.plot.palette import BLOAT, FAINT, HERO, MUTED, WIDTH
from dynamics.plot.parameters import ROLES_BY

SIDE = 310
"""Side of the squares in which joint effects are held against sums, in pixels."""
HEIGHT = 84
"""Height of a set's row of ratios, in pixels."""
SETS = {"bloats": ("all Bloats", BLOAT), "heroes": ("all Heroes", HERO)}
RANDOM = "random"
_MOST = {"ratio_to_sum": 5.0, "ratio_to_mean": 20.0}
"""Larger ratios are written instead of drawn: a sum that is nearly nothing makes them as large as one likes."""
_ROOM = (40.0, 13.0)
"""Width and height of the name of a step in a square, in pixels."""
_UNIT = f"({ROLES_BY} === 'loss' ? 'nats of loss gained' : 'accuracy lost')"
_CHOSEN = f"datum.score === {ROLES_BY}"
_RATIOS = {
    "ratio_to_sum": ("together / sum", "Do effects add up? C of a set over the sum of C of its components",
                     "1, the line: they add up. More: its components stand in for each other. Less: the loss of one "
                     "makes others useless, or the score cannot fall further."),
    "ratio_to_mean": ("together / mean", "How many components is a set worth? C of a set over the mean of C of its "
                      "components",
                      "Tick: the size of the set, where effects add up. The paper's 14 for bloats is this ratio."),
}  # fmt: skip


def joint_panel(joint: pd.DataFrame) -> Panel | None:
    """Draw C_S of every recorded set against the sum of C_i; ``None`` if the run has no synergy.

    A square holds a role and the random sets that are its control. Both axes go with the root, which keeps the sign
    and the diagonal: the sums of Bloats are often a hundredth of those of random sets.

    Args:
        joint: What `joint_ablation_table` returns.
    """
    if joint.empty:
        return None
    control = ~joint["set"].isin(list(SETS))
    drawn = joint.assign(role=joint["set"].str.extract(f"({'|'.join(SETS)})", expand=False))
    drawn["of"] = drawn["role"].mask(control, RANDOM)
    # No point for an empty set: nothing was ablated.
    drawn = drawn[drawn["size"] > 0]
    ends = _ends_of(drawn)
    drawn = drawn.join(_places(drawn, ends))
    squares = [_square(ends.get(role, pd.DataFrame(columns=["score", "sum", "joint"])), role) for role in SETS]
    chart = alt.hconcat(*squares, spacing=56).properties(
        title=alt.Title(
            text=alt.ExprRef(f"'What does a set cost together, and what one at a time? (C in ' + {_UNIT} + ')'"),
            subtitle=[
                "A point is a set of components at one step, named if there is room; the thin line runs through the "
                "steps. Grey: random sets of the same sizes.",
                "On the dashed line effects add up; above it the set costs more than the sum of its parts. Both axes "
                "go with the square root.",
                "The sets are the same however C is measured: roles by accuracy, or by loss where accuracy ranks "
                "nothing.",
            ],
        )
    )
    return chart, {"joint": rows(drawn)}


def _ends_of(drawn: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the ends of each square's diagonal, ``score, sum, joint``: the same on both axes, so that these agree."""
    found: dict[str, list[dict[str, object]]] = {}
    for (role, score), part in drawn.groupby(["role", "score"]):
        values = part[["joint", "sum"]].stack()
        low, high = min(0.0, *values), max(0.0, *values)
        found.setdefault(str(role), []).extend({"score": score, "sum": end, "joint": end} for end in (low, high))
    return {role: pd.DataFrame(ends) for role, ends in found.items()}


def _places(drawn: pd.DataFrame, ends: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """Return which points of roles have room for the name of their step, and which have none at their left."""
    told, left = pd.Series(False, drawn.index), pd.Series(False, drawn.index)
    for (role, score), part in drawn[drawn["of"] != RANDOM].groupby(["role", "score"]):
        diagonal = ends[str(role)]
        low, high = (_root(end) for end in diagonal.loc[diagonal["score"] == score, "sum"])
        scale = SIDE / max(high - low, 1e-12)
        placed: list[tuple[float, float]] = []
        # The last step matters most, then the first.
        for row in (len(part) - 1, *range(len(part) - 1)):
            index = part.index[row]
            x, y = (scale * (_root(part[axis].to_numpy(float)[row]) - low) for axis in ("sum", "joint"))
            left[index] = x < _ROOM[0]
            at = (x + _ROOM[0] if left[index] else x, y)
            if all(abs(at[0] - other[0]) > _ROOM[0] or abs(at[1] - other[1]) > _ROOM[1] for other in placed):
                placed.append(at)
                told[index] = True
    return pd.DataFrame({"told": told, "at_edge": left})


def _root(value: float) -> float:
    return math.copysign(math.sqrt(abs(value)), value) if math.isfinite(value) else 0.0


def _square(diagonal: pd.DataFrame, role: str) -> alt.LayerChart | alt.FacetChart:
    name, colour = SETS[role]
    axes = [
        side(
            field,
            type="quantitative",
            scale=alt.Scale(type="sqrt", nice=True),
            axis=alt.Axis(title=title, tickCount=6, labelOverlap=True),
        )
        for side, field, title in (
            (alt.X, "sum", "sum of C, one at a time"),
            (alt.Y, "joint", "C of the set, together"),
        )
    ]
    hint = tooltip(
        f"(datum.of === '{RANDOM}' ? 'random set as large as ' : '') + '{name}, step ' + format(datum.step, ',d')",
        {
            "components": "datum.size",
            "C together": number("joint"),
            "sum of C": number("sum"),
            "mean of C": number("mean"),
            "together / sum": _or_reason("ratio_to_sum"),
            "together / mean": _or_reason("ratio_to_mean"),
            "roles judged by": "datum.judged_by === 'exact_match' ? 'accuracy' : datum.judged_by",
        },
    )
    base = named("joint").transform_filter(f"{_CHOSEN} && datum.role === '{role}'").encode(*axes)
    of_role = base.transform_filter(f"datum.of === '{role}'")
    layers = [
        alt.Chart(alt.Data(values=rows(diagonal)))
        .transform_filter(_CHOSEN)
        .mark_line(color=FAINT, strokeDash=[4, 3])
        .encode(*axes),
        base.transform_filter(f"datum.of === '{RANDOM}'").mark_circle(color=MUTED, opacity=0.4, size=20, tooltip=hint),
        of_role.mark_line(color=colour, strokeWidth=1, opacity=0.6).encode(order="step:Q"),
        of_role.mark_circle(color=colour, opacity=1, size=60, tooltip=hint),
        of_role.transform_filter("datum.told")
        .mark_text(
            dx=alt.ExprRef("datum.at_edge ? 7 : -7"),
            dy=-3,
            align=alt.ExprRef("datum.at_edge ? 'left' : 'right'"),
            baseline="bottom",
            fontSize=10.5,
            color=colour,
        )
        .encode(text=alt.Text("step:Q", format=",d")),
    ]
    title = alt.Title(name, color=colour, fontSize=12.5, offset=6)
    return alt.layer(*layers).properties(width=SIDE, height=SIDE, title=title)


def ratio_panel(synergy: pd.DataFrame, axis: StepAxis, ratio: str) -> Panel | None:
    """Draw one ratio of joint to single effects over steps, a row for each role; ``None`` if there is no synergy.

    Args:
        synergy: What `synergy_table` returns.
        axis: The step axis.
        ratio: ``"ratio_to_sum"`` or ``"ratio_to_mean"``.
    """
    if synergy.empty:
        return None
    _, question, reading = _RATIOS[ratio]
    most = _MOST[ratio]
    drawn = synergy.assign(
        shown=synergy[ratio],
        control=synergy[f"control_{ratio}"],
        least=synergy[f"control_{ratio}_low"],
        most=synergy[f"control_{ratio}_high"],
        adds_up=1.0 if ratio == "ratio_to_sum" else synergy["size"].where(synergy["size"] > 0).astype(float),
        beyond=synergy[ratio].abs() > most,
    )
    known = pd.concat([drawn.loc[~drawn["beyond"], "shown"], drawn["control"], drawn["adds_up"]]).dropna()
    # Bars are cut off where they would leave the rest no room.
    largest = max([1.2, *known[known <= most]])
    low, high = min([0.0, *known]), 1.08 * min(max([largest, *drawn["most"].dropna()]), 1.5 * largest)
    y = alt.Scale(domain=[low, high], nice=False)
    parts = [
        _row(drawn[drawn["set"] == role], role, ratio, axis, alt.Y("shown:Q", scale=y), lowest=role == [*SETS][-1])
        for role in SETS
    ]
    grey = "Grey: random sets of the same size; dots: ratio of their means; bars: from the least ratio to the most" + (
        ", which may lie above the edge." if (drawn["most"] > high).any() else "."
    )
    gaps = [
        *(["Cross: there is no ratio; its tooltip says why."] if drawn["shown"].isna().any() else []),
        *([f"▲: beyond {most:g}."] if drawn["beyond"].any() else []),
    ]
    chart = alt.vconcat(*parts, spacing=10).properties(
        title=alt.Title(
            text=alt.ExprRef(f"'{question} (' + {_UNIT} + ')'"),
            subtitle=[reading, grey, *([" ".join(gaps)] if gaps else [])],
        )
    )
    return chart, {ratio: rows(drawn)}


def _row(
    drawn: pd.DataFrame, role: str, ratio: str, axis: StepAxis, y: alt.Y, lowest: bool
) -> alt.LayerChart | alt.FacetChart:
    name, colour = SETS[role]
    title, *_ = _RATIOS[ratio]
    hint = tooltip(
        f"'{name}, step ' + format(datum.step, ',d')",
        {
            title: _or_reason("shown"),
            "components": "datum.size",
            "C together": number("joint"),
            "sum of C": number("sum"),
            "mean of C": number("mean"),
            f"random, {title}": f"({number('control')}) + (isValid(datum.least) ? ' (' + format(datum.least, '.3~g') "
            "+ ' to ' + format(datum.most, '.3~g') + ', ' + datum.draws_with_ratio + ' of ' + datum.draws + ' sets)' "
            ": '')",
            "random, C together": f"({number('control_joint')}) + (isValid(datum.control_low) ? ' (' + "
            "format(datum.control_low, '.3~g') + ' to ' + format(datum.control_high, '.3~g') + ')' : '')",
        },
    )
    x = axis.x()
    if not lowest:
        x["axis"]["labels"], x["axis"]["title"] = False, None
    steps = drawn["step"].nunique()
    y["axis"] = alt.Axis(title=title, tickCount=4, titleFontSize=11)
    base = named(ratio).transform_filter(f"{_CHOSEN} && datum.set === '{role}'").encode(x=x, y=y)
    bar = min(9.0, max(1.5, 0.5 * WIDTH / max(steps, 1)))
    adds_up = (
        rules(HEIGHT, [0], color=FAINT).encode(y=alt.YDatum(1))
        if ratio == "ratio_to_sum"
        else base.mark_tick(orient="horizontal", size=2.2 * bar, thickness=1.5, color=MUTED, tooltip=hint).encode(
            y=_same(y, "adds_up")
        )
    )
    shown = base.transform_filter("!datum.beyond")
    size = point_size(steps, 34)
    return alt.layer(
        base.mark_rule(strokeWidth=bar, color=FAINT, opacity=0.45, clip=True, tooltip=hint).encode(
            y=_same(y, "least"), y2="most:Q"
        ),
        adds_up,
        base.mark_line(color=MUTED, strokeWidth=1, strokeDash=[4, 3], clip=True).encode(y=_same(y, "control")),
        base.mark_circle(color=MUTED, size=0.6 * size, opacity=1, clip=True, tooltip=hint).encode(
            y=_same(y, "control")
        ),
        base.mark_line(color=colour, strokeWidth=1.8, clip=True),
        shown.mark_circle(color=colour, size=size, opacity=1, tooltip=hint),
        base.transform_filter("datum.beyond")
        .transform_calculate(mark="(datum.shown > 0 ? '▲ ' : '▼ ') + format(datum.shown, '.0f')")
        .mark_text(fontSize=10.5, color=colour, tooltip=hint)
        .encode(text="mark:N", y=alt.value(6)),
        base.transform_filter("!isValid(datum.shown)")
        .mark_text(text="×", fontSize=13, color=colour, tooltip=hint)
        .encode(y=alt.value(6)),
        labels(_ends(drawn, role, y["scale"]["domain"]), fontSize=11.5).transform_filter(_CHOSEN),
    ).properties(width=WIDTH, height=HEIGHT)


def _same(y: alt.Y, field: str) -> alt.Y:
    """Return the vertical encoding of another field on the same axis."""
    y = y.copy()
    y["shorthand"] = f"{field}:Q"
    return y


def _or_reason(field: str) -> str:
    return f"isValid(datum.reason) ? datum.reason : {number(field)}"


def _ends(drawn: pd.DataFrame, role: str, domain: list[float]) -> list[dict[str, object]]:
    """Return the names of a row's lines, beside where they end."""
    (name, colour), (low, high) = SETS[role], domain
    ends: list[dict[str, object]] = []
    for score, part in drawn.groupby("score"):
        found = []
        for field in ("shown", "control"):
            known = part[field].dropna()
            # A row without any ratio is named all the same.
            last = min(max(float(known.iloc[-1]), low), high) if len(known) else (low + high) / 2
            found.append(HEIGHT * (high - last) / (high - low))
        texts = ((name, colour), ("random sets", MUTED))
        for place, (text, of) in zip(spread(found, 14, HEIGHT), texts, strict=True):
            ends.append({"text": text, "y": place, "colour": of, "score": score})
    return ends
