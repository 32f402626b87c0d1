"""Components of TransformerLens 4's `TransformerBridge`, built natively or around a Hugging Face model."""

from __future__ import annotations

from typing import Any

from torch import nn

from dynamics.components.base import Component, Site
from dynamics.components.slices import HOW_TO, Projection, check_outputs, projection
from dynamics.components.wrappers import unwrapped
from dynamics.errors import ComponentError

NAME = "TransformerLens's TransformerBridge"


def matches(module: nn.Module) -> bool:
    """Say whether ``module`` is a bridge with a list of blocks. The package is not imported: it need not be there."""
    bridge = any(
        cls.__name__ == "TransformerBridge" and cls.__module__.startswith("transformer_lens.")
        for cls in type(module).__mro__
    )
    return bridge and isinstance(module._modules.get("blocks"), nn.ModuleList)


def maps_to_logits(module: nn.Module) -> bool:
    """Say that a bridge maps ``input_ids`` to logits."""
    return True


def build(module: Any, path: str) -> list[Component]:
    """Return the heads and MLPs of the bridge found at ``path``.

    The names are the bridge's own, ``blocks.0.attn.o`` and so on; inside them ``_original_component`` holds the
    parameters. Where the original model fuses query, key and value, the bridge computes with three parameters of its
    own, which are taken; the fused one gets no gradient. A block may lack an attention or an MLP.

    Raises:
        ComponentError: If an attention or MLP has another structure, as a mixture of experts has.
    """
    prefix = f"{path}." if path else ""
    components: list[Component] = []
    for layer, block in enumerate(map(unwrapped, module.blocks)):
        where = f"{prefix}blocks.{layer}"
        if "attn" in block._modules:
            components += _heads(block.attn, f"{where}.attn", layer, module.cfg.n_heads)
        if "mlp" in block._modules:
            components.append(_mlp(block.mlp, f"{where}.mlp", layer))
    return components


def _projections(part: nn.Module, path: str, *names: str) -> list[Projection]:
    bridges = [part._modules.get(name) for name in names]
    if any(bridge is None or "_original_component" not in bridge._modules for bridge in bridges):
        parts = ", ".join(f"{name} ({type(child).__name__})" for name, child in part.named_children())
        raise ComponentError(
            f"{path!r} ({type(part).__name__}) of the TransformerBridge was expected to have linear maps "
            f"{', '.join(names)}; its submodules are {parts}. For another kind of block, {HOW_TO}."
        )
    return [
        projection(bridge, f"{path}.{name}", "_original_component")
        for name, bridge in zip(names, bridges, strict=True)
        if bridge is not None
    ]


def _heads(attention: nn.Module, path: str, layer: int, n_heads: int) -> list[Component]:
    query, key, value, output = _projections(attention, path, "q", "k", "v", "o")
    width = output.n_in // n_heads
    groups = key.n_out // width
    check_outputs(query, output.n_in, f"{n_heads} heads of {width}")
    check_outputs(key, groups * width, f"{groups} heads of {width}")
    check_outputs(value, groups * width, f"{groups} heads of {width}")
    heads = []
    for head in range(n_heads):
        start, stop = head * width, (head + 1) * width
        # Query heads that are neighbours share a key and value head.
        first = head * groups // n_heads * width
        rows = query.outputs(start, stop), key.outputs(first, first + width), value.outputs(first, first + width)
        columns = output.inputs(start, stop)
        # z passes this point whether the heads are projected together or, with use_attn_result, one by one.
        site = Site(f"{path}.o.hook_in", "output", start, stop)
        heads.append(Component(layer, "head", head, site, (rows[2], columns), (*rows, columns)))
    return heads


def _mlp(mlp: nn.Module, path: str, layer: int) -> Component:
    names = ("gate", "in", "out") if "gate" in mlp._modules else ("in", "out")
    *into, out = (matrix.outputs() for matrix in _projections(mlp, path, *names))
    return Component(layer, "mlp", None, Site(path, "output"), (out,), (*into, out))
