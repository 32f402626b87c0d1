"""Between snapshots nothing stays in memory but the probe."""

from __future__ import annotations

import gc
import resource
import sys
import warnings
from pathlib import Path

import lightning as L
import pytest
import torch
from torch import Tensor

from dynamics import GapTrackerCallback
from tests.callbacks.matrix import Cell, Examples, train

CELL = Cell()


class Weigh(L.Callback):
    """Note the live tensors, and the memory of the process, after some steps."""

    def __init__(self, steps: tuple[int, ...]) -> None:
        self.steps = steps
        self.tensors: dict[int, tuple[int, int]] = {}
        self.resident: dict[int, int] = {}

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.global_step not in self.steps:
            return
        gc.collect()
        with warnings.catch_warnings():
            # Objects of other libraries that are deprecated say so when they are looked at.
            warnings.simplefilter("ignore")
            live = [each for each in gc.get_objects() if issubclass(type(each), Tensor)]
        sizes = [each.numel() * each.element_size() for each in live]
        self.tensors[trainer.global_step] = len(sizes), sum(sizes)
        self.resident[trainer.global_step] = resident()


def resident() -> int:
    """Return the memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def probe_of(examples: int) -> list[dict[str, Tensor]]:
    batches = torch.arange(examples).split(examples // 2)
    return [torch.utils.data.default_collate([Examples()[int(index)] for index in batch]) for batch in batches]


class Keeping(GapTrackerCallback):
    """Keep what should be dropped."""

    def __init__(self, *args, **options) -> None:
        super().__init__(*args, **options)
        self.kept = []

    def _write_snapshot(self, trainer, snapshot):
        self.kept.append([torch.as_tensor(snapshot[name]) for name in snapshot])
        return super()._write_snapshot(trainer, snapshot)


def watched(folder, kind, examples: int, steps: tuple[int, ...], **options) -> Weigh:
    weigh = Weigh(steps)
    observer = kind(folder / "run.h5", probe_of(examples), 1, train_gradients=1, ig_steps=1, **options)
    train(CELL, folder, [observer, weigh], max_steps=steps[-1] + 1, limit_val_batches=0)
    return weigh


@pytest.mark.parametrize(("kind", "kept"), [(GapTrackerCallback, False), (Keeping, True)])
def test_no_tensor_stays_behind(tmp_path, kind, kept):
    tensors = watched(tmp_path, kind, 4, (2, 27, 52), faithfulness=20, synergy=20).tensors
    # Optimizer state and the like come with the first step; an epoch has five, and loads no next batch at its end.
    assert (len(set(tensors.values())) > 1) == kept, tensors


@pytest.mark.soak
@pytest.mark.skipif(sys.platform != "linux", reason="reads the memory of the process as Linux shows it")
@pytest.mark.parametrize(("kind", "kept"), [(GapTrackerCallback, False), (Keeping, True)])
def test_the_process_does_not_grow(tmp_path, kind, kept):
    # A snapshot of this probe has a quarter of a megabyte.
    resident = watched(
        tmp_path, kind, 8000, (10, 60), measurements="ablation", baselines="zero", faithfulness=None
    ).resident
    grown = (resident[60] - resident[10]) / 2**20
    assert (grown > 8) == kept, f"{grown:.1f} MiB"
