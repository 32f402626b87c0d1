"""A training that tells of everything that an observer could change in it, and the set-ups in which it is told.

A new set-up is one line in `CELLS`.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import (
    EarlyStopping,
    GradientAccumulationScheduler,
    ModelCheckpoint,
    StochasticWeightAveraging,
    WeightAveraging,
)
from lightning.pytorch.loggers.logger import Logger
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from dynamics import GapTrackerCallback, Probe
from dynamics.model import Transformer
from dynamics.probe import sequence_objective
from tests.callbacks.trainings import small_data, small_module, small_trainer

VOCAB, LENGTH, STEPS = 11, 5, 8
Step = dict[str, str]
"""By what it is: a digest of one thing at one moment of a training."""


@dataclass(frozen=True)
class Cell:
    """One way to train.

    Attributes:
        module: Options of `Trained`.
        trainer: Options of the Trainer.
        loader: Options of the training data's loader.
        callbacks: Makes the callbacks beside the tracker, given a folder.
        tracker: Options of the tracker, and ``objective``, the probe's.
        compiled: Makes of the module what is trained.
        make: Makes module and data of the options.
    """

    module: Mapping[str, Any] = field(default_factory=dict)
    trainer: Mapping[str, Any] = field(default_factory=dict)
    loader: Mapping[str, Any] = field(default_factory=dict)
    callbacks: Callable[[Path], Sequence[L.Callback]] = lambda _: ()
    tracker: Mapping[str, Any] = field(default_factory=dict)
    compiled: Callable[[Any], Any] = lambda module: module
    make: Callable[[Cell], tuple[Any, Any]] = lambda cell: (Trained(**cell.module), Data(**cell.loader))


def _ema(_: Path) -> list[L.Callback]:
    return [WeightAveraging(multi_avg_fn=get_ema_multi_avg_fn(0.9))]


def _swa(_: Path) -> list[L.Callback]:
    return [StochasticWeightAveraging(swa_lrs=0.01, swa_epoch_start=1, annealing_epochs=1)]


def _saving(folder: Path) -> list[L.Callback]:
    return [
        ModelCheckpoint(folder / "best", monitor="val/loss", save_top_k=2, save_last=True),
        ModelCheckpoint(folder / "steps", every_n_train_steps=3, save_top_k=-1),
    ]


def _stopping(_: Path) -> list[L.Callback]:
    return [EarlyStopping("val/loss", patience=1, min_delta=100.0, check_on_train_epoch_end=False)]


def draw_from_all() -> float:
    """Draw from each global generator."""
    return random.random() + np.random.rand() + torch.rand(()).item()


def _drawing(module: Any, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    draw_from_all()
    return sequence_objective(module.decoder, batch)


def _own(_: Cell) -> tuple[Any, Any]:
    return small_module(dropout=0.2, positions="learned"), small_data()


def _in_place(module: Any) -> Any:
    module.decoder.compile(backend="eager")
    return module


def _wrapped(backend: str) -> Callable[[Any], Any]:
    def wrap(module: Any) -> Any:
        module.decoder = torch.compile(module.decoder, backend=backend)
        return module

    return wrap


CELLS = {
    "float32": Cell(),
    "float64": Cell(trainer={"precision": "64-true"}),
    "bf16-mixed": Cell({"dropout": 0.2}, {"precision": "bf16-mixed", "gradient_clip_val": 0.05}),
    "bf16-true": Cell(trainer={"precision": "bf16-true"}),
    "accumulation": Cell({"dropout": 0.2}, {"accumulate_grad_batches": 3}),
    "accumulation that changes": Cell(callbacks=lambda _: [GradientAccumulationScheduler({0: 1, 1: 3})]),
    "clipping by norm": Cell(trainer={"gradient_clip_val": 0.05}),
    "clipping by value": Cell(trainer={"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"}),
    "dropout": Cell({"dropout": 0.2, "positions": "learned"}),
    "momentum, no schedule": Cell({"optimizer": "sgd"}),
    "L-BFGS": Cell({"optimizer": "lbfgs"}),
    "manual, two optimizers": Cell({"manual": True, "dropout": 0.2}),
    "EMA": Cell({"dropout": 0.2}, callbacks=_ema),
    "SWA": Cell({"dropout": 0.2, "interval": "epoch"}, {"max_epochs": 3, "max_steps": -1}, callbacks=_swa),
    "checkpoints": Cell(trainer={"enable_checkpointing": True}, callbacks=_saving),
    "early stopping": Cell(callbacks=_stopping),
    "sanity validation": Cell({"dropout": 0.2}, {"num_sanity_val_steps": 2}),
    "fresh loader each epoch": Cell(trainer={"reload_dataloaders_every_n_epochs": 1}),
    "activation checkpointing": Cell({"dropout": 0.2, "checkpointing": True}),
    "this project's module and data": Cell(make=_own),
    "an objective that draws": Cell({"dropout": 0.2}, tracker={"objective": _drawing}),
    "a probe() that draws": Cell({"dropout": 0.2}, tracker={"probe": None}),
    "batch norm": Cell({"batch_norm": True}),
    "compiled in place": Cell(compiled=_in_place),
}

SLOW_CELLS = {
    "two workers": Cell({"dropout": 0.2}, loader={"num_workers": 2}),
    "persistent workers": Cell({"dropout": 0.2}, loader={"num_workers": 2, "persistent_workers": True}),
    "compiled, wrapped": Cell(compiled=_wrapped("eager")),
    "compiled by inductor": Cell(compiled=_wrapped("inductor")),
    # Lightning's log, which such a module may call, is more than the compiler of every version can follow.
    "compiled with the module": Cell(
        {"plain": True}, {"limit_val_batches": 0}, compiled=lambda module: torch.compile(module, backend="eager")
    ),
}

_TWO = {"devices": 2, "strategy": "ddp", "max_steps": 6}
DDP_CELLS = {
    "two processes": Cell({"dropout": 0.2}, _TWO),
    "two processes, accumulation": Cell(trainer={**_TWO, "accumulate_grad_batches": 2, "gradient_clip_val": 0.05}),
    "two processes, batch norm": Cell({"batch_norm": True}, _TWO),
    "two processes, bf16-mixed": Cell(trainer={**_TWO, "precision": "bf16-mixed"}),
    "two processes, EMA": Cell(trainer=_TWO, callbacks=_ema),
    "two processes, checkpoints": Cell(trainer={**_TWO, "enable_checkpointing": True}, callbacks=_saving),
}


def failing_objective(call: int, error: BaseException) -> Callable[[Any, dict[str, Tensor]], tuple[Tensor, Tensor]]:
    """Return an objective that raises in one call of it."""
    calls = 0

    def objective(module: Any, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        nonlocal calls
        calls += 1
        scores = sequence_objective(module.decoder, batch)
        if calls == call:
            raise error
        return scores

    return objective


class OverChannels(nn.Module):
    """BatchNorm over the width of a residual stream."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.mT).mT


class Trained(L.LightningModule):
    """A user's own module whose training step draws from each global random number generator."""

    def __init__(
        self,
        dropout: float = 0.0,
        positions: str = "none",
        optimizer: str = "adamw",
        interval: str = "step",
        manual: bool = False,
        checkpointing: bool | None = None,
        reentrant: bool = False,
        batch_norm: bool = False,
        plain: bool = False,
    ) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.decoder = Transformer(
            n_layers=2, n_heads=2, d_model=8, d_ff=16, vocab_size=VOCAB, positions=positions, dropout=dropout
        )
        self.optimizer, self.interval, self.automatic_optimization = optimizer, interval, not manual
        self.plain = plain
        if batch_norm:
            self.decoder.final_norm = nn.Sequential(self.decoder.final_norm, OverChannels(8))
        for block in self.decoder.blocks if checkpointing else ():
            block.forward = _checkpointed(block.forward, reentrant)

    def loss(self, batch: dict[str, Tensor]) -> Tensor:
        logits = self.decoder(batch["input_ids"])
        return nn.functional.cross_entropy(logits.flatten(0, 1).float(), batch["labels"].flatten())

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor | None:
        if self.plain:
            return self.loss(batch) * (1 + 0.1 * torch.rand(()))
        noise = 1 + 0.1 * draw_from_all()
        if self.automatic_optimization:
            loss = self.loss(batch) * noise
            self.log("train/loss", loss, batch_size=len(batch["labels"]))
            return loss
        for optimizer, scheduler in zip(self.optimizers(), self.lr_schedulers(), strict=True):
            optimizer.zero_grad()
            loss = self.loss(batch) * noise
            self.manual_backward(loss)
            optimizer.step()
            scheduler.step()
        self.log("train/loss", loss, batch_size=len(batch["labels"]))
        return None

    def probe(self) -> Probe:
        draw_from_all()
        return small_probe()

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        self.log("val/loss", self.loss(batch), batch_size=len(batch["labels"]))

    def configure_optimizers(self) -> Any:
        if self.optimizer == "sgd":
            return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        if self.optimizer == "lbfgs":
            return torch.optim.LBFGS(self.parameters(), lr=0.1, max_iter=3)
        automatic = self.automatic_optimization
        shares = [part.parameters() for part in ([self] if automatic else self.decoder.blocks)]
        made = [torch.optim.AdamW(share, lr=1e-2, weight_decay=0.3) for share in shares]
        schedules = [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50) for optimizer in made]
        return made, [{"scheduler": schedule, "interval": self.interval} for schedule in schedules]


def _checkpointed(forward: Callable[[Tensor], Tensor], reentrant: bool) -> Callable[[Tensor], Tensor]:
    return lambda x: checkpoint(forward, x, use_reentrant=reentrant)


class Examples(torch.utils.data.Dataset):
    """Twenty examples whose labels follow the tokens."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        tokens = torch.randint(VOCAB, (LENGTH,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens.roll(1)}


class Data(L.LightningDataModule):
    """The examples shuffled by the global generator, five batches an epoch; others to validate on."""

    def __init__(self, **loader: Any) -> None:
        super().__init__()
        self.loader = loader

    def train_dataloader(self) -> DataLoader:
        return DataLoader(Examples(), batch_size=4, shuffle=True, **self.loader)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(Examples(), batch_size=10)


def small_probe(objective: Any = None) -> Probe:
    examples = [Examples()[100 + index] for index in range(5)]
    batches = [torch.utils.data.default_collate(some) for some in (examples[:3], examples[3:])]
    return Probe(batches, objective=objective)


class Memory(Logger):
    """Keep what is logged, apart from the tracker's own."""

    name, version = "memory", "0"

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[int | None, dict[str, float]]] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        if theirs := {name: value for name, value in metrics.items() if not name.startswith("gap/")}:
            self.lines.append((step, theirs))

    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        pass


class Witness(L.Callback):
    """Write down, as each batch begins, all that an observer could have changed since the batch before."""

    def __init__(self) -> None:
        self.steps: list[Step] = []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.steps.append({"the batch": digest(batch), **state(trainer, pl_module)})


def state(trainer: L.Trainer, module: nn.Module) -> Step:
    """Return digests of all that an observer could change, of all that there is in the middle of a training."""
    parameters = dict(module.named_parameters())
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return {
        "torch's random numbers": digest(torch.get_rng_state()),
        "numpy's random numbers": digest(np.random.get_state()),
        "python's random numbers": digest(random.getstate()),
        "weights": digest(parameters),
        "buffers": digest(dict(module.named_buffers())),
        "gradients": digest({name: parameter.grad for name, parameter in parameters.items()}),
        "requires_grad": digest({name: parameter.requires_grad for name, parameter in parameters.items()}),
        "train flags": digest({name: part.training for name, part in module.named_modules()}),
        "hooks": digest([[len(getattr(part, name)) for name in hooks] for part in module.modules()]),
        "gradient hooks": digest([len(parameter._backward_hooks or ()) for parameter in module.parameters()]),
        "attributes": digest([sorted(vars(part)) for part in module.modules()]),
        "optimizers": digest([optimizer.state_dict() for optimizer in trainer.optimizers]),
        "learning rates": digest([c.scheduler.state_dict() for c in trainer.lr_scheduler_configs]),
        "autograd": digest([torch.is_grad_enabled(), torch.is_inference_mode_enabled()]),
        "logged metrics": digest({n: v for n, v in trainer.callback_metrics.items() if not n.startswith("gap/")}),
        "the step": digest([trainer.global_step, trainer.current_epoch]),
    }


def train(
    cell: Cell, folder: Path, observers: Sequence[L.Callback], must_log: bool = True, **options: Any
) -> list[Step]:
    """Train as a cell says, watched by observers, and return what was witnessed at each batch and at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed in (torch.manual_seed, np.random.seed, random.seed):
        seed(3)
    module, data = cell.make(cell)
    trained = cell.compiled(module)
    witness, memory = Witness(), Memory()
    settings = {"max_steps": STEPS * (2 if cell.module.get("manual") else 1), "val_check_interval": 4,
                "check_val_every_n_epoch": None, "num_sanity_val_steps": 0, **cell.trainer, **options}  # fmt: skip
    others = cell.callbacks(folder)
    trainer = small_trainer(folder, [witness, *others, *observers], logger=memory, **settings)
    trainer.fit(trained, data)
    assert memory.lines or not must_log or cell.module.get("plain")
    end = {
        **state(trainer, module),
        "what was logged": digest(memory.lines),
        "files": digest({str(path.relative_to(folder)): _content(path) for path in sorted(folder.rglob("*.ckpt"))}),
        "other callbacks": digest([_without_paths(callback.state_dict()) for callback in others]),
    }
    return [*witness.steps, end]


def tracker(cell: Cell, folder: Path) -> GapTrackerCallback:
    """Return a tracker that measures all that there is, often and cheaply."""
    own = dict(cell.tracker)
    probe = small_probe(own.pop("objective", None))
    settings = {"probe": probe, "schedule": 2, "train_gradients": 1, "faithfulness": 5, "synergy": 6,
                "ig_steps": 2, **own}  # fmt: skip
    return GapTrackerCallback(folder / "run.h5", **settings)


def first_difference(one: Sequence[Step], other: Sequence[Step]) -> str | None:
    """Return what differs first between two trainings, and when; ``None`` if they are the same."""
    for index, (a, b) in enumerate(zip(one, other, strict=False)):
        if different := [what for what in a | b if a.get(what) != b.get(what)]:
            moment = "the end" if index + 1 == max(len(one), len(other)) else f"batch {index}"
            return f"at {moment}: {', '.join(different)}"
    return None if len(one) == len(other) else f"{len(one)} and {len(other)} moments"


def digest(value: Any) -> str:
    """Return a digest of any nest of tensors, arrays and plain values; equal only for equal bits."""
    found = hashlib.sha256()

    def add(value: Any) -> None:
        found.update(type(value).__name__.encode())
        if isinstance(value, Tensor):
            found.update(f"{value.dtype}{tuple(value.shape)}".encode())
            found.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        elif isinstance(value, np.ndarray):
            found.update(f"{value.dtype}{value.shape}".encode() + value.tobytes())
        elif isinstance(value, Mapping):
            for key, item in value.items():
                add(key)
                add(item)
        elif isinstance(value, (list, tuple)):
            found.update(str(len(value)).encode())
            for item in value:
                add(item)
        elif is_dataclass(value):
            add({each.name: getattr(value, each.name) for each in fields(value)})
        elif isinstance(value, float):
            found.update(np.float64(value).tobytes())
        elif value is None or isinstance(value, (str, int, bytes)):
            found.update(repr(value).encode())
        # Functions (of a schedule's lambda, say) have addresses, which are no content.

    add(value)
    return found.hexdigest()


def _content(path: Path) -> Any:
    saved = torch.load(path, weights_only=False)
    return {name: saved.get(name) for name in ("state_dict", "optimizer_states", "lr_schedulers", "loops", "epoch")}


def _without_paths(state: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value for name, value in state.items() if "path" not in name and name not in ("dirpath", "best_k_models")
    }
