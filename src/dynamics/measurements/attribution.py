"""Attribution patching: what a gradient says each component contributes to each example."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dynamics.components import ComponentMap
from dynamics.measurements.interventions import reading
from dynamics.measurements.scorer import Scorer

METHODS = ("gradient",)


def attribution(score: Scorer, components: ComponentMap, means: Sequence[Tensor]) -> Tensor:
    """Return ``A_i(e) = sum over positions of (z_i - mean_i) . d log p / d z_i``, log p = minus the example loss.

    This is the first-order estimate of how much log p falls when component i is mean-ablated (attribution patching
    with the mean as the patch).

    Args:
        score: The bound objective.
        components: The components.
        means: Mean output of each component, ``(width,)`` each.

    Returns:
        ``(components, examples)``, nats. Positive: the component supports the answer, so A and C share their sign.
    """
    columns = []
    for batch in score.batches:
        with reading(score.model, components, gradients=True) as outputs:
            loss, _ = score(batch)
        # Examples do not see each other in evaluation mode, so the sum's gradient holds each example's own.
        keys = list(outputs.leaves)
        gradients = dict(zip(keys, torch.autograd.grad(-loss.sum(), [outputs.leaves[k] for k in keys]), strict=True))
        rows = []
        for component, mean in zip(components, means, strict=True):
            site = component.site
            gradient = gradients[site.module, site.point][..., site.start : site.stop]
            rows.append(((outputs.of(component).detach() - mean) * gradient).sum((1, 2)))
        columns.append(torch.stack(rows))
    return torch.cat(columns, dim=1)
