"""The picture: all panels of a chart below each other, as one Altair chart that carries its data."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Sequence
from typing import Any

import altair as alt

from dynamics.analysis.importance import check_score
from dynamics.errors import AnalysisError, NothingYetError
from dynamics.plot.accuracy_panel import accuracy_panel
from dynamics.plot.agreement_panel import agreement_panel
from dynamics.plot.axes import Data, Panel, StepAxis, merged
from dynamics.plot.bump_panel import bump_panel
from dynamics.plot.faithfulness_panel import curve_panel, faithfulness_panel
from dynamics.plot.heatmap_panel import attribution_map_panel, causal_map_panel
from dynamics.plot.layers_panel import layers_panel
from dynamics.plot.palette import MUTED, config
from dynamics.plot.parameters import at_snapshot, method, roles_by
from dynamics.plot.rho_panel import rho_panel
from dynamics.plot.roles_panel import roles_panel
from dynamics.plot.scatter_panel import scatter_panel
from dynamics.plot.self_repair_panel import self_repair_panel
from dynamics.plot.synergy_panel import joint_panel, ratio_panel
from dynamics.plot.tables import Tables

EXPLANATION = (
    ("Hidden Heroes", "(blue) matter far more than their gradients show;"),
    ("Gradient Bloats", "(orange) have large gradients but matter little."),
)
SCALES = ("log", "linear")
"""The step axes; the first is the default."""
PANELS: dict[str, Callable[[Tables, StepAxis], Panel | None]] = {
    "accuracy": lambda tables, axis: accuracy_panel(tables.accuracy, tables.grokking, axis),
    "rho": lambda tables, axis: rho_panel(tables.rho, axis, tables.level),
    "agreement": lambda tables, axis: agreement_panel(tables.agreement, axis, tables.level),
    "self_repair": lambda tables, axis: self_repair_panel(tables.self_repair, axis),
    "faithfulness": lambda tables, axis: faithfulness_panel(tables.faithfulness, axis),
    "roles": lambda tables, axis: roles_panel(tables.cells, axis),
    "layers": lambda tables, axis: layers_panel(tables.layers, tables.components, axis, tables.level),
    "causal_map": lambda tables, axis: causal_map_panel(tables.shares, axis),
    "attribution_map": lambda tables, axis: attribution_map_panel(tables.shares, axis),
    "scatter": lambda tables, _: scatter_panel(tables.cells, tables.snapshots),
    "bump_causal": lambda tables, axis: bump_panel(tables.cells, tables.snapshots, axis, "causal"),
    "bump_gradient": lambda tables, axis: bump_panel(tables.cells, tables.snapshots, axis, "gradient"),
    "ratio_to_sum": lambda tables, axis: ratio_panel(tables.synergy, axis, "ratio_to_sum"),
    "ratio_to_mean": lambda tables, axis: ratio_panel(tables.synergy, axis, "ratio_to_mean"),
    "joint": lambda tables, _: joint_panel(tables.joint),
    "curve": lambda tables, _: curve_panel(tables.curves, tables.faithfulness),
}
"""The panels by name, from top to bottom; ``None`` from a panel: the run has nothing for it."""
WITHOUT_STEPS = ("scatter", "joint", "curve")
"""The panels that have another horizontal axis than the optimizer steps."""
NEEDS = {
    "self_repair": "'self_repair' among the measurements",
    **dict.fromkeys(("faithfulness", "curve"), "a schedule of faithfulness, such as faithfulness=5000"),
    **dict.fromkeys(("causal_map", "attribution_map"), "'attribution' among the measurements"),
    **dict.fromkeys(("ratio_to_sum", "ratio_to_mean", "joint"), "a schedule of synergy, such as synergy=5000"),
}
"""What has to be tracked for a panel, where that is no matter of course."""
CHARTS: dict[str, tuple[str, ...]] = {
    "timeline": ("accuracy", "rho", "agreement", "self_repair", "faithfulness", "roles", "layers", "curve"),
    "scatter": ("scatter",),
    "bump": ("bump_causal", "bump_gradient"),
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
    x: str = SCALES[0],
    panels: Collection[str] = CHARTS["timeline"],
    title: bool = True,
    step: int | None = None,
) -> alt.VConcatChart:
    """Return a picture of a run, data included.

    Args:
        tables: The tables of the run.
        score: What the roles shown first come from: ``"exact_match"`` or ``"loss"``.
        x: ``"log"`` steps, on an axis with a place for step 0, or ``"linear"`` ones.
        panels: Which of `PANELS` to draw; their order is always the same.
        title: Put the run's name and facts above; a page that shows them itself does not need that.
        step: Which snapshot the rank scatter shows first; default: see `Tables.shown_snapshot`.

    Raises:
        AnalysisError: If the score, the step axis, a panel or the step is unknown.
        NothingYetError: If there is nothing to draw.
    """
    check_score(score)
    if x not in SCALES:
        raise AnalysisError(f"the step axis must be one of {', '.join(SCALES)}; got {x!r}.")
    if not panels or not set(panels) <= set(PANELS):
        raise AnalysisError(f"the panels must be some of {', '.join(PANELS)}; got {', '.join(panels) or 'none'}.")
    if step is not None and "scatter" not in panels:
        raise AnalysisError(f"a step chooses what the panel scatter shows, but the panels are {', '.join(panels)}.")
    shown = tables.shown_snapshot(step, score) if "scatter" in panels else None
    axis = StepAxis(tables.run.steps, tables.accuracy["step"].to_numpy(), x)
    chosen = [name for name in PANELS if name in panels]
    filled: dict[str, Panel] = {}
    # From the lowest up, since only the lowest with steps names them.
    below = axis.lowest()
    for name in reversed(chosen):
        if (panel := PANELS[name](tables, below)) is not None:
            filled[name] = panel
            below = below if name in WITHOUT_STEPS else axis
    if not filled:
        raise NothingYetError(_nothing(chosen))
    explanation = " ".join(word for pair in EXPLANATION for word in pair)
    brief = [f"{fact.name}: {fact.value}" for fact in tables.facts if fact.brief]
    # More than fit in a line.
    lines = ["   ·   ".join(some) for some in (brief[:3], brief[3:])]
    parameters = [roles_by(score), at_snapshot(shown, tables.run.steps.tolist())]
    if "attribution_map" in filled:
        parameters.append(method(tables.run.methods))
    return assemble(list(filled.values())[::-1], parameters, (tables.name, [explanation, *lines]) if title else None)


def _nothing(panels: Collection[str]) -> str:
    """Return that none of these panels can be drawn, and what to track for those that need something special."""
    needs = dict.fromkeys(need for panel in panels if (need := NEEDS.get(panel)))
    again = f", or track again with {' and '.join(needs)}" if needs else ""
    return f"the run has nothing to draw for {', '.join(panels)}; choose other panels{again}."


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
        data = merged(data, panel_data)
    params: list[Any] = [parameter.param for parameter in parameters]
    own = dict.fromkeys(("color", "fill", "stroke", "strokeDash", "opacity", "shape", "x", "y"), "independent")
    with warnings.catch_warnings():
        # One selection for all panels is what links them; Altair warns that it makes one of many.
        warnings.filterwarnings("ignore", "Automatically deduplicated selection parameter", UserWarning)
        # At once, since Altair copies all that is in a chart for each thing that is added to it.
        chart = alt.VConcatChart(
            vconcat=[chart for chart, _ in panels],
            params=params,
            spacing=34,
            config=config(),
            resolve=alt.Resolve(scale=own),
            title=alt.Undefined if title is None else _title(*title),
        )
    # Last, and not through Altair, which would look at every number.
    chart["datasets"] = data
    return chart


def _title(text: str, lines: Sequence[str]) -> alt.Title:
    return alt.Title(
        text,
        subtitle=list(lines),
        fontSize=21,
        subtitleFontSize=12.5,
        subtitleColor=MUTED,
        subtitlePadding=9,
        offset=26,
        subtitleLineHeight=18,
    )


def specification(chart: alt.VConcatChart) -> dict[str, Any]:
    """Return what `to_dict` of a chart returns, without that Altair looks at every number of its data.

    Nor does it hold the chart against Vega-Lite's schema, which takes longer than all else: the tests do that.
    """
    bare = chart.copy(deep=False)
    data, bare["datasets"] = bare["datasets"], alt.Undefined
    return {**bare.to_dict(validate=False), "datasets": data}
