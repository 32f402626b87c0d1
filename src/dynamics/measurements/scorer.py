"""The probe's objective, bound to a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor, nn

from dynamics.components import ComponentMap
from dynamics.errors import DynamicsError, MeasurementError, ProbeError
from dynamics.probe import Probe

Progress = Callable[[int, int], None]
"""``progress(done, total)``, in scored batches."""


class Ticks:
    """Counts scored batches, and tells a progress display of each.

    Attributes:
        total: How many there will be.
    """

    def __init__(self, progress: Progress | None, total: int = 0) -> None:
        self.total = total
        self._progress, self._done = progress, 0

    def __call__(self) -> None:
        """Count one."""
        self._done += 1
        if self._progress is not None:
            self._progress(self._done, self.total)


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
        try:
            scores = self.probe.objective(self.network, batch)
        except NotImplementedError as error:
            raise ProbeError(
                f"the objective called something that is not implemented ({error}). It was given the "
                f"{type(self.network).__name__}; if that lacks forward, let the objective call the model inside it, or "
                "name that model as the root of the component map."
            ) from error
        except DynamicsError:
            raise
        except (TypeError, IndexError, KeyError, AttributeError, ValueError) as error:
            if self.probe.custom_objective is not None:
                raise
            name = type(self.network).__name__
            raise ProbeError(
                f"the default objective called {name} with the probe's input_ids, and that failed: "
                f"{type(error).__name__}: {error}. Does {name} map input_ids to logits, and know every token of the "
                "probe? If not, pass Probe(batches, objective=...), or name the network inside it as the root of "
                "the component map."
            ) from error
        if not _fits(scores):
            raise ProbeError(
                "the objective must return the loss and the exact match of each example, a float tensor (examples,) "
                f"and a bool tensor (examples,); got {_describe(scores)}."
            )
        self.tick()
        return scores

    def differentiable(self, batch: Any) -> Tensor:
        """Return the loss of each example of a batch, and make sure that autograd can go back from it."""
        loss, _ = self(batch)
        if not loss.requires_grad:
            raise MeasurementError(
                "the loss that the objective returned has no gradient; it must depend on the model's output, without "
                "detach() and outside torch.no_grad()."
            )
        return loss


def bind(model: nn.Module, components: ComponentMap, probe: Probe, tick: Callable[[], None]) -> Scorer:
    """Return the scorer of a probe on a model; the default objective is given the transformer inside it."""
    network = components.network(model) if probe.custom_objective is None else model
    return Scorer(model, network, probe, tick)


def _fits(scores: Any) -> bool:
    if not isinstance(scores, tuple) or len(scores) != 2 or not all(isinstance(score, Tensor) for score in scores):
        return False
    loss, exact_match = scores
    return (
        loss.ndim == 1
        and loss.shape == exact_match.shape
        and loss.is_floating_point()
        and exact_match.dtype == torch.bool
    )


def _describe(scores: Any) -> str:
    if not isinstance(scores, tuple):
        return f"a {type(scores).__name__}"
    if len(scores) != 2:
        return f"a tuple of {len(scores)}"
    return " and ".join(
        f"{score.dtype} {tuple(score.shape)}" if isinstance(score, Tensor) else f"a {type(score).__name__}"
        for score in scores
    )
