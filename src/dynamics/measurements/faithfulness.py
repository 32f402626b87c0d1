"""Faithfulness: the model's scores with only some of its components kept, the others mean-ablated together."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dynamics.components import ComponentMap
from dynamics.errors import MeasurementError
from dynamics.measurements.clean import CleanRun
from dynamics.measurements.interventions import replaced
from dynamics.measurements.scorer import Scorer


def kept_scores(
    score: Scorer, components: ComponentMap, clean: CleanRun, orders: Sequence[Sequence[int]]
) -> tuple[Tensor, Tensor]:
    """Score the probe with only the first k components of an order kept, for every k from 0 to n.

    The outputs of all other components are replaced together, at every position, by their means over the probe on the
    unablated model (joint mean ablation). For k = n nothing is replaced. This is the model behind the faithfulness
    f(k) of the Mechanistic Interpretability Benchmark (MIB, arXiv 2504.13151) at the level of nodes.

    A set of components that several orders keep is run once, so that r orders of n components cost at most
    ``r (n - 1) + 1`` forward passes.

    Args:
        score: The bound objective.
        components: The components.
        clean: The unablated run: the scores for k = n, and the mean outputs.
        orders: Orders of the components, each a permutation of ``0 .. n - 1``, the first to be kept first.

    Returns:
        Loss in nats and exact match (bool), both ``(orders, n + 1, examples)``.

    Raises:
        MeasurementError: If an order is not a permutation of the components, or a module was never called.
    """
    n = len(components)
    for order in orders:
        if sorted(order) != list(range(n)):
            raise MeasurementError(f"an order must name each of the {n} components once; got {list(order)}.")
    kept_sets = [[frozenset(order[:k]) for k in range(n + 1)] for order in orders]
    distinct = list(dict.fromkeys(kept for row in kept_sets for kept in row if len(kept) < n))
    found = {kept: _scores(score, components, clean, kept) for kept in distinct}
    found[frozenset(range(n))] = clean.loss, clean.exact_match
    losses, matches = (
        torch.stack([torch.stack([found[kept][part] for kept in row]) for row in kept_sets]) for part in (0, 1)
    )
    return losses, matches


def _scores(score: Scorer, components: ComponentMap, clean: CleanRun, kept: frozenset[int]) -> tuple[Tensor, Tensor]:
    gone = [index for index in range(len(components)) if index not in kept]
    with torch.no_grad(), replaced(score.model, [components[i] for i in gone], [clean.means[i] for i in gone]):
        losses, matches = zip(*(score(batch) for batch in score.batches), strict=True)
    return torch.cat(losses), torch.cat(matches)


def count_passes(orders: Sequence[Sequence[int]]) -> int:
    """Return how many forward passes of the probe `kept_scores` takes."""
    return len({frozenset(order[:k]) for order in orders for k in range(len(order))})
