"""Command line: ``python -m dynamics.report run.h5``."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence

from dynamics.analysis import SCORES, WINDOWS
from dynamics.errors import DynamicsError, ReportError
from dynamics.report.machine import to_json
from dynamics.report.output import output_path, read_window, report_on, write
from dynamics.report.terminal import show


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    result = argparse.ArgumentParser(
        prog="python -m dynamics.report",
        description="Say what a run found, and what of it is beyond chance: rho, depth, agreement of scores, roles, "
        "grokking, synergy. Several runs of the same components are taken together, as seeds of an experiment.",
        epilog="Examples: python -m dynamics.report run.h5; python -m dynamics.report 'runs/sort-*/run.h5' -o sort.md",
    )
    result.add_argument("runs", nargs="+", metavar="run", help="run files, or patterns in quotes")
    result.add_argument("-o", "--output", help="write to this file, .md (Markdown) or .json, and print its path alone")
    result.add_argument("--json", action="store_true", help="print JSON, for machines")
    result.add_argument("--all", action="store_true", help="show long tables whole")
    result.add_argument(
        "--score",
        choices=SCORES,
        default="exact_match",
        help="what causal importance is measured in where one score must lead: accuracy (default), or the loss",
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
    low, high = WINDOWS["paper"]
    result.add_argument(
        "--window",
        default="paper",
        metavar="LOW,HIGH",
        help="accuracies on the probe of the snapshots that are taken together, such as 0.2,0.75, or a name: "
        + ", ".join(WINDOWS)
        + f" (default paper: {low:g},{high:g})",
    )
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: Command-line arguments; default those of the process.

    Returns:
        Exit status: 0, or 2 for input that cannot be reported on.
    """
    given = parser().parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that lacks a letter shows another in its place.
        sys.stdout.reconfigure(errors="replace")
    try:
        path = None if given.output is None else output_path(given.output, given.runs)
        if path is not None and given.json and path.suffix.lower() != ".json":
            raise ReportError(f"--json writes JSON: the output must end in .json; got {path.name!r}.")
        report = report_on(given.runs, given.score, given.baseline, given.threshold, read_window(given.window))
        if path is not None:
            write(report, path, given.all)
            print(path)
        elif given.json:
            print(to_json(report))
        else:
            show(report, everything=given.all)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has seen enough, as `head` has.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except DynamicsError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        # HDF5 finds damage inside a file only when it comes to read it.
        print(f"error: {', '.join(given.runs)} cannot be read: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
