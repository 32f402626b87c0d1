"""Command line: ``python -m dynamics.plot run.h5``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial

from dynamics.analysis import SCORES
from dynamics.errors import DynamicsError
from dynamics.plot.figure import ALL, CHARTS, PANELS, SCALES
from dynamics.plot.output import draw_run, output_path
from dynamics.plot.watch import watch


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    result = argparse.ArgumentParser(
        prog="python -m dynamics.plot",
        description="Draw a run file, also while training still writes to it: accuracy, the rank correlation of "
        "gradients and causes, the role of every component, the roles in each layer, and how faithful rankings are.",
        epilog="Examples: python -m dynamics.plot run.h5; python -m dynamics.plot run.h5 -o figure.png --x symlog",
    )
    result.add_argument("run", help="run file that the training wrote, such as runs/demo/run.h5")
    result.add_argument(
        "-o", "--output", help="where to write: .html (default, beside the run file), .png, .svg, or .json (Vega-Lite)"
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
        choices=(*CHARTS, ALL),
        default="timeline",
        help="which chart to draw (default timeline); all: every panel on one page, linked",
    )
    result.add_argument(
        "--panels",
        nargs="+",
        choices=PANELS,
        metavar="PANEL",
        help=f"which panels to draw, instead of those of a chart: {', '.join(PANELS)}",
    )
    result.add_argument(
        "--watch",
        action="store_true",
        help="draw again whenever the training has added rows, until it is finished or Ctrl-C; the page reloads itself",
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
    draw = partial(
        draw_run,
        given.run,
        given.output,
        given.score,
        given.baseline,
        given.threshold,
        given.x,
        given.chart,
        given.panels,
        watched=given.watch,
    )
    try:
        if given.watch:
            # What is wrong with the arguments must not wait for the run.
            output_path(given.run, given.output)
            watch([given.run], draw, partial(print, flush=True))
        else:
            print(draw())
    except DynamicsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        # HDF5 finds damage inside a file only when it comes to read it.
        print(f"error: {given.run} cannot be read: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
