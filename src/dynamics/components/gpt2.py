"""Components of Hugging Face's GPT-2: fused queries, keys and values, weights stored as ``(in, out)``."""

from __future__ import annotations

from torch import nn

from dynamics.components import hugging_face
from dynamics.components.base import Component
from dynamics.components.slices import HOW_TO, check_heads, check_outputs, head, join, mlp, projection
from dynamics.errors import ComponentError

NAME = "Hugging Face GPT-2"
FAMILIES = ("gpt2",)


def matches(module: nn.Module) -> bool:
    """Say whether ``module`` is a GPT2Model or a language model around it."""
    return hugging_face.stack(module, FAMILIES, "h") is not None


def maps_to_logits(module: nn.Module) -> bool:
    """Say whether ``module`` has the language model's head."""
    return hugging_face.stack(module, FAMILIES, "h") != ""


def build(module: nn.Module, path: str) -> list[Component]:
    """Return the heads and MLPs of the model found at ``path``.

    ``c_attn`` gives all heads' queries, then all keys, then all values.
    """
    inner = hugging_face.stack(module, FAMILIES, "h") or ""
    decoder = module.get_submodule(inner)
    components: list[Component] = []
    for layer, block in enumerate(decoder.h):  # type: ignore[arg-type]
        at = join(path, inner, "h", str(layer))
        if hasattr(block, "crossattention"):
            raise ComponentError(
                f"{at!r} has cross-attention too, whose heads no label names. To choose what to measure, {HOW_TO}."
            )
        n_heads, width = block.attn.num_heads, block.attn.head_dim
        fused = projection(block.attn, f"{at}.attn", "c_attn")
        output = projection(block.attn, f"{at}.attn", "c_proj")
        check_heads(output, n_heads, width)
        check_outputs(fused, 3 * output.n_in, f"query, key and value of {n_heads} heads of {width}")
        for index in range(n_heads):
            query, key, value = (
                fused.outputs(start, start + width)
                for start in (part * output.n_in + index * width for part in range(3))
            )
            components.append(head(layer, index, width, output, query, key, value))
        components.append(mlp(layer, f"{at}.mlp", block.mlp, ("c_fc",), "c_proj"))
    return components
