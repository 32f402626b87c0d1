"""Components of PyTorch's own layers: nn.TransformerEncoder, nn.TransformerDecoder, both in nn.Transformer."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from dynamics.components.base import Component, Site, WeightSlice
from dynamics.components.wrappers import unwrapped

NAME = "nn.TransformerEncoder and nn.TransformerDecoder"

Stack = nn.TransformerEncoder | nn.TransformerDecoder | nn.Transformer


def matches(module: nn.Module) -> bool:
    """Say whether ``module`` is a stack of `nn.TransformerEncoderLayer` or `nn.TransformerDecoderLayer`."""
    if isinstance(module, nn.Transformer):
        return matches(unwrapped(module.encoder)) and matches(unwrapped(module.decoder))
    return isinstance(module, (nn.TransformerEncoder, nn.TransformerDecoder)) and all(
        _is_layer(unwrapped(layer)) for layer in module.layers
    )


def _is_layer(layer: nn.Module) -> bool:
    if not isinstance(layer, (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)):
        return False
    own = (layer.linear1, layer.linear2)
    attentions = [module for _, module in _attentions(layer)]
    return all(isinstance(m, nn.Linear) for m in own) and all(isinstance(m, nn.MultiheadAttention) for m in attentions)


def maps_to_logits(module: Stack) -> bool:
    """Say that a stack maps hidden states to hidden states; the network around it gives the logits."""
    return False


def build(module: Stack, path: str) -> list[Component]:
    """Return the heads and MLPs of the stack found at ``path``.

    In a decoder's layers the heads of the self-attention come first; those of the cross-attention are numbered on
    after them. In an `nn.Transformer` the decoder's layers are numbered on after the encoder's.
    """
    prefix = f"{path}." if path else ""
    if isinstance(module, nn.Transformer):
        stacks = [(f"{prefix}{name}.", unwrapped(getattr(module, name))) for name in ("encoder", "decoder")]
    else:
        stacks = [(prefix, module)]
    layers = [
        (f"{inner}layers.{i}", unwrapped(layer)) for inner, stack in stacks for i, layer in enumerate(stack.layers)
    ]
    components: list[Component] = []
    for index, (block, layer) in enumerate(layers):
        components += _layer(layer, block, index)
    return components


def _attentions(layer: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for name in ("self_attn", "multihead_attn"):
        if hasattr(layer, name):
            yield name, getattr(layer, name)


def _layer(layer: nn.Module, block: str, index: int) -> list[Component]:
    components: list[Component] = []
    positions_first = False
    for name, attention in _attentions(layer):
        assert isinstance(attention, nn.MultiheadAttention)
        positions_first = not attention.batch_first
        components += _heads(attention, f"{block}.{name}", index, first=len(components))
    into, out = WeightSlice(f"{block}.linear1.weight"), WeightSlice(f"{block}.linear2.weight")
    site = Site(f"{block}.linear2", "output", positions_first=positions_first)
    components.append(Component(index, "mlp", None, site, (out,), (into, out)))
    return components


def _heads(attention: nn.MultiheadAttention, path: str, layer: int, first: int) -> list[Component]:
    width, heads = attention.head_dim, []
    for head in range(attention.num_heads):
        start, stop = head * width, (head + 1) * width
        if attention.in_proj_weight is not None:
            # One matrix holds the rows of all queries, then of all keys, then of all values.
            offsets = (0, attention.embed_dim, 2 * attention.embed_dim)
            query, key, value = (
                WeightSlice(f"{path}.in_proj_weight", 0, offset + start, offset + stop) for offset in offsets
            )
        else:
            query, key, value = (WeightSlice(f"{path}.{name}_proj_weight", 0, start, stop) for name in "qkv")
        output = WeightSlice(f"{path}.out_proj.weight", 1, start, stop)
        # PyTorch does not call this module, so measurements/multihead.py lets it.
        site = Site(f"{path}.out_proj", "input", start, stop)
        heads.append(Component(layer, "head", first + head, site, (value, output), (query, key, value, output)))
    return heads
