"""Attention self-repair: how much the softmax hides by giving the weight of a removed position to the others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dynamics.components import Component, ComponentMap
from dynamics.errors import MeasurementError
from dynamics.measurements.attention_calls import AttentionCall
from dynamics.measurements.gim_rules import working_dtype
from dynamics.measurements.head_attention import LEAVE_OUT, attention_of, watching_attention
from dynamics.measurements.interventions import reading
from dynamics.measurements.scorer import Scorer

THRESHOLD = 0.01
"""Nats that a position must contribute, by default, to be one of the two that make an attention row count."""


def check_threshold(threshold: float) -> float:
    """Return the argument, or raise a `MeasurementError` unless it is a finite number that is not negative."""
    number = isinstance(threshold, (int, float)) and not isinstance(threshold, bool)
    if not number or not math.isfinite(threshold) or threshold < 0:
        raise MeasurementError(f"self_repair_threshold must be a number of nats, 0 or more; got {threshold!r}.")
    return float(threshold)


def self_repair(score: Scorer, components: ComponentMap, threshold: float = THRESHOLD) -> tuple[Tensor, Tensor]:
    """Count the attention rows open to self-repair, and average the interaction of their two largest scores.

    After "attention self-repair" of arXiv 2505.17630. A row is one query position of one head in one example: softmax
    weights ``p_j`` over keys j. With ``g_j = d log p / d p_j`` (log p = minus the example loss, the ordinary gradient
    through everything downstream), position j contributes ``p_j g_j``, signed: what supports the answer is positive. A
    row *counts* if at least two of its positions contribute more than ``threshold``.

    Removing a set S of positions puts their scores at minus infinity, so that the others' weights grow to
    ``p_j^S = p_j / sum of p over the others``. Log p then falls by ``R(S) = sum over j of g_j (p_j - p_j^S)``, exact in
    the softmax and first order in all that follows. With 1, 2 the two largest scores of a row (equal ones: the earlier
    position first), its interaction is::

        I = R({1, 2}) - R({1}) - R({2})

    Positive: both together matter more than one by one, since either repairs the loss of the other. Where nothing is
    left (or what is left has weight 0 in floating point), the row's output becomes 0, and ``R(S) = sum of p_j g_j``.

    Args:
        score: The bound objective.
        components: The components.
        threshold: Nats that a position must contribute.

    Returns:
        The number of rows that count, and their mean interaction in nats (NaN if none counts), both ``(components,
        examples)``, float; NaN for MLPs, and where the contributions are NaN.

    Raises:
        MeasurementError: If there is no head, a head's attention was not seen to run or did not make what is read at
            the head's site, or its weights do not sum to 1; if the loss has no gradient, or a head's output does not
            enter it.
    """
    threshold = check_threshold(threshold)
    places = [i for i, component in enumerate(components) if component.kind == "head"]
    if not places:
        raise MeasurementError(
            f"self_repair needs attention heads, and the component map holds none of them; {LEAVE_OUT}."
        )
    heads = [components[i] for i in places]
    found = torch.cat([_of_batch(score, heads, threshold, batch) for batch in score.batches], -1)
    everything = found.new_full((2, len(components), found.shape[-1]), torch.nan)
    everything[:, places] = found
    return everything[0], everything[1]


def removal_effects(weights: Tensor, slopes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``R({1})``, ``R({2})`` and ``R({1, 2})`` of attention rows, 1 and 2 their two largest scores.

    Args:
        weights: Softmax weights p, ``(..., keys)``, at least two keys.
        slopes: Derivatives g of what is measured with respect to the weights, ``(..., keys)``.

    Returns:
        Falls of what is measured, ``(...)`` each; see `self_repair`.
    """
    first = weights.argmax(-1, keepdim=True)
    top = torch.cat([first, weights.scatter(-1, first, -1.0).argmax(-1, keepdim=True)], -1)
    (p1, p2), (g1, g2) = weights.gather(-1, top).unbind(-1), slopes.gather(-1, top).unbind(-1)
    # The others' weight is summed up: 1 - p1 - p2 has no correct digit where two positions hold nearly everything.
    others = weights.scatter(-1, top, 0.0)
    rest = others.sum(-1)
    # As the weights sum to 1, R(S) is the sum over i in S of p_i times the others' mean of g_i - g_j. Differences of
    # slopes, since what all positions share moves nothing and would drown what they do not share.
    less1, less2 = ((others * (g[..., None] - slopes)).sum(-1) for g in (g1, g2))
    one = _over(p1 * (p2 * (g1 - g2) + less1), p2 + rest, p1 * g1)
    two = _over(p2 * (p1 * (g2 - g1) + less2), p1 + rest, p2 * g2)
    both = _over(p1 * less1 + p2 * less2, rest, p1 * g1 + p2 * g2)
    return one, two, both


def _over(total: Tensor, weight: Tensor, nothing_left: Tensor) -> Tensor:
    return torch.where(weight == 0, nothing_left, total / weight)


def _of_batch(score: Scorer, heads: Sequence[Component], threshold: float, batch: Any) -> Tensor:
    """Return counts and mean interactions, ``(2, heads, examples)``."""
    with watching_attention(score.model) as calls, reading(score.model, heads, gradients=True) as outputs:
        loss = score.differentiable(batch)
    gradients = outputs.gradients(-loss.sum())
    by_call: dict[int, tuple[AttentionCall, list[int], list[int]]] = {}
    for i, component in enumerate(heads):
        call, head = attention_of(component, outputs.of(component).detach(), calls)
        _, members, indices = by_call.setdefault(id(call), (call, [], []))
        members.append(i)
        indices.append(head)
    result = loss.new_empty((2, len(heads), len(loss)), dtype=working_dtype(loss.dtype), requires_grad=False)
    for call, members, indices in by_call.values():
        # At its site a head's output is what the attention made, so the gradient there is the gradient at the output.
        sites = [heads[i].site for i in members]
        arrived = torch.stack([gradients[s.module, s.point][..., s.start : s.stop] for s in sites], 1)
        result[:, members] = _of_call(call, indices, arrived, threshold, heads[members[0]].label).to(result.dtype)
    return result


def _of_call(call: AttentionCall, heads: Sequence[int], gradient: Tensor, threshold: float, label: str) -> Tensor:
    """Return counts and mean interactions of some heads of one attention, ``(2, heads, examples)``."""
    gradient = gradient.to(working_dtype(gradient.dtype))
    count = gradient.new_zeros(gradient.shape[:2])
    total, broken = torch.zeros_like(count), torch.zeros_like(count, dtype=torch.bool)
    for some, weights, values in call.blocks(len(gradient), heads):
        _check_sums(weights, call, label)
        slopes = gradient[:, :, some] @ values.mT
        contributions = weights * slopes
        rows = (contributions > threshold).sum(-1) > 1
        broken |= contributions.isnan().any(-1).any(-1)
        one, two, both = removal_effects(weights[rows], slopes[rows]) if rows.any() else (gradient.new_zeros(0),) * 3
        count += rows.sum(-1)
        total += torch.zeros_like(rows, dtype=total.dtype).masked_scatter_(rows, both - one - two).sum(-1)
    found = torch.stack([count, total / count]).masked_fill_(broken, torch.nan)
    return found.mT


def _check_sums(weights: Tensor, call: AttentionCall, label: str) -> None:
    """Raise unless each row sums to 1, or is 0 (all masked) or NaN."""
    sums = weights.sum(-1)
    precision = torch.finfo(call.sources[0].dtype).eps
    off = ((sums - 1).abs() > 1e-4 + 4 * precision) & (sums != 0)
    if off.any():
        raise MeasurementError(
            f"{label}: the weights of the attention in {call.where} were expected to sum to 1 in every row; got "
            f"{sums[off][0].item():.4g}. Where something is done to them after the softmax (a sink, dropout, a mask, a "
            f"difference), self-repair is not defined; {LEAVE_OUT}."
        )
