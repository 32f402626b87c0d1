"""The probe's objective, bound to a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor, nn

from dynamics.errors import ProbeError
from dynamics.probe import Probe


@dataclass(frozen=True)
class Scorer:
    """The objective of a probe bound to a model: scores one batch at a time, on the model's device.

    Attributes:
        model: The model that was handed over; hooks go into it.
        network: What the objective is given: the transformer inside, or the model itself for an objective of one's own.
        probe: The probe.
        tick: Called after each scored batch, for progress.
    """

    model: nn.Module
    network: nn.Module
    probe: Probe
    tick: Callable[[], None]

    @cached_property
    def batches(self) -> tuple[Any, ...]:
        """Return the probe's batches on the model's device."""
        device = next((p.device for p in self.model.parameters()), torch.device("cpu"))
        return tuple(apply_to_collection(b, Tensor, lambda tensor: tensor.to(device)) for b in self.probe.batches)

    def __call__(self, batch: Any) -> tuple[Tensor, Tensor]:
        """Return loss and exact match of each example of a batch."""
        loss, exact_match = self.probe.objective(self.network, batch)
        if loss.ndim != 1 or loss.shape != exact_match.shape or exact_match.dtype != torch.bool:
            raise ProbeError(
                "the objective must return the loss and the exact match of each example, a float tensor (examples,) "
                f"and a bool tensor (examples,); got {loss.dtype} {tuple(loss.shape)} and {exact_match.dtype} "
                f"{tuple(exact_match.shape)}."
            )
        self.tick()
        return loss, exact_match
