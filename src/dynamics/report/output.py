"""Write the report of run files, as what the output's suffix asks for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dynamics.analysis import WINDOWS
from dynamics.analysis.windows import Window, window_bounds
from dynamics.errors import AnalysisError, ReportError
from dynamics.report.build import run_report, seeds_report
from dynamics.report.machine import to_json
from dynamics.report.markdown import markdown
from dynamics.report.section import Report
from dynamics.store import open_runs

SUFFIXES = (".md", ".json")
"""What a report can be written as: Markdown, or JSON for machines."""


def report_on(
    paths: str | Path | Sequence[str | Path],
    score: str = "exact_match",
    baseline: str = "mean",
    threshold: float | None = None,
    window: Window = "paper",
) -> Report:
    """Return the report of a run file, or of several together.

    Args:
        paths: Run files, or patterns such as ``"runs/sort-*/run.h5"``.
        score: What C is measured in where one score must lead: ``"exact_match"`` or ``"loss"``.
        baseline: What ablated outputs were replaced by: ``"mean"`` or ``"zero"``.
        threshold: Smallest gap of a hero or bloat, in ranks; default ``round(0.3 n)``.
        window: Accuracies on the probe of the snapshots that are taken together: a name among `WINDOWS`, or least and
            largest.

    Raises:
        RunFileError: If a file is missing or cannot be read, or the runs have different components.
        AnalysisError: If an argument is out of range.
    """
    with open_runs(paths) as runs:
        if len(runs) == 1:
            return run_report(runs[0], score, baseline, threshold, window)
        return seeds_report(runs, runs.names, score, baseline, threshold, window)


def output_path(output: str | Path, runs: Sequence[str | Path]) -> Path:
    """Return where the report goes, or raise before any work is done.

    Args:
        output: Where the user wants it.
        runs: The run files, which it must not overwrite.

    Raises:
        ReportError: If the suffix is unknown, the folder does not exist, or it is no file of the user's to write.
    """
    path = Path(output)
    if path.suffix.lower() not in SUFFIXES:
        raise ReportError(f"the output must end in one of {', '.join(SUFFIXES)}; got {path.name!r}.")
    if path.is_dir():
        raise ReportError(f"the output {path} is a folder; give the path of a file.")
    if not path.parent.is_dir():
        raise ReportError(f"there is no folder {path.parent} to write {path.name} into; make it first.")
    if path.exists() and any(Path(run).exists() and path.samefile(run) for run in runs):
        raise ReportError(f"the report would overwrite the run file {path}; choose another output with -o.")
    return path


def write(report: Report, path: Path, everything: bool = False) -> None:
    """Write a report.

    Args:
        report: What to write.
        path: Where to; its suffix, one of `SUFFIXES`, says as what.
        everything: Write long tables whole; JSON always does.

    Raises:
        ReportError: If the file cannot be written.
    """
    content = to_json(report) if path.suffix.lower() == ".json" else markdown(report, everything)
    try:
        path.write_text(content, encoding="utf-8")
    except OSError as error:
        raise ReportError(f"the report {path} cannot be written: {error.strerror}.") from error


def read_window(text: str) -> Window:
    """Return the window that a user names: a name among `WINDOWS`, or two shares such as ``0.2,0.75``.

    Raises:
        AnalysisError: If it is neither.
    """
    if text in WINDOWS:
        return text
    parts = text.split(",")
    try:
        low, high = map(float, parts)
    except ValueError:
        raise AnalysisError(
            f"the window must be one of {', '.join(WINDOWS)}, or two shares such as 0.2,0.75; got {text!r}."
        ) from None
    return window_bounds((low, high))
