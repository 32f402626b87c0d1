"""Command line: ``python -m dynamics.store check run.h5`` and ``python -m dynamics.store repair run.h5``."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from collections.abc import Sequence

from dynamics.errors import RunFileError
from dynamics.store.check import check_run
from dynamics.store.repair import repair_run


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    result = argparse.ArgumentParser(
        prog="python -m dynamics.store", description="Look a run file over, or mend one that a dead training left open."
    )
    commands = result.add_subparsers(dest="command", required=True)
    check = commands.add_parser(
        "check",
        help="say what is in a run file and whether all of it can be read",
        description="Say what is in a run file, how its writer left it, and whether every row can be read. The file is "
        "read by a process of its own, which a forged file may crash. Exit status 0: all can be read; 1: damaged.",
    )
    check.add_argument("run", help="run file, such as runs/demo/run.h5")
    check.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    repair = commands.add_parser(
        "repair",
        help="mend a run file that a dead training left open",
        description="Copy every announced row of a run file that its writer left open to a new file, which takes the "
        "old one's place; that stays beside it as run.h5.backup-1. Exit status 0: done; 1: not, and why.",
    )
    repair.add_argument("run", help="run file, such as runs/demo/run.h5")
    repair.add_argument("-o", "--output", help="write the mended file here instead, and leave the old one alone")
    repair.add_argument(
        "--force", action="store_true", help="also where the file system cannot tell whether the training still runs"
    )
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        arguments: Command-line arguments; default those of the process.

    Returns:
        Exit status: 0, or 1 for a damaged file or one that cannot be repaired.
    """
    given = parser().parse_args(arguments)
    if given.command == "repair":
        try:
            path = repair_run(given.run, given.output, given.force)
        except RunFileError as error:
            print(error, file=sys.stderr)
            return 1
        print(f"repaired: {path}")
        return 0
    if not given.here:
        return _check_apart(given.run)
    report = check_run(given.run)
    print(report)
    return 1 if report.problems else 0


def _check_apart(run: str) -> int:
    """Check a file in a process of its own."""
    child = subprocess.run([sys.executable, "-m", "dynamics.store", "check", "--here", "--", run])
    if child.returncode < 0:
        print(f"{run}\ndamaged:\n  reading it ended by {signal.Signals(-child.returncode).name}; do not open it.")
        return 1
    return child.returncode


if __name__ == "__main__":
    sys.exit(main())
