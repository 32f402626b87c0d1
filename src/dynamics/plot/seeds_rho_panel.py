"""Panels: rho of every run and their mean, by step, and by accuracy on the probe."""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from dynamics.plot.axes import Panel, StepAxis, named, rows
from dynamics.plot.marks import number, point_size, rules, tooltip
from dynamics.plot.palette import FAINT, INK, MUTED, PURPLE, SHADE, WIDTH
from dynamics.plot.parameters import ROLES_BY, chosen_run
from dynamics.plot.seeds_layout import CHOSEN, question

HEIGHT = 180
_COLOUR = alt.ExprRef(f"{ROLES_BY} === 'loss' ? '{PURPLE}' : '{INK}'")
"""That of the score, as in the picture of a run."""
_INTERVAL = "isValid(datum.low) ? format(datum.low, '+.2f') + ' to ' + format(datum.high, '+.2f') : datum.reason"
_MEAN = {
    "mean ρ": number("mean", "+.3f"),
    "95 % interval": _INTERVAL,
    "least to most": "format(datum.least, '+.2f') + ' to ' + format(datum.most, '+.2f')",
    "runs": "datum.runs",
}
_ONE = tooltip(
    "datum.run",
    {
        "step": "format(datum.step, ',d')",
        "ρ": "isValid(datum.rho) ? format(datum.rho, '+.3f') : 'undefined: ' + datum.reason",
        "accuracy": "format(datum.accuracy, '.1%')",
    },
)


def seeds_rho_step_panel(by_run: pd.DataFrame, by_step: pd.DataFrame, axis: StepAxis) -> Panel:
    """Draw a thin line for each run, their mean as a thick one and its interval as a band.

    Args:
        by_run: `SeedTables.rho_by_run`.
        by_step: `SeedTables.rho_by_step`.
        axis: The step axis.
    """
    runs = by_run["run"].nunique()
    size = point_size(by_run["step"].nunique(), 20)
    # Bands end where there is no interval, rather than go on to the next one.
    banded = named("rho_mean").transform_filter(CHOSEN).encode(x=axis.x())
    mean = banded.encode(y=_rho("mean"))
    lines = named("rho_runs").transform_filter(CHOSEN).encode(x=axis.x(), y=_rho("rho"), detail="run:N", opacity=_ink())
    hint = tooltip("'mean over runs, step ' + format(datum.step, ',d')", _MEAN)
    layers = [rules(HEIGHT, [HEIGHT / 2], color=FAINT).encode(y=alt.YDatum(0))]
    if runs > 1:
        layers.append(banded.mark_area(color=_COLOUR, opacity=0.14, clip=True).encode(y=_rho("low"), y2="high:Q"))
    layers += [
        lines.mark_line(strokeWidth=1, color=MUTED),
        lines.mark_point(filled=True, size=size, color=MUTED, tooltip=_ONE).add_params(chosen_run()),
        mean.mark_line(strokeWidth=2.6, color=_COLOUR),
        mean.mark_point(filled=True, size=1.4 * size, color=_COLOUR, opacity=1, tooltip=hint),
    ]
    if runs == 1:
        note = "1 run: no interval."
    elif not len(by_step):
        note = f"No step has a rho in half of the {runs} runs: see them by accuracy."
    else:
        note = f"Thick: mean over {runs} runs where at least half have one; band: its 95 % interval (Student's t)."
    chart = alt.layer(*layers).properties(
        width=WIDTH,
        height=HEIGHT,
        title=question(
            "Do gradients rank components as ablation does, whatever the seed?",
            [
                "Rank correlation of gradient magnitude G and causal importance C; 1: the same order.",
                f"Thin: a run. {note}",
            ],
        ),
    )
    return chart, {"rho_runs": rows(by_run), "rho_mean": rows(by_step)}


def seeds_rho_accuracy_panel(by_run: pd.DataFrame, bins: pd.DataFrame, window: tuple[float, float]) -> Panel:
    """Draw a point for each snapshot at its accuracy, and for each bin the mean over runs with its interval.

    Args:
        by_run: `SeedTables.rho_by_run`.
        bins: `SeedTables.rho_by_accuracy`.
        window: Least and largest accuracy of the snapshots that roles are counted in.
    """
    runs = by_run["run"].nunique()
    hint = tooltip(
        "'accuracy ' + format(datum.accuracy_low, '.0%') + ' to ' + format(datum.accuracy_high, '.0%')",
        {**_MEAN, "snapshots": "datum.snapshots"},
    )
    binned = named("rho_bins").transform_filter(CHOSEN).encode(x=_share("accuracy_low"), x2="accuracy_high:Q")
    shade = (
        alt.Chart(alt.Data(values=[{"low": window[0], "high": window[1]}]))
        .mark_rect(color=SHADE, opacity=1)
        .encode(x=_share("low"), x2="high:Q")
    )
    counts = (
        named("rho_bins")
        .transform_filter(CHOSEN)
        .transform_calculate(
            middle="(datum.accuracy_low + datum.accuracy_high) / 2",
            words="datum.runs + (datum.runs === 1 ? ' run' : ' runs')",
        )
        .mark_text(baseline="bottom", y=HEIGHT - 4, fontSize=10.5, color=MUTED)
        .encode(x=_share("middle"), text="words:N")
    )
    chart = alt.layer(
        shade,
        rules(HEIGHT, [HEIGHT / 2], color=FAINT).encode(y=alt.YDatum(0)),
        binned.mark_rect(color=_COLOUR, opacity=0.14, clip=True, tooltip=hint).encode(y=_rho("low"), y2="high:Q"),
        named("rho_runs")
        .transform_filter(f"{CHOSEN} && isValid(datum.rho)")
        .mark_point(filled=True, size=point_size(len(by_run) // 6, 24), color=MUTED, tooltip=_ONE)
        .encode(x=_share("accuracy"), y=_rho("rho"), opacity=_ink())
        .add_params(chosen_run()),
        binned.mark_rule(color=_COLOUR, strokeWidth=2.6, tooltip=hint).encode(y=_rho("mean")),
        counts,
    ).properties(
        width=WIDTH,
        height=HEIGHT,
        title=question(
            "And at the same accuracy, since seeds learn at different steps?",
            f"A point is a snapshot. Lines: mean over runs, each of which counts once; "
            f"{'boxes: its 95 % interval' if runs > 1 else '1 run: no interval'}. Shaded: where roles are counted.",
        ),
    )
    return chart, {"rho_runs": rows(by_run), "rho_bins": rows(bins)}


def _rho(field: str) -> alt.Y:
    return alt.Y(
        f"{field}:Q",
        scale=alt.Scale(domain=[-1, 1]),
        axis=alt.Axis(
            title="Spearman ρ (G, C)",
            values=[-1, -0.5, 0, 0.5, 1],
            labelExpr="datum.value === 0 ? '0' : format(datum.value, '+.1~f')",
        ),
    )


def _share(field: str) -> alt.X:
    return alt.X(
        f"{field}:Q",
        scale=alt.Scale(domain=[0, 1], nice=False),
        axis=alt.Axis(title="accuracy on the probe (exact match)", format="%", values=[0, 0.2, 0.4, 0.6, 0.8, 1]),
    )


def _ink() -> Any:
    return alt.condition(chosen_run(), alt.value(0.55), alt.value(0.07))
