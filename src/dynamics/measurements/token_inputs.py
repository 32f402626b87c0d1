"""The examples that a token attribution is of: tokens, which of them are real, and what the model is given beside."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dynamics.errors import MeasurementError
from dynamics.probe import PASSED_ON


@dataclass(frozen=True)
class Inputs:
    """Examples as the model takes them.

    Attributes:
        input_ids: ``(examples, positions)``.
        mask: Which positions hold a real token rather than padding, bool ``(examples, positions)``.
        passed: What the model is given beside, by name: the attention mask, if it takes one, and the like.
    """

    input_ids: Tensor
    mask: Tensor
    passed: Mapping[str, Tensor]

    def rows(self, index: Tensor) -> Inputs:
        """Return some examples, repeated or not."""
        passed = {name: value[index] for name, value in self.passed.items()}
        return Inputs(self.input_ids[index], self.mask[index], passed)

    def batch(self, labels: Tensor) -> dict[str, Tensor]:
        """Return them as a batch of a probe."""
        return {"input_ids": self.input_ids, "labels": labels, **self.passed}

    def call(self, network: nn.Module, input_ids: Tensor | None = None) -> Any:
        """Return what the network makes of them, or of other tokens in their place."""
        return network(self.input_ids if input_ids is None else input_ids, **self.passed)

    def column(self, position: int | Tensor) -> Tensor:
        """Return the columns of positions that count real tokens only, ``(examples,)``; -1 is the last.

        Raises:
            MeasurementError: If an example has fewer tokens.
        """
        count = self.mask.sum(-1)
        wanted = torch.as_tensor(position, device=count.device)
        if wanted.is_floating_point() or wanted.dtype == torch.bool or wanted.shape not in ((), count.shape):
            raise MeasurementError(
                f"position must be a whole number, or one for each of the {len(count)} examples; got {position!r}."
            )
        wanted = wanted.expand_as(count)
        if (outside := (wanted >= count) | (wanted < -count)).any():
            example = int(outside.nonzero()[0])
            raise MeasurementError(
                f"example {example} has {int(count[example])} tokens, so it has no position {int(wanted[example])}."
            )
        rank = torch.where(wanted < 0, wanted + count, wanted)
        return (self.mask & (self.mask.cumsum(-1) == rank[:, None] + 1)).int().argmax(-1)


def read_inputs(network: nn.Module, given: Mapping[str, Any], device: torch.device) -> Inputs:
    """Read what a user gave: ``input_ids``, and perhaps `PASSED_ON`.

    Args:
        network: The module that maps tokens to logits. An attention mask that it does not take only tells what is
            padding.
        given: By name; tensors, arrays or lists, ``(examples, positions)`` or ``(positions,)``.
        device: Where the network is.

    Raises:
        MeasurementError: If something has another type or shape, the mask leaves no token of an example, or the
            network does not take what is given.
    """
    ids = _whole(given.get("input_ids"))
    if ids is None or ids.ndim not in (1, 2) or ids.numel() == 0:
        got = given.get("input_ids")
        found = f"{got.dtype} {tuple(got.shape)}" if isinstance(got, (Tensor, np.ndarray)) else type(got).__name__
        raise MeasurementError(
            f"input_ids must be whole numbers, (examples, positions) or (positions,), with at least one; got {found}."
        )
    ids = (ids if ids.ndim == 2 else ids[None]).long().to(device)
    passed = {}
    for name in PASSED_ON:
        if given.get(name) is None:
            continue
        value = _whole(given[name], strictly=False)
        value = value[None] if value is not None and value.ndim == 1 else value
        if value is None or value.shape != ids.shape:
            got = type(given[name]).__name__ if value is None else tuple(value.shape)
            raise MeasurementError(f"{name} must have the shape of input_ids, {tuple(ids.shape)}; got {got}.")
        passed[name] = value.to(device)
    mask = passed["attention_mask"] != 0 if "attention_mask" in passed else torch.ones_like(ids, dtype=torch.bool)
    if not mask.any(-1).all():
        raise MeasurementError(f"attention_mask leaves no token of example {int((~mask.any(-1)).nonzero()[0])}.")
    parameters = inspect.signature(network.forward).parameters.values()
    anything = any(p.kind is p.VAR_KEYWORD for p in parameters)
    unknown = [name for name in passed if not anything and name not in {p.name for p in parameters}]
    for name in unknown:
        if name != "attention_mask":
            raise MeasurementError(f"{type(network).__name__} takes no {name}; leave it out.")
        del passed[name]
    return Inputs(ids, mask, passed)


def _whole(value: Any, strictly: bool = True) -> Tensor | None:
    """Return numbers as a tensor made anew, for autograd refuses those from inference mode; ``None`` for others."""
    if not isinstance(value, (Tensor, np.ndarray, list, tuple)):
        return None
    try:
        tensor = torch.as_tensor(value).detach().clone()
    except (TypeError, ValueError, RuntimeError):
        return None
    whole = not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
    return tensor if whole or not strictly else None
