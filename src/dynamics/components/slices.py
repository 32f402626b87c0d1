"""What adapters share: linear maps as models store them, and the blocks of them that heads and MLPs own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from dynamics.components.base import Component, Site, WeightSlice
from dynamics.errors import ComponentError

HOW_TO = "pass a ComponentMap of your own (see docs/how-to/component-map.md)"


def join(*names: str) -> str:
    """Return the path that consists of these names, leaving out empty ones."""
    return ".".join(name for name in names if name)


@dataclass(frozen=True)
class Projection:
    """A linear map, stored as ``(out, in)`` (``nn.Linear``) or ``(in, out)`` (the Conv1D of Hugging Face's GPT-2).

    Attributes:
        path: Path of the module.
        n_in: Numbers that it takes.
        n_out: Numbers that it gives.
        out_dim: Dimension of the weight that counts outputs.
    """

    path: str
    n_in: int
    n_out: int
    out_dim: int

    def outputs(self, start: int = 0, stop: int | None = None) -> WeightSlice:
        """Return the block of the weight that makes outputs ``start`` to ``stop``."""
        return WeightSlice(f"{self.path}.weight", self.out_dim, start, stop)

    def inputs(self, start: int, stop: int) -> WeightSlice:
        """Return the block of the weight that reads inputs ``start`` to ``stop``."""
        return WeightSlice(f"{self.path}.weight", 1 - self.out_dim, start, stop)


def projection(module: nn.Module, path: str, name: str) -> Projection:
    """Return the linear map ``name`` of ``module``, which lies at ``path``.

    Raises:
        ComponentError: If it is missing, or keeps its weight in another way than ``nn.Linear`` or Conv1D do.
    """
    found: Any = getattr(module, name, None)
    full = join(path, name)
    if not isinstance(found, nn.Module):
        children = ", ".join(child for child, _ in module.named_children()) or "none"
        raise ComponentError(
            f"{path!r} ({type(module).__name__}) was expected to have a linear layer {name!r}; its submodules are "
            f"{children}. For a model that was changed, {HOW_TO}."
        )
    weight = getattr(found, "weight", None)
    if isinstance(weight, nn.Parameter) and weight.is_floating_point():
        # The shape of a square weight does not tell the two layouts apart; the class does.
        if _is_conv1d(found):
            return Projection(full, weight.shape[0], weight.shape[1], out_dim=1)
        if isinstance(found, nn.Linear) and tuple(weight.shape) == (found.out_features, found.in_features):
            return Projection(full, found.in_features, found.out_features, out_dim=0)
    raise ComponentError(
        f"{full!r} is a {type(found).__name__}, which does not hold its weight as an nn.Linear does; so it is with "
        f"quantised layers, and with layers wrapped by LoRA. To say which weights to measure, {HOW_TO}."
    )


def _is_conv1d(module: nn.Module) -> bool:
    return any(cls.__name__ == "Conv1D" and cls.__module__.startswith("transformers.") for cls in type(module).__mro__)


def check_heads(output: Projection, n_heads: int, width: int) -> None:
    """Raise a `ComponentError` unless the heads' outputs, side by side, are what the output projection takes."""
    if n_heads * width != output.n_in:
        raise ComponentError(
            f"{output.path!r} takes {output.n_in} numbers, but the configuration says {n_heads} heads of {width}. For "
            f"a model whose heads were changed, {HOW_TO}."
        )


def check_outputs(projected: Projection, n_out: int, what: str) -> None:
    """Raise a `ComponentError` unless a projection gives ``n_out`` numbers, which are ``what``."""
    if projected.n_out != n_out:
        raise ComponentError(
            f"{projected.path!r} gives {projected.n_out} numbers, but the configuration says {n_out}: {what}. For a "
            f"model whose heads were changed, {HOW_TO}."
        )


def head(
    layer: int, index: int, width: int, output: Projection, query: WeightSlice, key: WeightSlice, value: WeightSlice
) -> Component:
    """Return an attention head: its slice of the output projection's input, and its blocks of the weights."""
    start, stop = index * width, (index + 1) * width
    out = output.inputs(start, stop)
    return Component(
        layer, "head", index, Site(output.path, "input", start, stop), (value, out), (query, key, value, out)
    )


def mlp(layer: int, path: str, module: nn.Module, into: tuple[str, ...], out: str) -> Component:
    """Return an MLP: the output of ``module``, which lies at ``path``, and the weights of its linear maps by name."""
    last = projection(module, path, out).outputs()
    first = tuple(projection(module, path, name).outputs() for name in into)
    return Component(layer, "mlp", None, Site(path, "output"), (last,), (*first, last))
