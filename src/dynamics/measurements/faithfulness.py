"""Faithfulness: the model's scores with only some of its components kept, the others mean-ablated together."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from dynamics.components import ComponentMap
from dynamics.errors import MeasurementError
from dynamics.measurements import joint_ablation as joint
from dynamics.measurements.clean import CleanRun
from dynamics.measurements.scorer import Scorer


def kept_scores(
    score: Scorer, components: ComponentMap, clean: CleanRun, orders: Sequence[Sequence[int]]
) -> tuple[Tensor, Tensor]:
    """Score the probe with only the first k components of an order kept, for every k from 0 to n.

    The outputs of all other components are replaced together, at every position, by their means over the probe on the
    unablated model (`joint_ablation`). For k = n nothing is replaced. This is the model behind the faithfulness
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
    loss, match = joint.joint_ablation(score, components, clean, _left_out(orders))
    return loss.unflatten(0, (len(orders), n + 1)), match.unflatten(0, (len(orders), n + 1))


def count_passes(orders: Sequence[Sequence[int]]) -> int:
    """Return how many forward passes of the probe `kept_scores` takes."""
    return joint.count_passes(_left_out(orders))


def _left_out(orders: Sequence[Sequence[int]]) -> list[Sequence[int]]:
    return [order[k:] for order in orders for k in range(len(order) + 1)]
