"""The backward rules of GIM as arithmetic: on autograd nodes of the real operators, and for fused attention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node

from dynamics.errors import MeasurementError


def _working(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _no_second_derivatives() -> None:
    # The engine enables gradients in a backward pass exactly when create_graph is set.
    if torch.is_grad_enabled():
        raise MeasurementError(
            "the gradients of gim_backward cannot be differentiated again; run the backward pass with "
            "create_graph=False."
        )


def pattern(scores: Tensor, temperature: float, dim: int = -1) -> Tensor:
    """Return ``softmax(scores / temperature)``, exactly 0 where a score is minus infinity, in float32 or float64."""
    weights = torch.softmax(scores.to(_working(scores.dtype)) / temperature, dim)
    # A row with nothing but masked positions is NaN until here.
    return weights.masked_fill_(scores == -torch.inf, 0.0)


def softmax_gradient(gradient: Tensor, weights: Tensor, dim: int = -1) -> Tensor:
    """Return ``p * (g - sum(g * p))``."""
    gradient = gradient.to(weights.dtype)
    return weights * (gradient - (gradient * weights).sum(dim, keepdim=True))


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
            _no_second_derivatives()
            if self.scores._version != self.version:
                raise MeasurementError(
                    "attention scores were changed in place after their softmax, so the temperature rule of "
                    "gim_backward cannot use them; change a copy in the model, or switch the rule off: "
                    "GIMRules(temperature=None)."
                )
            gradient = softmax_gradient(arrived[0], pattern(self.scores, temperature, self.dim), self.dim)
            return (gradient.to(to_scores[0].dtype), *to_scores[1:])

        self.node.register_hook(replace)


@dataclass
class FusedCall:
    """One call of ``scaled_dot_product_attention``, and the rules for its backward.

    Attributes:
        value: What the real operator returned, without its graph.
        scale: Factor of the scores; ``None``: ``1 / sqrt(d_head)``.
        causal: Whether later positions are masked.
        grouped: Whether keys and values are shared by groups of query heads.
        dropout: Dropout probability.
        temperature: T of rule 1 (1: off).
        share: What each side of a product receives: 1/2, or 1 with rule 3 off.
        where: The module, for messages.
        refuse: Raises if the backward must not run where it does (activation checkpointing).
    """

    value: Tensor
    scale: float | None
    causal: bool
    grouped: bool
    dropout: float
    temperature: float
    share: float
    where: str
    refuse: Callable[[], None]


class FusedAttention(torch.autograd.Function):
    """``softmax(scale * q k^T + mask) v``: the real fused operator forward, the rules of GIM backward.

    The scores are computed again from q and k, so the forward pass keeps the memory of the fused operator.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, call: FusedCall) -> Tensor:
        """Return what the fused operator returned, ``(..., heads, queries, d_value)``."""
        ctx.save_for_backward(query, key, value, mask)
        ctx.call = call
        result = call.value
        del call.value
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Return the gradients of q, k, v and of a float mask."""
        call: FusedCall = ctx.call
        _no_second_derivatives()
        call.refuse()
        if call.dropout > 0:
            raise MeasurementError(
                f"{call.where} drops attention weights at random (dropout_p={call.dropout:g}), so gim_backward cannot "
                "recompute its pattern; put the model in evaluation mode: model.eval()."
            )
        query, key, value, mask = ctx.saved_tensors
        dtype = _working(gradient.dtype)
        with torch.autocast(gradient.device.type, enabled=False):
            q, k, v, g = (tensor.to(dtype) for tensor in (query, key, value, gradient))
            groups = q.shape[-3] // k.shape[-3] if call.grouped else 1
            if groups > 1:
                k, v = k.repeat_interleave(groups, -3), v.repeat_interleave(groups, -3)
            scale = q.shape[-1] ** -0.5 if call.scale is None else call.scale
            scores = (q @ k.mT) * scale
            if call.causal:
                later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
                scores = scores.masked_fill(later, -torch.inf)
            if mask is not None:
                is_bool = mask.dtype == torch.bool
                scores = scores.masked_fill(~mask, -torch.inf) if is_bool else scores + mask.to(dtype)
            plain = pattern(scores, 1.0)
            to_v = (plain.mT @ g) * call.share
            to_pattern = (g @ v.mT) * call.share
            weights = plain if call.temperature == 1.0 else pattern(scores, call.temperature)
            to_scores = softmax_gradient(to_pattern, weights)
            to_product = to_scores * (call.share * scale)
            to_q, to_k = to_product @ k, to_product.mT @ q
            if groups > 1:
                to_k, to_v = (t.unflatten(-3, (-1, groups)).sum(-3) for t in (to_k, to_v))
            to_mask = to_scores.sum_to_size(mask.shape).to(mask.dtype) if ctx.needs_input_grad[3] else None
            to_inputs = (
                result.sum_to_size(tensor.shape).to(tensor.dtype)
                for result, tensor in ((to_q, query), (to_k, key), (to_v, value))
            )
        return (*to_inputs, to_mask, None)


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

    def keep(gradient: Tensor) -> None:
        arrived[:] = [gradient]

    def replace(ordinary: Tensor) -> Tensor:
        dtype = _working(ordinary.dtype)
        # With create_graph, x must stay in the graph of this formula: its scale is constant, so x does not appear.
        with torch.no_grad():
            data = x.detach().to(dtype)
            moment = data.var(over, correction=0, keepdim=True) if centred else data.pow(2).mean(over, keepdim=True)
            inverse = (moment + eps).rsqrt()
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
