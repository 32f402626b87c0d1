"""The picture: all panels of a chart below each other, as one Altair chart that carries its data."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Sequence

import altair as alt

from dynamics.analysis.importance import check_score
from dynamics.errors import AnalysisError
from dynamics.plot.accuracy_panel import accuracy_panel
from dynamics.plot.agreement_panel import agreement_panel
from dynamics.plot.axes import Data, Panel, StepAxis
from dynamics.plot.faithfulness_panel import curve_panel, faithfulness_panel
from dynamics.plot.heatmap_panel import attribution_map_panel, causal_map_panel
from dynamics.plot.layers_panel import layers_panel
from dynamics.plot.palette import MUTED, config
from dynamics.plot.parameters import method, roles_by
from dynamics.plot.rho_panel import rho_panel
from dynamics.plot.roles_panel import roles_panel
from dynamics.plot.self_repair_panel import self_repair_panel
from dynamics.plot.synergy_panel import joint_panel, ratio_panel
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
    "causal_map": lambda tables, axis: causal_map_panel(tables.shares, axis),
    "attribution_map": lambda tables, axis: attribution_map_panel(tables.shares, axis),
    "ratio_to_sum": lambda tables, axis: ratio_panel(tables.synergy, axis, "ratio_to_sum"),
    "ratio_to_mean": lambda tables, axis: ratio_panel(tables.synergy, axis, "ratio_to_mean"),
    "joint": lambda tables, _: joint_panel(tables.joint),
    "curve": lambda tables, _: curve_panel(tables.curves, tables.faithfulness),
}
"""The panels by name, from top to bottom; ``None`` from a panel: the run has nothing for it."""
WITHOUT_STEPS = ("joint", "curve")
"""The panels that have another horizontal axis than the optimizer steps."""
CHARTS: dict[str, tuple[str, ...]] = {
    "timeline": ("accuracy", "rho", "agreement", "self_repair", "faithfulness", "roles", "layers", "curve"),
    "heatmap": ("causal_map", "attribution_map"),
    "synergy": ("ratio_to_sum", "ratio_to_mean", "joint"),
}
"""The charts of a run by name: each is some panels, whose selections are linked."""
ALL = "all"
"""Name of the chart that has every panel."""


def panels_of(chart: str) -> tuple[str, ...]:
    """Return the panels of a chart, from top to bottom.

    Args:
        chart: One of `CHARTS`, or ``"all"``.

    Raises:
        AnalysisError: If the chart is unknown.
    """
    if chart == ALL:
        return tuple(PANELS)
    if chart not in CHARTS:
        raise AnalysisError(f"the chart must be one of {', '.join((*CHARTS, ALL))}; got {chart!r}.")
    return tuple(name for name in PANELS if name in CHARTS[chart])


def figure(
    tables: Tables,
    score: str = "exact_match",
    x: str = "linear",
    panels: Collection[str] = CHARTS["timeline"],
    title: bool = True,
) -> alt.VConcatChart:
    """Return a picture of a run, data included.

    Args:
        tables: The tables of the run.
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
    axis = StepAxis(tables.run.steps, tables.accuracy["step"].to_numpy(), x)
    chosen = {name: build for name, build in PANELS.items() if name in panels}
    filled = {name: panel for name, build in chosen.items() if (panel := build(tables, axis)) is not None}
    if not filled:
        raise AnalysisError(f"the run has nothing to draw for {', '.join(chosen)}; choose other panels.")
    # Only the lowest one names the steps.
    for name in [name for name in filled if name not in WITHOUT_STEPS][-1:]:
        filled[name] = chosen[name](tables, axis.lowest()) or filled[name]
    explanation = " ".join(word for pair in EXPLANATION for word in pair)
    brief = "   ·   ".join(f"{fact.name}: {fact.value}" for fact in tables.facts if fact.brief)
    parameters = [roles_by(score)]
    if "attribution_map" in filled:
        parameters.append(method(tables.run.methods))
    return assemble(list(filled.values()), parameters, (tables.name, [explanation, brief]) if title else None)


def assemble(
    panels: Sequence[Panel], parameters: Sequence[alt.Parameter], title: tuple[str, Sequence[str]] | None
) -> alt.VConcatChart:
    """Return panels below each other as one chart with their data, in the style of all charts.

    Args:
        panels: The panels, from top to bottom.
        parameters: Parameters that no panel brings itself.
        title: What stands above, and the lines below that; ``None``: nothing.
    """
    data: Data = {}
    for _, panel_data in panels:
        data |= panel_data
    with warnings.catch_warnings():
        # One selection for all panels is what links them; Altair warns that it makes one of many.
        warnings.filterwarnings("ignore", "Automatically deduplicated selection parameter", UserWarning)
        chart = alt.vconcat(*(chart for chart, _ in panels), spacing=34, config=config(), datasets=data)
    own = dict.fromkeys(("color", "fill", "stroke", "strokeDash", "shape", "x", "y"), "independent")
    chart = chart.add_params(*parameters).properties(resolve=alt.Resolve(scale=own))
    if title is not None:
        text, lines = title
        chart = chart.properties(
            title=alt.Title(
                text,
                subtitle=list(lines),
                fontSize=21,
                subtitleFontSize=12.5,
                subtitleColor=MUTED,
                subtitlePadding=9,
                offset=26,
                subtitleLineHeight=18,
            )
        )
    return chart
