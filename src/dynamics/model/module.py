"""The LightningModule around a sequence model: loss, optimizer, and exact match in and out of distribution."""

from __future__ import annotations

import lightning as L
import torch
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor, nn

from dynamics.errors import ModelError
from dynamics.probe import IGNORE, sequence_objective

VALIDATION_SETS = ("id", "ood")
"""Names of the validation data loaders of `SequenceDataModule`, in its order."""


class SequenceModule(L.LightningModule):
    """Train a next-token model with AdamW, linear warm-up and gradient clipping.

    It logs ``train/loss`` and ``train/exact_match`` at every step, and ``id/…`` and ``ood/…`` at validation: ``loss``,
    ``exact_match`` and ``exact_match_length_<n>``. The loss is the mean over examples of the mean cross-entropy (nats)
    over an example's targets.

    Args:
        model: Maps ``input_ids`` to logits, such as `Transformer`.
        learning_rate: Peak learning rate.
        weight_decay: AdamW's decoupled weight decay, on weight matrices; biases and norms are not decayed.
        betas: AdamW's betas.
        warmup_steps: Optimizer steps over which the learning rate rises linearly.
        clip_norm: Largest norm of the whole gradient; ``None`` leaves it to the Trainer.

    Raises:
        ModelError: If a setting is out of range.
    """

    def __init__(
        self,
        model: nn.Module,
        learning_rate: float = 1e-3,
        weight_decay: float = 0.1,
        betas: tuple[float, float] = (0.9, 0.98),
        warmup_steps: int = 200,
        clip_norm: float | None = 1.0,
    ) -> None:
        super().__init__()
        if learning_rate <= 0 or weight_decay < 0 or warmup_steps < 0 or (clip_norm is not None and clip_norm <= 0):
            raise ModelError(
                "learning_rate and clip_norm must be positive, weight_decay and warmup_steps not negative; got "
                f"learning_rate={learning_rate}, weight_decay={weight_decay}, warmup_steps={warmup_steps}, "
                f"clip_norm={clip_norm}."
            )
        self.model = model
        self.learning_rate, self.weight_decay, self.betas = learning_rate, weight_decay, betas
        self.warmup_steps, self.clip_norm = warmup_steps, clip_norm
        self.save_hyperparameters(ignore=["model"], logger=False)

    def forward(self, input_ids: Tensor) -> Tensor:
        """Return the model's logits."""
        return self.model(input_ids)

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        """Return the mean loss of the batch."""
        loss, exact_match = sequence_objective(self.model, batch)
        size = len(loss)
        self.log("train/loss", loss.mean(), prog_bar=True, batch_size=size)
        self.log("train/exact_match", exact_match.float().mean(), batch_size=size)
        return loss.mean()

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int, dataloader_idx: int = 0) -> None:
        """Score one batch of the data loader's split."""
        split = VALIDATION_SETS[dataloader_idx]
        loss, exact_match = sequence_objective(self.model, batch)
        # The targets of a sequence of length n are its n integers and EOS.
        length = int((batch["labels"][0] != IGNORE).sum()) - 1
        values = {
            "loss": loss.mean(),
            "exact_match": exact_match.float().mean(),
            f"exact_match_length_{length}": exact_match.float().mean(),
        }
        for name, value in values.items():
            self.log(
                f"{split}/{name}",
                value,
                prog_bar=(split, name) == ("ood", "exact_match"),
                batch_size=len(loss),
                add_dataloader_idx=False,
            )

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """Return AdamW and its warm-up."""
        parameters = [p for p in self.parameters() if p.requires_grad]
        groups = [
            {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": self.weight_decay},
            {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
        ]
        optimizer = torch.optim.AdamW(groups, lr=self.learning_rate, betas=self.betas)
        warmup = max(1, self.warmup_steps)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / warmup))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip to ``clip_norm`` unless the Trainer was given a value of its own."""
        value = self.clip_norm if gradient_clip_val is None else gradient_clip_val
        self.clip_gradients(optimizer, value, gradient_clip_algorithm)
