"""Small trainings to be tracked."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import nn

from dynamics import GapTrackerCallback
from dynamics.model import SequenceModule, Transformer
from dynamics.tasks import SequenceDataModule


def small_data(**options: Any) -> SequenceDataModule:
    settings: dict[str, Any] = {
        "task": "sort",
        "batch_size": 8,
        "probe_batches": 3,
        "probe_batch_size": 4,
        "val_batches": 1,
    }
    return SequenceDataModule(**{**settings, **options})


def small_module(**options: Any) -> SequenceModule:
    torch.manual_seed(5)
    model = Transformer(**{"n_layers": 2, "n_heads": 2, "d_model": 16, "d_ff": 32, **options})
    return SequenceModule(model, learning_rate=1e-2, warmup_steps=3)


def small_trainer(folder: Path, callbacks: list[L.Callback], **options: Any) -> L.Trainer:
    settings: dict[str, Any] = {
        "max_steps": 6,
        "accelerator": "cpu",
        "devices": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "log_every_n_steps": 1,
        "default_root_dir": folder,
    }
    return L.Trainer(callbacks=callbacks, **{**settings, **options})


def tracked(folder: Path, module: L.LightningModule | None = None, data: Any = None, **options: Any):
    """Train with a tracker; options named as its parameters go to it, the others to the trainer."""
    tracker_names = {
        "path", "probe", "schedule", "measurements", "train_gradients", "weights", "baselines", "overwrite",
        "log_metrics", "components", "metadata", "rules", "methods", "self_repair_threshold",
    }  # fmt: skip
    own = {name: options.pop(name) for name in tracker_names & set(options)}
    tracker = GapTrackerCallback(**{"path": folder / "run.h5", "schedule": 2, "train_gradients": 1, **own})
    trainer = small_trainer(folder, [tracker, *options.pop("callbacks", [])], **options)
    module = small_module() if module is None else module
    trainer.fit(module, small_data() if data is None else data)
    return tracker, trainer, module


class BareModule(L.LightningModule):
    """A user's own module around our decoder: no forward, no probe, another attribute name."""

    def __init__(self, decoder: nn.Module | None = None) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.decoder = Transformer(n_layers=2, n_heads=2, d_model=16, d_ff=32) if decoder is None else decoder

    def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
        logits = self.decoder(batch["input_ids"])
        return nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def csv_logger(folder: Path) -> CSVLogger:
    return CSVLogger(folder, name="logs", version="0")


def read_log(folder: Path) -> list[dict[str, str]]:
    """What the logger of `csv_logger` wrote, line by line, without empty cells."""
    with (folder / "logs" / "0" / "metrics.csv").open() as file:
        return [{name: value for name, value in line.items() if value} for line in csv.DictReader(file)]
