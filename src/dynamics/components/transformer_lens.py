"""Components of TransformerLens 4's `TransformerBridge`, built natively or around a Hugging Face model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from dynamics.components.base import Component, Site, WeightSlice
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
    for layer, block in enumerate(module.blocks):
        where = f"{prefix}blocks.{layer}"
        if "attn" in block._modules:
            components += _heads(block.attn, f"{where}.attn", layer, module.cfg.n_heads)
        if "mlp" in block._modules:
            components.append(_mlp(block.mlp, f"{where}.mlp", layer))
    return components


@dataclass(frozen=True)
class _Matrix:
    """A projection's weight: its path, its numbers of inputs and outputs, and the dimension that holds the outputs."""

    path: str
    inputs: int
    outputs: int
    out_dim: int

    def rows(self, start: int = 0, stop: int | None = None) -> WeightSlice:
        """Return the weights into some outputs."""
        return WeightSlice(self.path, self.out_dim, start, stop)

    def columns(self, start: int, stop: int) -> WeightSlice:
        """Return the weights out of some inputs."""
        return WeightSlice(self.path, 1 - self.out_dim, start, stop)


def _matrix(part: nn.Module, path: str, name: str) -> _Matrix | None:
    projection = part._modules.get(name)
    inner = None if projection is None else projection._modules.get("_original_component")
    weight = None if inner is None else inner._parameters.get("weight")
    if weight is None or weight.ndim != 2:
        return None
    # nn.Linear stores (out, in); GPT-2's Conv1D stores (in, out).
    out_dim = 1 if any(cls.__name__ == "Conv1D" for cls in type(inner).__mro__) else 0
    return _Matrix(f"{path}.{name}._original_component.weight", weight.shape[1 - out_dim], weight.shape[out_dim], out_dim)


def _heads(attention: nn.Module, path: str, layer: int, n_heads: int) -> list[Component]:
    query, key, value, output = (_matrix(attention, path, name) for name in ("q", "k", "v", "o"))
    if query is None or key is None or value is None or output is None:
        raise _unknown(attention, path, "linear maps q, k, v and o")
    width = output.inputs // n_heads
    groups = key.outputs // width
    fits = (query.outputs, key.outputs, value.outputs) == (n_heads * width, groups * width, groups * width)
    if not fits or n_heads * width != output.inputs or n_heads % groups:
        raise _unknown(attention, path, f"queries of {n_heads} heads, and keys and values for groups of them")
    heads = []
    for head in range(n_heads):
        start, stop = head * width, (head + 1) * width
        # Query heads that are neighbours share a key and value head.
        first = head * groups // n_heads * width
        shared = key.rows(first, first + width), value.rows(first, first + width)
        mixed = output.columns(start, stop)
        # z passes this point whether the heads are projected together or, with use_attn_result, one by one.
        site = Site(f"{path}.o.hook_in", "output", start, stop)
        heads.append(
            Component(layer, "head", head, site, (shared[1], mixed), (query.rows(start, stop), *shared, mixed))
        )
    return heads


def _mlp(mlp: nn.Module, path: str, layer: int) -> Component:
    into, gate, out = (_matrix(mlp, path, name) for name in ("in", "gate", "out"))
    if into is None or out is None or (gate is None and "gate" in mlp._modules) or hasattr(mlp, "experts"):
        raise _unknown(mlp, path, "linear maps in and out, and perhaps gate")
    inputs = (into.rows(),) if gate is None else (gate.rows(), into.rows())
    return Component(layer, "mlp", None, Site(path, "output"), (out.rows(),), (*inputs, out.rows()))


def _unknown(module: nn.Module, path: str, wanted: str) -> ComponentError:
    parts = ", ".join(f"{name} ({type(part).__name__})" for name, part in module._modules.items() if part is not None)
    return ComponentError(
        f"{path!r} ({type(module).__name__}) of the TransformerBridge is of a kind that is not known: looked for "
        f"{wanted}; it holds {parts}. Pass a ComponentMap of your own (see docs/how-to/component-map.md)."
    )
