"""Causal ablation: the model's losses and exact matches with one component's output replaced."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dynamics.components import ComponentMap
from dynamics.measurements.intervened import intervened_scores
from dynamics.measurements.scorer import Scorer

BASELINES = ("mean", "zero")


def ablation(
    score: Scorer, components: ComponentMap, baselines: Sequence[str], means: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Score the probe with each component ablated, one at a time.

    Component i is ablated by putting a constant in place of its output z_i at every position: its mean over all probe
    examples and positions on the unablated model (``"mean"``), or zero (``"zero"``). The causal importance
    ``C_i = score(model) - score(model with i ablated)`` follows from the results and the unablated scores.

    Args:
        score: The bound objective.
        components: The components.
        baselines: Any of ``"mean"``, ``"zero"``.
        means: Mean output of each component, ``(width,)`` each.

    Returns:
        Loss in nats and exact match (bool), both ``(baselines, components, examples)``.
    """
    constants = {"mean": list(means), "zero": [torch.zeros_like(mean) for mean in means]}
    interventions = [{index: value} for baseline in baselines for index, value in enumerate(constants[baseline])]
    loss, match = intervened_scores(score, components, interventions)
    shape = (len(baselines), len(components))
    return loss.unflatten(0, shape), match.unflatten(0, shape)
