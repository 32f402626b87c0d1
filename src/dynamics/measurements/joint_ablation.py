"""Joint ablation: the model's losses and exact matches with the outputs of several components replaced at once."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from dynamics.components import ComponentMap
from dynamics.errors import MeasurementError
from dynamics.measurements.clean import CleanRun
from dynamics.measurements.interventions import replaced
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
    found = {frozenset[int](): (clean.loss, clean.exact_match)}
    for members in sets:
        if (gone := frozenset(members)) not in found:
            found[gone] = _scores(score, components, clean, sorted(gone))
    losses, matches = zip(*(found[frozenset(members)] for members in sets), strict=True)
    return torch.stack(losses), torch.stack(matches)


def _scores(score: Scorer, components: ComponentMap, clean: CleanRun, gone: Sequence[int]) -> tuple[Tensor, Tensor]:
    with torch.no_grad(), replaced(score.model, [components[i] for i in gone], [clean.means[i] for i in gone]):
        losses, matches = zip(*(score(batch) for batch in score.batches), strict=True)
    return torch.cat(losses), torch.cat(matches)


def count_passes(sets: Sequence[Collection[int]]) -> int:
    """Return how many forward passes of the probe `joint_ablation` takes."""
    return len({frozenset(members) for members in sets if len(members)})
