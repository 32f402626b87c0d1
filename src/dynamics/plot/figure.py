"""The picture: all panels below each other, on one step axis, as a Vega-Lite specification that carries its data."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import altair as alt

from dynamics.analysis.importance import check_score
from dynamics.errors import AnalysisError
from dynamics.plot.accuracy_panel import accuracy_panel
from dynamics.plot.agreement_panel import agreement_panel
from dynamics.plot.axes import Data, Panel, StepAxis
from dynamics.plot.faithfulness_panel import curve_panel, faithfulness_panel
from dynamics.plot.layers_panel import layers_panel
from dynamics.plot.palette import MUTED, config
from dynamics.plot.rho_panel import rho_panel
from dynamics.plot.roles_panel import ROLES_BY, roles_panel
from dynamics.plot.self_repair_panel import self_repair_panel
from dynamics.plot.tables import Tables

EXPLANATION = (
    ("Hidden Heroes", "(blue) matter far more than their gradients show;"),
    ("Gradient Bloats", "(orange) have large gradients but matter little."),
)
SCALES = ("linear", "symlog")
PANELS: dict[str, Callable[[Tables, StepAxis], Panel | None]] = {
    "accuracy": lambda tables, axis: accuracy_panel(tables.accuracy, axis),
    "rho": lambda tables, axis: rho_panel(tables.rho, axis),
    "agreement": lambda tables, axis: agreement_panel(tables.agreement, axis),
    "self_repair": lambda tables, axis: self_repair_panel(tables.self_repair, axis),
    "faithfulness": lambda tables, axis: faithfulness_panel(tables.faithfulness, axis),
    "roles": lambda tables, axis: roles_panel(tables.cells, axis),
    "layers": lambda tables, axis: layers_panel(tables.layers, axis),
    "curve": lambda tables, _: curve_panel(tables.curves, tables.faithfulness),
}
"""The panels by name, from top to bottom; ``None`` from a panel: the run has nothing for it."""
WITHOUT_STEPS = ("curve",)
"""The panels that have another horizontal axis than the optimizer steps; they lie below all others."""


def figure(
    tables: Tables,
    score: str = "exact_match",
    x: str = "linear",
    panels: Collection[str] = tuple(PANELS),
    title: bool = True,
) -> dict[str, Any]:
    """Return the picture of a run as a Vega-Lite specification, data included.

    Large tables are carried column by column, and the rows made by the chart.

    Args:
        tables: What `read_tables` returns.
        score: What the roles shown first come from: ``"exact_match"`` or ``"loss"``.
        x: ``"linear"`` or ``"symlog"`` steps.
        panels: Which of `PANELS` to draw; their order is always the same.
        title: Put the run's name and facts above; a page that shows them itself does not need that.

    Raises:
        AnalysisError: If the score, the step axis or a panel is unknown, or there is nothing to draw.
    """
    check_score(score)
    if x not in SCALES:
        raise AnalysisError(f"the step axis must be one of {', '.join(SCALES)}; got {x!r}.")
    if not panels or not set(panels) <= set(PANELS):
        raise AnalysisError(f"the panels must be some of {', '.join(PANELS)}; got {', '.join(panels) or 'none'}.")
    axis = StepAxis(tables.cells["step"].unique(), tables.accuracy["step"].to_numpy(), x)
    choice = alt.param(
        name=ROLES_BY,
        value=score,
        bind=alt.binding_select(options=["exact_match", "loss"], labels=["accuracy", "loss"], name="C by "),
    )
    chosen = {name: build for name, build in PANELS.items() if name in panels}
    filled = {name: panel for name, build in chosen.items() if (panel := build(tables, axis)) is not None}
    if not filled:
        raise AnalysisError(f"the run has nothing to draw for {', '.join(chosen)}; choose other panels.")
    # Only the lowest one names the steps.
    for name in [name for name in filled if name not in WITHOUT_STEPS][-1:]:
        filled[name] = chosen[name](tables, axis.lowest()) or filled[name]
    drawn = list(filled.values())
    chart = (
        alt.vconcat(*(chart for chart, _ in drawn), spacing=34)
        .add_params(choice)
        .resolve_scale(color="independent", y="independent", x="independent")
    )
    if title:
        brief = "   ·   ".join(f"{fact.name}: {fact.value}" for fact in tables.facts if fact.brief)
        chart = chart.properties(
            title=alt.Title(
                tables.name,
                subtitle=[" ".join(word for pair in EXPLANATION for word in pair), brief],
                fontSize=21,
                subtitleFontSize=12.5,
                subtitleColor=MUTED,
                subtitlePadding=9,
                offset=26,
                subtitleLineHeight=18,
            )
        )
    specification: dict[str, Any] = chart.to_dict()
    specification["config"] = config()
    data: Data = {}
    for _, panel_data in drawn:
        data |= panel_data
    # Added last: the schema check that Altair makes would go through every row.
    specification["datasets"] = data
    return specification
