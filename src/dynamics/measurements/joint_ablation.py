"""Joint ablation: the model's losses and exact matches with the outputs of several components replaced at once."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from dynamics.components import ComponentMap
from dynamics.errors import MeasurementError
from dynamics.measurements.clean import CleanRun
from dynamics.measurements.intervened import intervened_scores
from dynamics.measurements.scorer import Scorer


def joint_ablation(
    score: Scorer, components: ComponentMap, clean: CleanRun, sets: Sequence[Collection[int]]
) -> tuple[Tensor, Tensor]:
    """Score the probe with sets of components ablated, each set together.

    The outputs of a set's components are replaced, at every position, by their means over the probe on the unablated
    model (joint mean ablation). The empty set is the unablated model, which is not run again; a set that comes twice
    is run once.

    Args:
        score: The bound objective.
        components: The components.
        clean: The unablated run: the scores of the empty set, and the mean outputs.
        sets: Indices of the components of each set.

    Returns:
        Loss in nats and exact match (bool), both ``(sets, examples)``.

    Raises:
        MeasurementError: If a set names what is no component, or a module was never called.
    """
    n = len(components)
    for members in sets:
        if unknown := sorted(set(members) - set(range(n))):
            raise MeasurementError(
                f"a set must hold indices from 0 to {n - 1}, one of a component each; got {unknown}."
            )
    wanted = [frozenset(members) for members in sets]
    run = [gone for gone in dict.fromkeys(wanted) if gone]
    found = {frozenset[int](): (clean.loss, clean.exact_match)}
    if run:
        interventions = [{index: clean.means[index] for index in sorted(gone)} for gone in run]
        found.update(zip(run, zip(*intervened_scores(score, components, interventions), strict=True), strict=True))
    losses, matches = zip(*(found[gone] for gone in wanted), strict=True)
    return torch.stack(losses), torch.stack(matches)


def count_passes(sets: Sequence[Collection[int]]) -> int:
    """Return how many forward passes of the probe `joint_ablation` takes."""
    return len({frozenset(members) for members in sets if len(members)})
