"""A writer that is killed at any moment leaves every announced row readable, before and after repair."""

from __future__ import annotations

import multiprocessing
import random
import time
from pathlib import Path

import h5py
import numpy as np
import pytest

from dynamics.store import check_run, open_run, repair_run
from dynamics.store.left_open import left_open
from tests.store.conftest import SPECS, row, write_run
from tests.store.mutations import digest

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.store.conftest", "dynamics.store"])
ROWS = {name: np.stack([row(seed)[name] for seed in range(7)]) for name in SPECS}


def write(path, announced) -> None:
    """Write rows without end, and tell of each once it is announced."""
    announced.send(-1)
    writer = write_run(path)
    for step in range(100_000):
        writer.append("snapshots", step, {name: values[step % 7] for name, values in ROWS.items()})
        writer.append("train", step, {"gradient_norm": np.full(3, step, np.float32)})
        writer.append_metrics(step, {"a": float(step), f"b{step // 10}": float(step)})
        announced.send(step)


def killed(target, *given, after: float) -> list:
    """Start a process, kill it so long after its first word, and return all that it said."""
    receiver, sender = PROCESSES.Pipe(duplex=False)
    child = PROCESSES.Process(target=target, args=(*given, sender))
    child.start()
    sender.close()
    said = [receiver.recv()]
    time.sleep(after)
    child.kill()
    try:
        while True:
            said.append(receiver.recv())
    # The pipe may end within a word.
    except (EOFError, OSError):
        pass
    child.join()
    receiver.close()
    return said


def kill_a_writer(path: Path, after: float) -> int:
    """Kill a writer and look for what it announced; return how many rows were there."""
    last = max(killed(write, path, after=after))
    if not path.exists():
        assert last == -1
        return 0
    with open_run(path) as run:
        steps = run.steps
        assert len(steps) > last
        assert not run.finished
        for name, values in ROWS.items():
            np.testing.assert_array_equal(run[name], values[steps % 7])
        for group in (run.snapshots, run.train, run.metrics):
            assert len(group.steps) > last
            assert group.steps.tolist() == list(range(len(group.steps)))
        np.testing.assert_array_equal(run.train["gradient_norm"][:, 2], run.train.steps)
        if len(run.metrics.steps):
            np.testing.assert_array_equal(run.metrics["value"][:, 0], run.metrics.steps)
    assert left_open(path)
    before = digest(path)
    repair_run(path)
    assert digest(path) == before
    report = check_run(path)
    assert (report.state, report.problems) == ("closed", [])
    with h5py.File(path, "r") as file:
        assert file["snapshots/loss"].shape == (len(steps), 2000)
    return len(steps)


def repair(path, tell) -> None:
    tell.send("started")
    repair_run(path)
    tell.send("repaired")


def kill_a_repair(path: Path, source: bytes, after: float) -> bool:
    """Kill a repair and look for the file; return whether the repair had been done."""
    path.write_bytes(source)
    before = digest(path)
    done = "repaired" in killed(repair, path, after=after)
    assert digest(path) == before
    if left_open(path):
        assert not done
        repair_run(path)
        assert digest(path) == before
    return done


@pytest.mark.parametrize("after", [0.02, 0.15])
def test_a_killed_writer_leaves_every_announced_row_readable(path, after):
    kill_a_writer(path, after)


@pytest.mark.soak
def test_a_hundred_killed_writers(tmp_path):
    dice = random.Random(0)
    rows = [kill_a_writer(tmp_path / f"{number}.h5", dice.uniform(0, 0.4)) for number in range(100)]
    print(f"\n{len(rows)} kills, {sum(rows)} rows, {rows.count(0)} before the first row")
    assert sum(rows) > 100


@pytest.mark.soak
def test_killed_repairs(tmp_path):
    living = tmp_path / "living.h5"
    writer = write_run(living)
    for step in range(30):
        writer.append("snapshots", step, {name: values[step % 7] for name, values in ROWS.items()})
    source = living.read_bytes()
    writer.close()
    dice = random.Random(1)
    done = [kill_a_repair(tmp_path / f"{number}.h5", source, dice.uniform(0, 0.3)) for number in range(30)]
    print(f"\n{len(done)} repairs killed, {sum(done)} of them after they were done")
    assert not all(done)
    assert any(done)
