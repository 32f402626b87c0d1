"""Components of litgpt's `GPT`."""

from __future__ import annotations

from typing import Any

from torch import nn

from dynamics.components import slices
from dynamics.components.base import Component
from dynamics.components.slices import HOW_TO, check_heads, check_outputs, projection
from dynamics.components.wrappers import unwrapped
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
    for layer, block in enumerate(map(unwrapped, module.transformer.h)):
        where = f"{prefix}transformer.h.{layer}"
        components += _heads(block.attn, f"{where}.attn", layer, module.config)
        components.append(_mlp(block.mlp, f"{where}.mlp", layer))
    return components


def _heads(attention: nn.Module, path: str, layer: int, config: Any) -> list[Component]:
    if not hasattr(attention, "qkv") or not hasattr(attention, "proj"):
        raise _unknown(attention, path, "attention with qkv and proj")
    width, n_heads, groups = config.head_size, config.n_head, config.n_query_groups
    qkv, proj = projection(attention, path, "qkv"), projection(attention, path, "proj")
    check_heads(proj, n_heads, width)
    check_outputs(qkv, (n_heads + 2 * groups) * width, f"{n_heads} queries, {groups} keys and values of {width}")

    def rows(index: int) -> tuple[int, int]:
        return index * width, (index + 1) * width

    heads = []
    for head in range(n_heads):
        # The rows of all queries come first, then of all keys, then of all values; neighbours share the last two.
        shared = head * groups // n_heads
        query, key, value = (qkv.outputs(*rows(index)) for index in (head, n_heads + shared, n_heads + groups + shared))
        heads.append(slices.head(layer, head, width, proj, query, key, value))
    return heads


def _mlp(mlp: nn.Module, path: str, layer: int) -> Component:
    into = tuple(name for name in ("fc", "fc_1", "fc_2") if hasattr(mlp, name))
    if into not in (("fc",), ("fc_1", "fc_2")) or not hasattr(mlp, "proj"):
        raise _unknown(mlp, path, "an MLP with fc, or fc_1 and fc_2, and proj")
    return slices.mlp(layer, path, mlp, into, "proj")


def _unknown(module: nn.Module, path: str, wanted: str) -> ComponentError:
    parts = ", ".join(f"{name} ({type(part).__name__})" for name, part in module.named_children())
    return ComponentError(
        f"{path!r} ({type(module).__name__}) of litgpt's GPT was expected to be {wanted}; its submodules are {parts}. "
        f"For another kind of block, {HOW_TO}."
    )
