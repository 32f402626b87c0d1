"""The backward rules of GIM as arithmetic, put on the autograd nodes of PyTorch's own operators."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node

from dynamics.errors import MeasurementError


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype to compute in: double stays double, everything else is single precision."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def full_precision(device: str) -> AbstractContextManager[Any]:
    """Return a context without mixed precision; where there is none, as in most backward passes, it costs nothing."""
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()


def no_second_derivatives() -> None:
    """Raise in a backward pass that is to be differentiated."""
    # The engine enables gradients in a backward pass exactly when create_graph is set.
    if torch.is_grad_enabled():
        raise MeasurementError(
            "the gradients of gim_backward cannot be differentiated again; run the backward pass with "
            "create_graph=False."
        )


def pattern(
    scores: Tensor, temperature: float = 1.0, dim: int = -1, out: Tensor | None = None, empty: Tensor | None = None
) -> Tensor:
    """Return ``softmax(scores / temperature)``, exactly 0 where a score is minus infinity, in float32 or float64.

    Args:
        scores: The scores.
        temperature: The temperature.
        dim: The dimension it runs over.
        out: Memory for the result.
        empty: What `empty_rows` returned; ``None`` if every row is known to see something.
    """
    tempered = scores if temperature == 1.0 else scores / temperature
    weights = torch.softmax(tempered, dim, working_dtype(scores.dtype), out=out)
    return weights if empty is None else weights.masked_fill_(empty, 0.0)


def empty_rows(scores: Tensor, dim: int = -1) -> Tensor:
    """Return where a row holds nothing but masked scores, whose softmax would be NaN."""
    return scores.amax(dim, keepdim=True) == -torch.inf


def softmax_gradient(gradient: Tensor, weights: Tensor, dim: int = -1) -> Tensor:
    """Return ``p * (g - sum(g * p))``."""
    # PyTorch's own operator for the ordinary gradient is just this formula, fused.
    return torch.ops.aten._softmax_backward_data(gradient.to(weights.dtype), weights, dim, weights.dtype)


@dataclass
class Product:
    """A product of two activations, whose gradient is halved for each side once it is known to be one of rule 3.

    Attributes:
        node: Its autograd node; ``None`` if nothing in it requires a gradient.
        summand: Whether the node's first input is not a factor but is added, as in ``baddbmm``.
        halved: Whether that has been done.
    """

    node: Node | None
    summand: bool = False
    halved: bool = False

    def halve(self) -> None:
        """Let each side receive half its gradient from now on."""
        if self.halved or self.node is None:
            return
        self.halved = True

        def scale(gradients: tuple[Tensor | None, ...], *_: Any) -> tuple[Tensor | None, ...]:
            return tuple(g if g is None or (self.summand and i == 0) else g * 0.5 for i, g in enumerate(gradients))

        if self.summand:
            self.node.register_hook(scale)
        else:
            # A product is linear in each side: half of what arrives is half for both.
            self.node.register_prehook(scale)


@dataclass
class Softmax:
    """A softmax over scores that are a product of two activations; attention once it is multiplied with a third.

    Attributes:
        node: Its autograd node.
        scores: What it was applied to, without the graph.
        dim: The dimension it runs over.
        products: The query x key products that the scores descend from.
        tempered: Whether rule 1 has been put in place.
    """

    node: Node | None
    scores: Tensor
    dim: int
    products: tuple[Product, ...]
    tempered: bool = False
    version: int = field(init=False)

    def __post_init__(self) -> None:
        self.version = self.scores._version

    def temper(self, temperature: float) -> None:
        """Replace its backward by rule 1."""
        if self.tempered or self.node is None:
            return
        self.tempered = True

        def replace(to_scores: tuple[Tensor | None, ...], arrived: tuple[Tensor | None, ...]) -> Any:
            if arrived[0] is None or to_scores[0] is None:
                return None
            no_second_derivatives()
            if self.scores._version != self.version:
                raise MeasurementError(
                    "attention scores were changed in place after their softmax, so the temperature rule of "
                    "gim_backward cannot use them; change a copy in the model, or switch the rule off: "
                    "GIMRules(temperature=None)."
                )
            weights = pattern(self.scores, temperature, self.dim, empty=empty_rows(self.scores, self.dim))
            gradient = softmax_gradient(arrived[0], weights, self.dim)
            return (gradient.to(to_scores[0].dtype), *to_scores[1:])

        self.node.register_hook(replace)


def freeze_scale(
    norm: Callable[[Tensor], Tensor], x: Tensor, weight: Tensor | None, dims: int, eps: float, centred: bool
) -> Tensor:
    """Return ``norm(x)``, and send ``x`` the gradient of rule 2: ``(w g - [mean(w g)]) / scale``.

    Args:
        norm: The real LayerNorm or RMSNorm as a function of its input.
        x: Its input.
        weight: Its weight, if any.
        dims: How many trailing dimensions it runs over.
        eps: Its epsilon.
        centred: Whether it subtracts the mean (LayerNorm).
    """
    if not (torch.is_grad_enabled() and x.requires_grad):
        return norm(x)
    # The norm's own backward runs, so its parameters get their ordinary gradients; only what it sends to its input,
    # seen at this alias, is replaced.
    alias = x.view_as(x)
    result = norm(alias)
    arrived: list[Tensor] = []
    over = tuple(range(-dims, 0))
    size = x.shape[-dims:].numel()

    def keep(gradient: Tensor) -> None:
        arrived[:] = [gradient]

    def replace(ordinary: Tensor) -> Tensor:
        dtype = working_dtype(ordinary.dtype)
        with torch._C.DisableTorchFunction(), full_precision(ordinary.device.type):
            with torch.no_grad():  # the scale is a constant, so x has no part in a second derivative either
                data = x.detach().to(dtype)
                if centred:
                    _, _, inverse = torch.native_layer_norm(data, x.shape[-dims:], None, None, eps)
                else:
                    inverse = (torch.linalg.vector_norm(data, dim=over, keepdim=True).square_() / size + eps).rsqrt_()
            gradient = arrived.pop().to(dtype)
            if weight is not None:
                gradient = gradient * weight.to(dtype)
            if centred:
                gradient = gradient - gradient.mean(over, keepdim=True)
            return (gradient * inverse).to(ordinary.dtype)

    result.register_hook(keep)
    alias.register_hook(replace)
    return result


def freeze_operand(node: Node, index: int) -> None:
    """Let nothing of a product's or quotient's gradient reach its operand number ``index``: a norm's scale."""

    def stop(gradients: tuple[Tensor | None, ...], *_: Any) -> tuple[Tensor | None, ...]:
        return tuple(None if i == index else gradient for i, gradient in enumerate(gradients))

    node.register_hook(stop)
