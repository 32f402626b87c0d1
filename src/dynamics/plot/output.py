"""Write the picture of a run, in the format that the file's suffix asks for."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import vl_convert

from dynamics.errors import PlotError
from dynamics.plot.axes import vega_lite_version
from dynamics.plot.facts import Fact
from dynamics.plot.figure import figure, panels_of
from dynamics.plot.page import page
from dynamics.plot.tables import Tables
from dynamics.store import open_run

SUFFIXES = (".html", ".png", ".svg", ".json")
"""What a picture can be: a page, a picture in pixels or in vectors, a Vega-Lite specification."""
_PNG_SCALE = 2


def output_path(run_path: str | Path, output: str | Path | None) -> Path:
    """Return where the picture goes, or raise before any work is done.

    Args:
        run_path: The run file.
        output: Where the user wants the picture; default: beside the run file, as HTML.

    Raises:
        PlotError: If the suffix is unknown or the folder does not exist.
    """
    run = Path(run_path)
    return checked(run.parent / f"{run.stem or 'run'}.html" if output is None else Path(output), [run])


def checked(path: Path, runs: Iterable[Path]) -> Path:
    """Return where a picture of these run files goes, or raise `PlotError` if it cannot go there."""
    if path.suffix.lower() not in SUFFIXES:
        raise PlotError(f"the output must end in one of {', '.join(SUFFIXES)}; got {path.name!r}.")
    for run in runs:
        if path.exists() and run.exists() and path.samefile(run):
            raise PlotError(f"the picture would overwrite the run file {run}; choose another output with -o.")
    if not path.parent.is_dir():
        raise PlotError(f"there is no folder {path.parent} to write {path.name} into; make it first.")
    if path.is_dir():
        raise PlotError(f"the output {path} is a folder; give the path of a file.")
    return path


def draw_run(
    run_path: str | Path,
    output: str | Path | None = None,
    score: str = "exact_match",
    baseline: str = "mean",
    threshold: float | None = None,
    x: str = "linear",
    chart: str = "timeline",
    panels: Collection[str] | None = None,
) -> Path:
    """Draw a run file, finished or not, and return the path of the picture.

    Args:
        run_path: The run file.
        output: Where to; the suffix, one of `SUFFIXES`, says as what. Default: beside the run file, as HTML.
        score: What the roles come from: ``"exact_match"`` or ``"loss"``. The HTML page can switch.
        baseline: What ablated outputs were replaced by: ``"mean"`` or ``"zero"``.
        threshold: Smallest gap of a hero or bloat, in ranks; default ``round(0.3 n)``.
        x: ``"linear"``, or ``"symlog"`` to give early steps more room.
        chart: Which of `CHARTS` to draw, or ``"all"``.
        panels: Which of `PANELS` to draw instead of the chart's own.

    Raises:
        RunFileError: If the run file is missing or cannot be read.
        AnalysisError: If it lacks what is needed.
        PlotError: If the picture cannot be written where, or as what, it was asked for.
    """
    path = output_path(run_path, output)
    kind = path.suffix.lower()
    chosen = panels_of(chart) if panels is None else panels
    with open_run(run_path) as run:
        tables = Tables(run, baseline, threshold)
        specification = figure(tables, score, x, chosen, title=kind != ".html").to_dict()
        return write_figure(path, specification, tables.name, tables.facts, len(run.steps) * len(run.components))


def write_figure(path: Path, specification: dict[str, Any], name: str, facts: Sequence[Fact], n_cells: int) -> Path:
    """Write a picture as what its suffix says, one of `SUFFIXES`, and return its path.

    Args:
        path: Where to.
        specification: The Vega-Lite specification, with its data.
        name: What the page is about.
        facts: What the page says of it.
        n_cells: About how many marks there are; see `page`.

    Raises:
        PlotError: If it cannot be written.
    """
    kind = path.suffix.lower()
    content: str | bytes
    if kind == ".html":
        content = page(specification, name, facts, n_cells)
    elif kind == ".json":
        content = json.dumps(specification, ensure_ascii=False, allow_nan=False)
    else:
        content = _picture(specification, kind)
    try:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    except OSError as error:
        raise PlotError(f"the picture {path} cannot be written: {error.strerror}.") from error
    return path


def _picture(specification: dict[str, Any], kind: str) -> str | bytes:
    # The drawing must find nothing to load; the data is all inside.
    options: dict[str, Any] = {"vl_version": vega_lite_version(), "allowed_base_urls": []}
    if kind == ".svg":
        return str(vl_convert.vegalite_to_svg(specification, **options))
    return bytes(vl_convert.vegalite_to_png(specification, scale=_PNG_SCALE, **options))
