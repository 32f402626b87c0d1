"""One process of a data-parallel training, started by `tests.callbacks.test_ddp`: ``ddp_process.py FOLDER WHAT``."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

from tests.callbacks.matrix import DDP_CELLS, failing_objective, tracker, train

# Calls of the objective in a snapshot of the matrix are 38, so that each lies in the midst of one.
FAILURES = {"at the start": 20, "in training": 60}


def compare(cell: str, folder: Path) -> None:
    """Train without and with the tracker, and write down what was witnessed."""
    for name in ("alone", "tracked"):
        own = folder / name
        steps = train(DDP_CELLS[cell], own, [tracker(DDP_CELLS[cell], own)] if name == "tracked" else [])
        (folder / f"{name}-{os.environ['RANK']}.json").write_text(json.dumps(steps))


def fail(when: str, folder: Path) -> None:
    """Train with a tracker whose measurement fails."""
    cell = replace(
        next(iter(DDP_CELLS.values())), tracker={"objective": failing_objective(FAILURES[when], OSError("planted"))}
    )
    train(cell, folder, [tracker(cell, folder)])


if __name__ == "__main__":
    (fail if sys.argv[2] in FAILURES else compare)(sys.argv[2], Path(sys.argv[1]))
