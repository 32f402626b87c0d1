"""The charts of a run as values: for notebooks, and for whoever wants to change them."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import altair as alt

from dynamics.plot.figure import figure, panels_of
from dynamics.plot.tables import Tables
from dynamics.store import Run, open_run


def chart(
    run: Run | str | Path,
    name: str = "timeline",
    *,
    score: str = "exact_match",
    baseline: str = "mean",
    threshold: float | None = None,
    x: str = "log",
    step: int | None = None,
) -> alt.VConcatChart:
    """Return a chart of a run as an Altair chart, which a notebook shows when it is a cell's last line.

    The chart carries all its data: it needs the run file no more, and none of Altair's limits on rows apply to it. Its
    controls (the score behind C, the snapshot) stand below it, and clicks select components as on the page. Without a
    network, `altair.renderers.enable("jupyter", offline=True)` draws it. `chart.save("name.html", inline=True)`,
    `chart.save("name.svg")` and `chart.to_dict()` take it elsewhere; `chart.vconcat` holds its panels.

        from dynamics import open_run
        from dynamics.plot import chart

        run = open_run("runs/demo/run.h5")
        chart(run, "scatter", score="loss", step=500)

    Args:
        run: An open run, which stays open; or the path of a run file.
        name: Which of `CHARTS`, or ``"all"``.
        score: What the roles shown first come from: ``"exact_match"`` or ``"loss"``.
        baseline: What ablated outputs were replaced by: ``"mean"`` or ``"zero"``.
        threshold: Smallest gap of a hero or bloat, in ranks; default ``round(0.3 n)``.
        x: ``"log"`` steps, on an axis with a place for step 0, or ``"linear"`` ones.
        step: Which snapshot the rank scatter shows first; default: see `Tables.shown_snapshot`.

    Raises:
        RunFileError: If the run file is missing or cannot be read.
        AnalysisError: If the run lacks what is needed, or an argument is unknown or out of range.
    """
    panels = panels_of(name)
    with nullcontext(run) if isinstance(run, Run) else open_run(run) as opened:
        return figure(Tables(opened, baseline, threshold), score, x, panels, step=step)
