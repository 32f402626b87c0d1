"""Gradients as measurements take them: without ``.grad`` or hooks on parameters."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dynamics.errors import MeasurementError


def derivatives(total: Tensor, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return the gradient of a number at each input; ``None`` where the number does not depend on it.

    Nothing is left in ``.grad``, and gradient hooks of parameters (those of data parallelism, say) do not run.

    Raises:
        MeasurementError: If reentrant activation checkpointing stands in the way.
    """
    try:
        found = torch.autograd.grad(total, inputs, allow_unused=True)
    except RuntimeError as error:
        if _reentrant(total):
            raise _refusal() from error
        raise
    # What a reentrant checkpoint ran is no part of the graph, so its gradients are missing rather than refused.
    if any(gradient is None for gradient in found) and _reentrant(total):
        raise _refusal()
    return found


def _reentrant(total: Tensor) -> bool:
    """Say whether a reentrant checkpoint, PyTorch's or one that is called alike, lies behind a number."""
    seen, waiting = set(), [total.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.name() == "CheckpointFunctionBackward":
            return True
        waiting.extend(following for following, _ in node.next_functions)
    return False


def _refusal() -> MeasurementError:
    return MeasurementError(
        "the model uses reentrant activation checkpointing, which hides what it runs from torch.autograd.grad; "
        "checkpoint with use_reentrant=False (in transformers: gradient_checkpointing_enable("
        'gradient_checkpointing_kwargs={"use_reentrant": False})).'
    )
