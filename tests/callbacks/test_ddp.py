"""Data-parallel training with the tracker ends in the same bits, on each rank, as training without it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from dynamics import open_run
from tests.callbacks.matrix import DDP_CELLS, first_difference

ROOT = Path(__file__).parents[2]
FAST = next(iter(DDP_CELLS))
WORLD = 2


def run_ranks(folder: Path, cell: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(WORLD), "GROUP_RANK": "0",
        "LOCAL_WORLD_SIZE": str(WORLD), "TORCHELASTIC_RUN_ID": "test", "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }  # fmt: skip
    command = [sys.executable, "-W", "ignore", "-m", "tests.callbacks.ddp_process", str(folder), cell]
    ranks = [
        subprocess.Popen(
            command, env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}, cwd=ROOT,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(WORLD)
    ]  # fmt: skip
    try:
        said = [rank.communicate(timeout=120)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert all(rank.returncode == 0 for rank in ranks), "\n".join(said)


def check(folder: Path, cell: str) -> None:
    run_ranks(folder, cell)
    records = {}
    for rank in range(WORLD):
        alone, tracked = (json.loads((folder / f"{name}-{rank}.json").read_text()) for name in ("alone", "tracked"))
        assert first_difference(alone, tracked) is None, f"rank {rank}"
        records[rank] = alone
    # Each rank had data of its own, and both the same weights.
    assert records[0][0]["the batch"] != records[1][0]["the batch"]
    assert records[0][-1]["weights"] == records[1][-1]["weights"] != records[0][0]["weights"]
    with open_run(folder / "tracked" / "run.h5") as run:
        assert run.finished
        assert run.steps.tolist() == [0, 2, 4, 5, 6]


def test_data_parallel_training_is_not_touched(tmp_path):
    check(tmp_path, FAST)


@pytest.mark.soak
@pytest.mark.parametrize("cell", [cell for cell in DDP_CELLS if cell != FAST])
def test_data_parallel_training_is_not_touched_in_the_slow_cells(tmp_path, cell):
    check(tmp_path, cell)
