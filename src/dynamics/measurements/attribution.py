"""Attribution: what a gradient, ordinary or under the rules of GIM, says each component contributes to each example."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from dynamics.components import ComponentMap
from dynamics.measurements.gim import GIMRules, gim_backward
from dynamics.measurements.interventions import reading
from dynamics.measurements.scorer import Scorer

METHODS = ("gradient", "gim", "ig")
"""Attribution methods: the gradient (attribution patching), the gradient under GIM's rules, integrated gradients."""


def attribution(
    score: Scorer, components: ComponentMap, means: Sequence[Tensor], rules: GIMRules | None = None
) -> Tensor:
    """Return ``A_i(e) = sum over positions of (z_i - mean_i) . d log p / d z_i``, log p = minus the example loss.

    With the ordinary derivative (method ``gradient``) this is the first-order estimate of how much log p falls when
    component i is mean-ablated (attribution patching with the mean as the patch). With ``rules`` (method ``gim``) the
    derivative comes from a backward pass under the rules of GIM (arXiv 2505.17630), which correct for interactions.

    Args:
        score: The bound objective.
        components: The components.
        means: Mean output of each component, ``(width,)`` each.
        rules: The backward rules; ``None``: the ordinary gradient.

    Returns:
        ``(components, examples)``, nats. Positive: the component supports the answer, so A and C share their sign.

    Raises:
        MeasurementError: If the loss has no gradient, or a component's output does not enter it; if a rule finds
            nothing to act on in the model, or something that it cannot reach.
    """
    with nullcontext() if rules is None else gim_backward(score.model, rules):
        columns = [_of_batch(score, components, means, batch) for batch in score.batches]
    return torch.cat(columns, dim=1)


def _of_batch(score: Scorer, components: ComponentMap, means: Sequence[Tensor], batch: Any) -> Tensor:
    with reading(score.model, components, gradients=True) as outputs:
        loss = score.differentiable(batch)
    # Examples do not see each other in evaluation mode, so the sum's gradient holds each example's own.
    gradients = outputs.gradients(-loss.sum())
    rows = []
    for component, mean in zip(components, means, strict=True):
        site = component.site
        gradient = gradients[site.module, site.point][..., site.start : site.stop]
        rows.append(((outputs.of(component).detach() - mean) * gradient).sum((1, 2)))
    return torch.stack(rows)
