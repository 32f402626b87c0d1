"""What tests of model families share: a small probe, and a way to keep models in double precision."""

import lightning as L
import numpy as np
import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader

from dynamics import GapTrackerCallback, Probe, Schedule, open_run


class InDouble(TorchFunctionMode):
    """Norms and rotations of many models step down to single precision; this keeps them in double."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        function = torch.Tensor.double if function is torch.Tensor.float else function
        args = [torch.float64 if arg is torch.float32 else arg for arg in args]
        kwargs = {name: torch.float64 if arg is torch.float32 else arg for name, arg in (kwargs or {}).items()}
        return function(*args, **kwargs)


def probe(vocabulary=7, seed=0, sizes=((2, 4), (1, 3))):
    """Return batches of unequal size and length, in which position 1 is no target."""
    generator = torch.Generator().manual_seed(seed)
    batches = []
    for examples, length in sizes:
        ids, labels = torch.randint(vocabulary, (2, examples, length), generator=generator)
        labels[:, 1] = -100
        batches.append({"input_ids": ids, "labels": labels})
    return Probe(batches)


class Lit(L.LightningModule):
    """A user's module around a network that maps tokens to logits."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def training_step(self, batch, batch_idx):
        ids = batch["input_ids"]
        return F.cross_entropy(self.inner(ids).flatten(0, 1), ids.flatten())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def trains_the_same(build, tmp_path, vocabulary=7):
    """Train a network with the callback and without, and compare the ends bit by bit."""

    def trained(callbacks):
        torch.manual_seed(0)
        module = Lit(build().float()).train()
        L.Trainer(
            max_steps=3,
            accelerator="cpu",
            callbacks=callbacks,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        ).fit(module, DataLoader([{"input_ids": row} for row in torch.randint(vocabulary, (12, 5))], batch_size=4))
        return dict(torch.nn.Module.named_parameters(module))

    tracker = GapTrackerCallback(tmp_path / "run.h5", probe=probe(vocabulary), schedule=Schedule.every(1))
    tracked, alone = trained([tracker]), trained([])
    assert all(torch.equal(tracked[name], alone[name]) for name in alone)
    with open_run(tmp_path / "run.h5") as run:
        assert run.steps.tolist() == [0, 1, 2, 3]
        assert np.isfinite(run["attribution"]).all()
