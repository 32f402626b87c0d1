"""Components of litgpt's `GPT`."""

from __future__ import annotations

from typing import Any

from torch import nn

from dynamics.components.base import Component, Site, WeightSlice
from dynamics.errors import ComponentError

NAME = "litgpt's GPT"


def matches(module: nn.Module) -> bool:
    """Say whether ``module`` is a litgpt model. The package is not imported: it need not be there."""
    gpt = any(cls.__name__ == "GPT" and cls.__module__.startswith("litgpt.") for cls in type(module).__mro__)
    return gpt and isinstance(getattr(module, "transformer", None), nn.ModuleDict)


def maps_to_logits(module: nn.Module) -> bool:
    """Say that litgpt's GPT maps ``input_ids`` to logits."""
    return True


def build(module: Any, path: str) -> list[Component]:
    """Return the heads and MLPs of the model found at ``path``.

    Raises:
        ComponentError: If a block has latent attention, or a mixture of experts.
    """
    prefix = f"{path}." if path else ""
    components: list[Component] = []
    for layer, block in enumerate(module.transformer.h):
        where = f"{prefix}transformer.h.{layer}"
        components += _heads(block.attn, f"{where}.attn", layer, module.config)
        components.append(_mlp(block.mlp, f"{where}.mlp", layer))
    return components


def _weight(module: nn.Module, path: str, name: str) -> str:
    projection = getattr(module, name)
    # LoRA keeps the matrix one level down.
    inner = ".linear" if isinstance(getattr(projection, "linear", None), nn.Linear) else ""
    return f"{path}.{name}{inner}.weight"


def _heads(attention: nn.Module, path: str, layer: int, config: Any) -> list[Component]:
    if not hasattr(attention, "qkv") or not hasattr(attention, "proj"):
        raise _unknown(attention, path, "attention with a fused qkv and a proj")
    width, n_heads, groups = config.head_size, config.n_head, config.n_query_groups
    qkv, proj = _weight(attention, path, "qkv"), _weight(attention, path, "proj")
    heads = []
    for head in range(n_heads):
        start, stop = head * width, (head + 1) * width
        # The rows of all queries come first, then of all keys, then of all values; neighbours share the last two.
        shared = head * groups // n_heads
        query, key, value = (
            WeightSlice(qkv, 0, row * width, (row + 1) * width)
            for row in (head, n_heads + shared, n_heads + groups + shared)
        )
        output = WeightSlice(proj, 1, start, stop)
        site = Site(f"{path}.proj", "input", start, stop)
        heads.append(Component(layer, "head", head, site, (value, output), (query, key, value, output)))
    return heads


def _mlp(mlp: nn.Module, path: str, layer: int) -> Component:
    inputs = [name for name in ("fc", "fc_1", "fc_2") if hasattr(mlp, name)]
    if inputs not in (["fc"], ["fc_1", "fc_2"]) or not hasattr(mlp, "proj"):
        raise _unknown(mlp, path, "an MLP with fc, or fc_1 and fc_2, and a proj")
    out = WeightSlice(_weight(mlp, path, "proj"))
    into = tuple(WeightSlice(_weight(mlp, path, name)) for name in inputs)
    return Component(layer, "mlp", None, Site(path, "output"), (out,), (*into, out))


def _unknown(module: nn.Module, path: str, wanted: str) -> ComponentError:
    parts = ", ".join(f"{name} ({type(part).__name__})" for name, part in module.named_children())
    return ComponentError(
        f"{path!r} ({type(module).__name__}) of litgpt's GPT is of a kind that is not known: looked for {wanted}; it "
        f"holds {parts}. Pass a ComponentMap of your own (see docs/how-to/component-map.md)."
    )
