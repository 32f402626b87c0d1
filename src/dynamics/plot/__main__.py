"""Command line: ``python -m dynamics.plot RUN...``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from dynamics.analysis import SCORES, WINDOWS
from dynamics.analysis.windows import Window
from dynamics.errors import AnalysisError, DynamicsError, PlotError
from dynamics.plot.figure import ALL, CHARTS, PANELS, SCALES
from dynamics.plot.output import draw_run
from dynamics.plot.seeds_figure import SEED_PANELS, SEEDS
from dynamics.plot.seeds_output import draw_runs
from dynamics.store import run_files


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    result = argparse.ArgumentParser(
        prog="python -m dynamics.plot",
        description="Draw a run file, also while training still writes to it: accuracy, the rank correlation of "
        "gradients and causes, the role of every component, the roles in each layer, and how faithful rankings are.",
        epilog="Examples: python -m dynamics.plot run.h5; python -m dynamics.plot run.h5 -o figure.png --x symlog; "
        "python -m dynamics.plot runs/sort-*/run.h5",
    )
    result.add_argument(
        "run",
        nargs="+",
        help="run file that the training wrote, such as runs/demo/run.h5; or several, the seeds of one experiment, or "
        "a pattern in quotes",
    )
    result.add_argument(
        "-o",
        "--output",
        help="where to write: .html, .png, .svg, or .json (Vega-Lite); default: an HTML page beside the run file, or "
        f"{SEEDS}.html in the folder that all runs share",
    )
    result.add_argument(
        "--score",
        choices=SCORES,
        default="exact_match",
        help="what causal importance is measured in, for the roles: accuracy (default), or the loss, which is defined "
        "while accuracy is still 0; the page can switch",
    )
    result.add_argument(
        "--baseline",
        choices=("mean", "zero"),
        default="mean",
        help="what ablated outputs were replaced by: their mean (default) or zero",
    )
    result.add_argument(
        "--threshold",
        type=float,
        metavar="RANKS",
        help="smallest gap, in ranks, that makes a hero or a bloat; default 0.3 x components, rounded",
    )
    result.add_argument(
        "--x", choices=SCALES, default="linear", help="step axis; symlog gives early steps more room (default linear)"
    )
    result.add_argument(
        "--chart",
        choices=(*CHARTS, SEEDS, ALL),
        help=f"which chart to draw: timeline by default, and of several runs {SEEDS}, which compares them; all: every "
        "panel on one page, linked",
    )
    result.add_argument(
        "--panels",
        nargs="+",
        choices=(*PANELS, *SEED_PANELS),
        metavar="PANEL",
        help=f"which panels to draw, instead of those of a chart: {', '.join(PANELS)}; of the chart {SEEDS}: "
        f"{', '.join(SEED_PANELS)}",
    )
    result.add_argument(
        "--window",
        nargs="+",
        metavar="BOUND",
        help=f"chart {SEEDS}: the snapshots in which roles are counted, by accuracy on the probe: "
        f"{' or '.join(WINDOWS)}, or the least and the largest, such as 0.3 0.6 (default paper: 0.2 to 0.75)",
    )
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: Command-line arguments; default those of the process.

    Returns:
        Exit status: 0, or 2 for input that cannot be drawn.
    """
    given = parser().parse_args(arguments)
    try:
        print(_draw(given))
    except DynamicsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        # HDF5 finds damage inside a file only when it comes to read it.
        print(f"error: {', '.join(given.run)} cannot be read: {error}", file=sys.stderr)
        return 2
    return 0


def _draw(given: argparse.Namespace) -> Path:
    """Draw what the arguments ask for, and return where it is."""
    files = run_files(given.run)
    several = len(files) > 1
    of_seeds = several or (given.panels and set(given.panels) <= set(SEED_PANELS))
    chart = given.chart or (SEEDS if of_seeds else "timeline")
    if several and chart not in (SEEDS, ALL):
        raise PlotError(
            f"the chart {chart} shows one run, and {len(files)} were given; draw each by itself, or all together with "
            f"--chart {SEEDS}."
        )
    options = (given.output, given.score, given.baseline, given.threshold, given.x)
    if chart == SEEDS or several:
        return draw_runs(files, *options, _window(given.window or ["paper"]), given.panels)
    if given.window:
        raise PlotError(
            f"--window is for the chart {SEEDS}, and this is {chart}; leave it out, or add --chart {SEEDS}."
        )
    return draw_run(files[0], *options, chart, given.panels)


def _window(words: Sequence[str]) -> Window:
    """Return the window of accuracy that the command line names."""
    if len(words) == 1:
        return words[0]
    try:
        low, high = map(float, words)
    except ValueError:
        raise AnalysisError(
            f"--window takes {' or '.join(WINDOWS)}, or two shares such as 0.2 0.75; got {' '.join(words)}."
        ) from None
    return low, high


if __name__ == "__main__":
    sys.exit(main())
