"""Gradient magnitude of each component, on the probe and in training."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dynamics.components import ComponentMap
from dynamics.components.base import Weights
from dynamics.errors import MeasurementError
from dynamics.measurements.derivatives import derivatives
from dynamics.measurements.interventions import requiring_grad
from dynamics.measurements.scorer import Scorer
from dynamics.measurements.weight_norm import component_norms, parameter_names


def gradient_norm(score: Scorer, components: ComponentMap, weights: Weights = "value_out") -> Tensor:
    """Return ``||grad_{theta_i} L_b||_F / sqrt(|theta_i|)`` for each component i and probe batch b.

    L_b is the mean loss of the batch. The gradient magnitude ``G_i`` of "Hidden Heroes and Gradient Bloats"
    (arXiv 2602.01442) is the mean of this over batches: a mean of norms, not the norm of a mean.

    Args:
        score: The bound objective.
        components: The components.
        weights: Which weights are theta_i: ``"value_out"`` or ``"all"``.

    Returns:
        ``(components, batches)``, nats per unit of weight.

    Raises:
        MeasurementError: If the loss has no gradient, or a component's weights do not enter it; under reentrant
            activation checkpointing.
    """
    names = parameter_names(components, weights)
    parameters = [score.model.get_parameter(name) for name in names]
    columns = []
    with requiring_grad(parameters):
        for batch in score.batches:
            loss = score.differentiable(batch)
            gradients = dict(zip(names, derivatives(loss.mean(), parameters), strict=True))
            unused = [name for name, gradient in gradients.items() if gradient is None]
            if unused:
                raise MeasurementError(
                    f"the loss does not depend on {unused[0]!r}, so it has no gradient there; the component map must "
                    "name weights that the objective uses."
                )
            columns.append(component_norms(components, weights, gradients.__getitem__, per_weight=True))
    return torch.stack(columns, dim=1)


def training_gradient_norm(
    model: nn.Module,
    components: ComponentMap,
    weights: Weights = "value_out",
    optimizer: torch.optim.Optimizer | None = None,
) -> Tensor:
    """Return ``||grad_{theta_i}||_F / sqrt(|theta_i|)`` of the gradient that lies in ``.grad`` now.

    Args:
        model: The model, between its backward pass and the optimizer's step.
        components: The components.
        weights: Which weights are theta_i.
        optimizer: Count only weights that this optimizer is about to change; default: all.

    Returns:
        ``(components,)``, nats per unit of weight; NaN for a component with a weight that has no gradient (frozen) or
        is left to another optimizer.
    """
    owned = None if optimizer is None else {id(p) for group in optimizer.param_groups for p in group["params"]}

    def gradient(name: str) -> Tensor:
        parameter = model.get_parameter(name)
        if parameter.grad is None or (owned is not None and id(parameter) not in owned):
            return torch.full_like(parameter, torch.nan)
        return parameter.grad

    with torch.no_grad():
        return component_norms(components, weights, gradient, per_weight=True)
