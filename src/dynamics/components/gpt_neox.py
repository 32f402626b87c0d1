"""Components of Hugging Face's GPT-NeoX (Pythia): fused queries, keys and values, attention and MLP in parallel."""

from __future__ import annotations

from typing import Any

from torch import nn

from dynamics.components import hugging_face
from dynamics.components.base import Component
from dynamics.components.slices import check_heads, check_outputs, head, join, mlp, projection

NAME = "Hugging Face GPT-NeoX (Pythia)"
FAMILIES = ("gpt_neox",)


def matches(module: nn.Module) -> bool:
    """Say whether ``module`` is a GPTNeoXModel or a language model around it."""
    return hugging_face.stack(module, FAMILIES, "layers") is not None


def maps_to_logits(module: nn.Module) -> bool:
    """Say whether ``module`` has the language model's head."""
    return hugging_face.stack(module, FAMILIES, "layers") != ""


def build(module: nn.Module, path: str) -> list[Component]:
    """Return the heads and MLPs of the model found at ``path``.

    ``query_key_value`` gives the query, key and value of head 0, then those of head 1, and so on.
    """
    inner = hugging_face.stack(module, FAMILIES, "layers") or ""
    decoder = module.get_submodule(inner)
    config: Any = decoder.config
    n_heads: int = config.num_attention_heads
    components: list[Component] = []
    for layer, block in enumerate(decoder.layers):  # type: ignore[arg-type]
        at = join(path, inner, "layers", str(layer))
        width = block.attention.head_size
        fused = projection(block.attention, f"{at}.attention", "query_key_value")
        output = projection(block.attention, f"{at}.attention", "dense")
        check_heads(output, n_heads, width)
        check_outputs(fused, 3 * output.n_in, f"query, key and value of {n_heads} heads of {width}")
        for index in range(n_heads):
            query, key, value = (
                fused.outputs(start, start + width) for start in ((3 * index + part) * width for part in range(3))
            )
            components.append(head(layer, index, width, output, query, key, value))
        components.append(mlp(layer, f"{at}.mlp", block.mlp, ("dense_h_to_4h",), "dense_4h_to_h"))
    return components
