"""The picture of many runs: its panels below each other."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import altair as alt

from dynamics.analysis import window_bounds
from dynamics.analysis.importance import check_score
from dynamics.errors import AnalysisError
from dynamics.plot.axes import Panel, StepAxis
from dynamics.plot.figure import EXPLANATION, SCALES, assemble
from dynamics.plot.parameters import roles_by
from dynamics.plot.seeds_facts import window_words
from dynamics.plot.seeds_frequency_panel import seeds_frequency_panel
from dynamics.plot.seeds_layers_panel import seeds_layers_panel
from dynamics.plot.seeds_layout import note
from dynamics.plot.seeds_pruning_panel import seeds_pruning_panel
from dynamics.plot.seeds_rho_panel import seeds_rho_accuracy_panel, seeds_rho_step_panel
from dynamics.plot.seeds_tables import SeedTables

_LINE = 115
"""About how many letters fit into a line above a still picture."""
SEEDS = "seeds"
"""Name of the chart of many runs."""
SEED_PANELS: dict[str, Callable[[SeedTables, StepAxis], Panel | None]] = {
    "role_frequency": lambda tables, _: (
        seeds_frequency_panel(tables.frequency, tables.missing, window_words(tables.findings.window))
        if len(tables.frequency)
        else None
    ),
    "role_layers": lambda tables, _: seeds_layers_panel(tables.layers, tables.missing) if len(tables.layers) else None,
    "rho_by_step": lambda tables, axis: seeds_rho_step_panel(tables.rho_by_run, tables.rho_by_step, axis),
    "rho_by_accuracy": lambda tables, _: seeds_rho_accuracy_panel(
        tables.rho_by_run, tables.rho_by_accuracy, window_bounds(tables.findings.window)
    ),
    "pruning": lambda tables, _: (
        seeds_pruning_panel(tables.pruning, tables.pruning_by_run, tables.missing) if len(tables.pruning) else None
    ),
}
"""The panels by name, from top to bottom; ``None`` from a panel: no run has a snapshot in the window."""


def seeds_figure(
    tables: SeedTables,
    score: str = "exact_match",
    x: str = "linear",
    panels: Collection[str] = tuple(SEED_PANELS),
    title: bool = True,
) -> alt.VConcatChart:
    """Return a picture of many runs, data included.

    Where no run has a snapshot in the window, the panels that need one are left out and the picture says so.

    Args:
        tables: The tables of the runs.
        score: What C is measured in at first: ``"exact_match"`` or ``"loss"``.
        x: ``"linear"`` or ``"symlog"`` steps.
        panels: Which of `SEED_PANELS` to draw; their order is always the same.
        title: Put the runs' name and facts above; a page that shows them itself does not need that.

    Raises:
        AnalysisError: If the score, the step axis or a panel is unknown, or there is nothing to draw.
    """
    check_score(score)
    if x not in SCALES:
        raise AnalysisError(f"the step axis must be one of {', '.join(SCALES)}; got {x!r}.")
    if not panels or not set(panels) <= set(SEED_PANELS):
        raise AnalysisError(
            f"the panels of several runs must be some of {', '.join(SEED_PANELS)}; got {', '.join(panels) or 'none'}."
        )
    by_run = tables.rho_by_run
    axis = StepAxis(by_run["step"].sort_values().unique(), by_run["step"].to_numpy(), x).lowest()
    drawn = [panel for name, build in SEED_PANELS.items() if name in panels and (panel := build(tables, axis))]
    if not drawn:
        raise AnalysisError(next(iter(tables.missing.values())))
    if tables.missing.keys() >= tables.findings.by.keys():
        reasons = [f"{reason[0].upper()}{reason[1:]}" for reason in tables.missing.values()]
        drawn.insert(0, note("No run has a snapshot in the window, so there are no roles to count", reasons))
    explanation = " ".join(word for pair in EXPLANATION for word in pair)
    facts = [f"{fact.name}: {fact.value}" for fact in tables.facts if fact.brief]
    lines = [explanation, *_wrapped(facts)]
    return assemble(drawn, [roles_by(score)], (tables.name, lines) if title else None)


def _wrapped(facts: Sequence[str]) -> list[str]:
    """Return the facts in lines that are not wider than the panels."""
    lines: list[str] = []
    for fact in facts:
        if lines and len(lines[-1]) + len(fact) < _LINE:
            lines[-1] += f"   ·   {fact}"
        else:
            lines.append(fact)
    return lines
