"""Panel: what ablating the Heroes, or the Bloats, costs in every run, one at a time and together."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any

import altair as alt
import pandas as pd

from dynamics.analysis.pruning import ABLATED, TOGETHER
from dynamics.plot.axes import Panel, named, rows
from dynamics.plot.marks import labels, number, pixels, tooltip
from dynamics.plot.palette import FAINT, INK, MUTED, WIDTH
from dynamics.plot.parameters import ROLES_BY, chosen_run
from dynamics.plot.seeds_layout import CHOSEN, COLOURS, LEFT, absences, question, texts

_ROW = 34.0
_SPREAD = 7.0
"""How far runs lie above and below the middle of their row, in pixels."""
_WORDS = {"hero": "Heroes", "bloat": "Bloats"}


def seeds_pruning_panel(table: pd.DataFrame, by_run: pd.DataFrame, missing: dict[str, str]) -> Panel:
    """Draw a point for each run, and the mean over runs with its interval, in a row for each role and way.

    Args:
        table: `SeedTables.pruning`.
        by_run: `SeedTables.pruning_by_run`.
        missing: Why there is nothing, by score.
    """
    order = [(role, way) for role in LEFT for way in ABLATED]
    height = _ROW * len(order)
    middle = {pair: (row + 0.5) * _ROW for row, pair in enumerate(order)}
    runs = list(dict.fromkeys(by_run["run"]))
    shift = {run: _SPREAD * (2 * (place + 0.5) / len(runs) - 1) for place, run in enumerate(runs)}
    means, points = (
        part.assign(middle=[middle[pair] for pair in zip(part["role"], part["ablated"], strict=True)])
        for part in (table, by_run)
    )
    points = points.assign(y=points["middle"] + points["run"].map(shift))
    means = means[means["runs"] > 0]
    value = {
        name: f"{ROLES_BY} === 'loss' ? format(datum.{name}, '+.3~f') + ' nats' "
        f": format(100 * datum.{name}, '+.3~f') + ' points'"
        for name in ("mean", "low", "high", "least", "most", "lost", "single")
    }
    who = f"{_WORDS}[datum.role] + ', ' + datum.ablated"
    colour = alt.Color("role:N", legend=None, scale=alt.Scale(domain=list(COLOURS), range=list(COLOURS.values())))
    of_mean = named("pruning").transform_filter(CHOSEN).encode(y=pixels("middle", height))
    hint = tooltip(
        who,
        {
            "mean over runs": value["mean"],
            "95 % interval": f"isValid(datum.low) ? ({value['low']}) + ' to ' + ({value['high']}) : datum.reason",
            "least to most": f"({value['least']}) + ' to ' + ({value['most']})",
            "runs": "datum.runs",
            "over the mean C of its members": number("ratio_to_mean", ".2f"),
        },
    )
    one = tooltip(
        f"datum.run + ': ' + {who}",
        {"lost": value["lost"], "mean C of its members": value["single"], "snapshots": "datum.snapshots"},
    )
    x = alt.X(
        "lost:Q",
        scale=alt.Scale(zero=True, nice=True),
        axis=alt.Axis(
            title="lost by ablation to the mean: points of accuracy, or nats of loss",
            tickCount=8,
            labelExpr=f"{ROLES_BY} === 'loss' ? format(datum.value, '.3~f') : format(100 * datum.value, '.3~f')",
        ),
    )
    known = {(row["score"], row["role"], row["ablated"]): row for row in table.to_dict("records") if row["runs"]}
    beside = [
        {"text": _beside(known.get((score, *pair)), score, pair[1]), "x": WIDTH + 9, "y": middle[pair],
         "colour": INK if (score, *pair) in known else MUTED, "score": score}
        for score in table["score"].unique()
        for pair in order
    ]  # fmt: skip
    names = [{"text": f"{_WORDS[role]}, {way}", "y": middle[role, way], "colour": COLOURS[role]} for role, way in order]
    n = int(table["runs"].max())
    chart = alt.layer(
        alt.Chart(alt.Data(values=[{"lost": 0}])).mark_rule(color=FAINT).encode(x=x),
        named("pruning_runs")
        .transform_filter(CHOSEN)
        .mark_point(filled=False, size=34, strokeWidth=1.4, tooltip=one)
        .encode(
            x=x,
            y=pixels("y", height),
            color=colour,
            opacity=alt.condition(chosen_run(), alt.value(0.9), alt.value(0.12)),
        )
        .add_params(chosen_run()),
        of_mean.transform_filter("isValid(datum.low)")
        .mark_rule(strokeWidth=2, color=INK, tooltip=hint)
        .encode(x=alt.X("low:Q"), x2="high:Q"),
        of_mean.mark_point(filled=True, shape="diamond", size=95, color=INK, opacity=1, tooltip=hint).encode(
            x="mean:Q"
        ),
        labels(names, "left", fontSize=11),
        texts(beside, fontSize=11),
        absences(missing),
    ).properties(
        width=WIDTH,
        height=height,
        title=question(
            "What does it cost to remove the Heroes, or the Bloats?",
            [
                "A circle is a run, a diamond the mean over runs"
                + (" with its 95 % interval." if n > 1 else "; 1 run: no interval.")
                + " One at a time: the mean C of the components of that role.",
                "Together: all of them at once; × : that loss over the mean C of the same components.",
            ],
        ),
    )
    return chart, {"pruning": rows(means), "pruning_runs": rows(points)}


def _beside(row: dict[Hashable, Any] | None, score: str, way: str) -> str:
    if row is None:
        return "not recorded here" if way == TOGETHER else "none in the window"
    mean, ratio = row["mean"], row["ratio_to_mean"]
    words = f"{mean:.2f} nats" if score == "loss" else f"{100 * mean:.1f} points"
    return words + ("" if math.isnan(ratio) else f", {ratio:.1f} ×")
