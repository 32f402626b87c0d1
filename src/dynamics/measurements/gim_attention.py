"""Fused attention under GIM: PyTorch's fused operator forward, the rules in its backward."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dynamics.errors import MeasurementError
from dynamics.measurements.gim_rules import (
    empty_rows,
    full_precision,
    no_second_derivatives,
    pattern,
    softmax_gradient,
    working_dtype,
)

_SCORES_AT_ONCE = {"cpu": 2**18}
"""How many scores are held at once: what stays in a core's cache, elsewhere 2 ** 26."""


def rows_at_once(device: torch.device, scores_per_row: int) -> int:
    """Return how many rows of scores to hold at once."""
    return max(1, _SCORES_AT_ONCE.get(device.type, 2**26) // max(1, scores_per_row))


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
        no_second_derivatives()
        call.refuse()
        if call.dropout > 0:
            raise MeasurementError(
                f"{call.where} drops attention weights at random (dropout_p={call.dropout:g}), so gim_backward cannot "
                "recompute its pattern; put the model in evaluation mode: model.eval()."
            )
        query, key, value, mask = ctx.saved_tensors
        dtype = working_dtype(gradient.dtype)
        with torch._C.DisableTorchFunction(), full_precision(gradient.device.type):
            q, k, v, g = (tensor.to(dtype) for tensor in (query, key, value, gradient))
            groups = q.shape[-3] // k.shape[-3] if call.grouped else 1
            if groups > 1:
                k, v = k.repeat_interleave(groups, -3), v.repeat_interleave(groups, -3)
            to_q, to_k, to_v, to_mask = _gradients(q, k, v, g, mask, call, ctx.needs_input_grad[3])
            if groups > 1:
                to_k, to_v = (t.unflatten(-3, (-1, groups)).sum(-3) for t in (to_k, to_v))
            results = [
                None if result is None else result.sum_to_size(tensor.shape).to(tensor.dtype)
                for result, tensor in ((to_q, query), (to_k, key), (to_v, value), (to_mask, mask))
            ]
        return (*results, None)


def masked_scores(q: Tensor, k: Tensor, mask: Tensor | None, batch: Sequence[int], start: int | None) -> Tensor:
    """Return the scores of a block of queries, minus infinity where they may not attend.

    Args:
        q: The block's queries, scaled, ``(..., rows, d_head)``.
        k: The keys, ``(..., keys, d_head)``.
        mask: The block's part of the mask, ``(..., rows, keys)``.
        batch: Leading dimensions of the attention's output, such as (examples, heads).
        start: Position of the block's first query if later keys are masked; ``None``: they are not.
    """
    scores = q @ k.mT
    whole = (*batch, *scores.shape[-2:])
    if scores.shape != whole:  # examples that share q and k, told apart by v
        scores = scores.expand(whole).clone()
    if start is not None:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu_(start + 1)
        scores.masked_fill_(later, -torch.inf)
    if mask is not None:
        scores = scores.masked_fill_(~mask, -torch.inf) if mask.dtype == torch.bool else scores.add_(mask)
    return scores


def _gradients(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, mask: Tensor | None, call: FusedCall, want_mask: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Return the gradients at q, k, v and the mask, a block of queries at a time."""
    batch, rows, keys = g.shape[:-2], q.shape[-2], k.shape[-2]
    scale = q.shape[-1] ** -0.5 if call.scale is None else call.scale
    if mask is not None:
        mask = mask.expand(*mask.shape[:-2], rows, keys)
    to_q = q.new_empty((*batch, *q.shape[-2:]))
    to_k, to_v = k.new_zeros((*batch, *k.shape[-2:])), v.new_zeros((*batch, *v.shape[-2:]))
    to_mask = torch.zeros_like(mask, dtype=q.dtype) if mask is not None and want_mask else None
    q, g = q * scale, g * call.share
    block = rows_at_once(q.device, math.prod(batch) * keys)
    for start in range(0, rows, block):
        stop = min(start + block, rows)
        some, seen = slice(start, stop), slice(0, min(stop, keys) if call.causal else keys)
        k_seen, v_seen, q_some, g_some = k[..., seen, :], v[..., seen, :], q[..., some, :], g[..., some, :]
        part = None if mask is None else mask[..., some, seen]
        scores = masked_scores(q_some, k_seen, part, batch, start if call.causal else None)
        # The scores' own memory is used again: at that size, getting memory costs more than arithmetic.
        # Causal rows all see the first key; only a mask of the caller's can leave a row nothing.
        empty = None if mask is None else empty_rows(scores)
        weights = pattern(scores, empty=empty)
        to_v[..., seen, :] += weights.mT @ g_some
        if call.temperature != 1.0:
            weights = pattern(scores.div_(call.temperature), out=weights, empty=empty)
        to_scores = softmax_gradient(torch.matmul(g_some, v_seen.mT, out=scores), weights)
        if to_mask is not None:
            place = to_mask[..., some, seen]
            place += to_scores.sum_to_size(place.shape)
        to_q[..., some, :] = to_scores @ k_seen
        to_k[..., seen, :] += to_scores.mT @ q_some
    # q carries the scale already, and each side of query x key receives its share of what reached the scores.
    return to_q.mul_(call.share * scale), to_k.mul_(call.share), to_v, to_mask
