"""Components of our own decoder, `dynamics.model.Transformer`."""

from __future__ import annotations

from torch import nn

from dynamics.components.base import Component, Site, WeightSlice
from dynamics.model import Transformer

NAME = "dynamics.model.Transformer"


def matches(module: nn.Module) -> bool:
    """Say whether ``module`` is our decoder."""
    return isinstance(module, Transformer)


def maps_to_logits(module: Transformer) -> bool:
    """Say that our decoder maps ``input_ids`` to logits."""
    return True


def build(module: Transformer, path: str) -> list[Component]:
    """Return the heads and MLPs of the decoder found at ``path``."""
    prefix = f"{path}." if path else ""
    width = module.d_model // module.n_heads
    components: list[Component] = []
    for layer in range(module.n_layers):
        block = f"{prefix}blocks.{layer}"
        for head in range(module.n_heads):
            start, stop = head * width, (head + 1) * width
            # nn.Linear stores (out, in): a head owns rows of the projections into it, columns of the one out of it.
            query, key, value = (
                WeightSlice(f"{block}.attention.{name}.weight", 0, start, stop) for name in ("query", "key", "value")
            )
            output = WeightSlice(f"{block}.attention.output.weight", 1, start, stop)
            site = Site(f"{block}.attention.output", "input", start, stop)
            components.append(Component(layer, "head", head, site, (value, output), (query, key, value, output)))
        into, out = WeightSlice(f"{block}.mlp.input.weight"), WeightSlice(f"{block}.mlp.output.weight")
        components.append(Component(layer, "mlp", None, Site(f"{block}.mlp", "output"), (out,), (into, out)))
    return components
