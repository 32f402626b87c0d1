"""One process of a data-parallel training, started by `tests.callbacks.test_ddp`: ``ddp_process.py FOLDER CELL``."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from tests.callbacks.matrix import DDP_CELLS, tracker, train

if __name__ == "__main__":
    folder, cell = Path(sys.argv[1]), DDP_CELLS[sys.argv[2]]
    for name in ("alone", "tracked"):
        own = folder / name
        steps = train(cell, own, [tracker(cell, own)] if name == "tracked" else [])
        (folder / f"{name}-{os.environ['RANK']}.json").write_text(json.dumps(steps))
