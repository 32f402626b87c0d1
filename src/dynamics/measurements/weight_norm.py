"""Norms over the weights of a component: of the weights themselves, and of any gradient shaped like them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from dynamics.components import Component, ComponentMap
from dynamics.components.base import Weights


def parameter_names(components: Sequence[Component], weights: Weights) -> list[str]:
    """Return the paths of all parameters that hold weights of the components, each once, in order."""
    return list(dict.fromkeys(block.parameter for c in components for block in c.weights(weights)))


def component_norms(
    components: Sequence[Component], weights: Weights, tensor_of: Callable[[str], Tensor], per_weight: bool
) -> Tensor:
    """Return the Frobenius norm over each component's weights of tensors that are shaped like the parameters.

    Args:
        components: The components.
        weights: Which of their weights: ``"value_out"`` or ``"all"``.
        tensor_of: Gives the tensor (a weight or its gradient) for the path of a parameter.
        per_weight: Divide by ``sqrt(|theta_i|)``, so that components of different size compare.

    Returns:
        ``(components,)``, on the device of the tensors; half precision is summed in float32.
    """
    norms = []
    for component in components:
        blocks = [block.of(tensor_of(block.parameter)) for block in component.weights(weights)]
        dtype = torch.float64 if blocks[0].dtype == torch.float64 else torch.float32
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(b, dtype=dtype) for b in blocks]))
        norms.append(norm / sum(b.numel() for b in blocks) ** 0.5 if per_weight else norm)
    return torch.stack(norms)


def weight_norm(model: nn.Module, components: ComponentMap, weights: Weights = "value_out") -> Tensor:
    """Return the Frobenius norm ``||theta_i||_F`` of each component's weights.

    Args:
        model: The model.
        components: Its components.
        weights: ``"value_out"``: of a head its rows of W_V and columns of W_O, of an MLP its output matrix; ``"all"``:
            every weight matrix of the component.

    Returns:
        ``(components,)``.
    """
    with torch.no_grad():
        return component_norms(components, weights, model.get_parameter, per_weight=False)
