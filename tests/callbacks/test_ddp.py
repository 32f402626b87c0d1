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


def run_ranks(folder: Path, what: str) -> list[tuple[int, str]]:
    """Return how each rank ended, and what it said."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(WORLD), "GROUP_RANK": "0",
        "LOCAL_WORLD_SIZE": str(WORLD), "TORCHELASTIC_RUN_ID": "test", "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }  # fmt: skip
    command = [sys.executable, "-W", "ignore", "-m", "tests.callbacks.ddp_process", str(folder), what]
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
    return [(rank.returncode, text) for rank, text in zip(ranks, said, strict=True)]


def check(folder: Path, cell: str) -> None:
    ended = run_ranks(folder, cell)
    assert [code for code, _ in ended] == [0] * WORLD, "\n".join(said for _, said in ended)
    records = {}
    for rank in range(WORLD):
        alone, tracked = (json.loads((folder / f"{name}-{rank}.json").read_text()) for name in ("alone", "tracked"))
        difference = first_difference(alone, tracked)
        assert difference is None, f"rank {rank} {difference}"
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


@pytest.mark.soak
@pytest.mark.parametrize(("when", "rows"), [("at the start", None), ("in training", [0])])
def test_a_measurement_that_fails_ends_every_rank(tmp_path, when, rows):
    first, second = run_ranks(tmp_path, when)
    assert first[0] == second[0] == 1
    assert "OSError: planted" in first[1].splitlines()[-1]
    assert second[1].splitlines()[-1].removeprefix("[rank1]: ") == (
        "dynamics.errors.MeasurementError: rank 0, which measures for all, failed with OSError: planted"
    )
    assert (tmp_path / "run.h5").exists() == (rows is not None)
    if rows is not None:
        with open_run(tmp_path / "run.h5") as run:
            assert run.steps.tolist() == rows
