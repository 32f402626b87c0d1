"""Training with the callback ends in the same bits as training without it."""

from __future__ import annotations

import random

import lightning as L
import numpy as np
import pytest
import torch

from dynamics import GapTrackerCallback
from tests.callbacks.trainings import csv_logger, read_log, small_data, small_module, small_trainer


class Seen(L.Callback):
    """Keep every training batch."""

    def __init__(self) -> None:
        self.batches: list[torch.Tensor] = []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.batches.append(batch["input_ids"].clone())


def run(folder, with_tracker: bool, trainer_options: dict, model_options: dict) -> dict[str, object]:
    torch.manual_seed(3)
    np.random.seed(3)
    random.seed(3)
    module = small_module(**model_options)
    seen = Seen()
    trackers = (
        [GapTrackerCallback(folder / "run.h5", schedule=2, train_gradients=1, faithfulness=3, synergy=4)]
        if with_tracker
        else []
    )
    trainer = small_trainer(
        folder,
        [seen, *trackers],
        logger=csv_logger(folder),
        max_steps=8,
        val_check_interval=4,
        check_val_every_n_epoch=None,
        **trainer_options,
    )
    trainer.fit(module, small_data())
    logged = [{k: v for k, v in line.items() if not k.startswith("gap/")} for line in read_log(folder)]
    return {
        "weights": module.state_dict(),
        "optimizer": trainer.optimizers[0].state_dict(),
        "torch": torch.get_rng_state(),
        "numpy": np.random.get_state(),
        "python": random.getstate(),
        "data": seen.batches,
        # Rows that hold nothing but the tracker's own values are its own affair.
        "logged": [line for line in logged if set(line) - {"step", "epoch"}],
        "callback_metrics": {k: v for k, v in trainer.callback_metrics.items() if not k.startswith("gap/")},
        "steps": trainer.global_step,
    }


def same(a: object, b: object) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return np.array_equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


@pytest.mark.parametrize(
    ("trainer_options", "model_options"),
    [
        pytest.param({}, {}, id="plain"),
        pytest.param({"accumulate_grad_batches": 3}, {}, id="accumulated"),
        pytest.param({}, {"dropout": 0.2, "positions": "learned"}, id="dropout"),
        pytest.param({"gradient_clip_val": 0.1, "precision": "bf16-mixed"}, {"dropout": 0.1}, id="bf16"),
    ],
)
def test_nothing_is_touched(tmp_path, trainer_options, model_options):
    without = run(tmp_path / "a", False, trainer_options, model_options)
    tracked = run(tmp_path / "b", True, trainer_options, model_options)
    assert without["logged"]
    for what in without:
        assert same(without[what], tracked[what]), what
