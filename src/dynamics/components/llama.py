"""Components of Hugging Face's Llama and of the decoders built like it: separate projections, gated MLPs."""

from __future__ import annotations

from typing import Any

from torch import nn

from dynamics.components import hugging_face
from dynamics.components.base import Component
from dynamics.components.slices import HOW_TO, check_heads, check_outputs, head, join, mlp, projection
from dynamics.errors import ComponentError

NAME = "Hugging Face Llama, Mistral, Qwen2, Qwen3, Gemma, Gemma 2, Gemma 3, OLMo 2, Granite and SmolLM3"
FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "olmo2", "granite", "smollm3")
MIXTURES = ("mixtral", "qwen2_moe", "qwen3_moe", "olmoe")
"""Recognised only to say plainly why they are not measured."""


def matches(module: nn.Module) -> bool:
    """Say whether ``module`` is a bare decoder of a family (``LlamaModel``) or a language model around it."""
    return _stack(module) is not None


def maps_to_logits(module: nn.Module) -> bool:
    """Say whether ``module`` has the language model's head."""
    return _stack(module) != ""


def build(module: nn.Module, path: str) -> list[Component]:
    """Return the heads and MLPs of the model found at ``path``.

    With grouped queries, ``n_heads / n_key_value_heads`` heads in a row read the same key and value head; its rows
    belong to each of them. An MLP's output is what the MLP returns, before the norm that Gemma 2 and 3 and OLMo 2 put
    between it and the residual stream.

    Raises:
        ComponentError: If a layer is not built in this way, as a mixture of experts is not.
    """
    inner = _stack(module) or ""
    decoder = module.get_submodule(inner)
    config: Any = decoder.config
    n_heads: int = config.num_attention_heads
    n_groups: int = getattr(config, "num_key_value_heads", None) or n_heads
    components: list[Component] = []
    for layer, block in enumerate(decoder.layers):  # type: ignore[arg-type]
        at = join(path, inner, "layers", str(layer))
        attention, width = block.self_attn, block.self_attn.head_dim
        query, key, value, output = (
            projection(attention, f"{at}.self_attn", f"{name}_proj") for name in ("q", "k", "v", "o")
        )
        check_heads(output, n_heads, width)
        check_outputs(query, n_heads * width, f"{n_heads} heads of {width}")
        for shared in (key, value):
            check_outputs(shared, n_groups * width, f"{n_groups} key and value heads of {width}")
        for index in range(n_heads):
            group = index * n_groups // n_heads
            rows, shared_rows = ((i * width, (i + 1) * width) for i in (index, group))
            parts = query.outputs(*rows), key.outputs(*shared_rows), value.outputs(*shared_rows)
            components.append(head(layer, index, width, output, *parts))
        sublayer, name = (block.mlp, "mlp") if hasattr(block, "mlp") else (block, "")
        if not isinstance(getattr(sublayer, "down_proj", None), nn.Module):
            children = ", ".join(f"{child} ({type(m).__name__})" for child, m in sublayer.named_children()) or "none"
            raise ComponentError(
                f"layer {layer}: {join(at, name)} ({type(sublayer).__name__}) has no down_proj of its own, as a "
                f"mixture of experts has not; its submodules are {children}. To say what to measure, {HOW_TO}."
            )
        components.append(mlp(layer, f"{at}.mlp", sublayer, ("gate_proj", "up_proj"), "down_proj"))
    return components


def _stack(module: nn.Module) -> str | None:
    return hugging_face.stack(module, (*FAMILIES, *MIXTURES), "layers")
