"""Write the picture of many runs, in the format that the file's suffix asks for."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from dynamics.analysis.windows import Window
from dynamics.errors import PlotError
from dynamics.plot.output import checked, write_figure
from dynamics.plot.seeds_figure import SEED_PANELS, SEEDS, seeds_figure
from dynamics.plot.seeds_tables import SeedTables, shared_folder
from dynamics.store import open_runs, run_files


def draw_runs(
    paths: str | Path | Iterable[str | Path],
    output: str | Path | None = None,
    score: str = "exact_match",
    baseline: str = "mean",
    threshold: float | None = None,
    x: str = "linear",
    window: Window = "paper",
    panels: Collection[str] | None = None,
) -> Path:
    """Draw the seeds of an experiment, finished or not, and return the path of the picture.

    Args:
        paths: What `open_runs` takes: a pattern such as ``"runs/sort-*/run.h5"``, or several patterns or paths.
        output: Where to; the suffix, one of `SUFFIXES`, says as what. Default: ``seeds.html`` in the innermost folder
            that all runs lie in.
        score: What C is measured in: ``"exact_match"`` or ``"loss"``. The HTML page can switch.
        baseline: What ablated outputs were replaced by, ``"mean"`` or ``"zero"``; what pruning costs is always by mean.
        threshold: Smallest gap of a hero or bloat, in ranks; default ``round(0.3 n)``.
        x: ``"linear"``, or ``"symlog"`` to give early steps more room.
        window: Accuracies on the probe of the snapshots in which roles are counted: a name among `WINDOWS`, or least
            and largest.
        panels: Which of `SEED_PANELS` to draw; default all.

    Raises:
        RunFileError: If a run file is missing or cannot be read, or the runs have other components than the first.
        AnalysisError: If one lacks what is needed.
        PlotError: If the picture cannot be written where, or as what, it was asked for.
    """
    files = run_files(paths)
    path = checked(_default(files) if output is None else Path(output), files)
    with open_runs(files) as runs:
        tables = SeedTables(runs, window, baseline, threshold)
        chosen = tuple(SEED_PANELS) if panels is None else panels
        specification = seeds_figure(tables, score, x, chosen, title=path.suffix.lower() != ".html").to_dict()
        return write_figure(path, specification, tables.name, tables.facts, len(tables.rho_by_run))


def _default(files: Sequence[Path]) -> Path:
    folder = shared_folder(files)
    if folder == Path(folder.anchor) and folder.is_absolute():
        raise PlotError("the runs share no folder to write the picture into; say where to with -o.")
    return folder / f"{SEEDS}.html"
