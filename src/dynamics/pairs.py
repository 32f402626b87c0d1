"""Pair interactions: what ablating two components together costs beyond ablating each of them alone."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pandas as pd
from torch import nn

from dynamics.components import ComponentMap, find_components
from dynamics.errors import MeasurementError
from dynamics.measurements.scorer import Progress
from dynamics.probe import Probe
from dynamics.synergy import SCORES, ablate_sets


@dataclass(frozen=True, eq=False)
class PairInteractions:
    """The result of `pair_interactions`; each dictionary holds one array for ``"exact_match"`` and one for ``"loss"``.

    Attributes:
        components: The components, in the order of the axes.
        importance: ``C_i``, ``(component,)``: accuracy lost, or nats of loss gained.
        joint: ``C_ij``, ``(component, component)``, symmetric; the diagonal is ``C_i``.
        interaction: ``I_ij = C_ij - C_i - C_j``, ``(component, component)``, symmetric; NaN on the diagonal. Positive:
            the two stand in for each other (OR), so that each seems to matter less than it does. Negative: the loss of
            one makes the other useless (AND), so that the damage is counted twice.
    """

    components: ComponentMap
    importance: dict[str, np.ndarray]
    joint: dict[str, np.ndarray]
    interaction: dict[str, np.ndarray]

    def table(self) -> pd.DataFrame:
        """Return one row per pair and score: ``first, second, score, first_c, second_c, joint_c, interaction``."""
        labels = self.components.labels
        rows = [
            (
                labels[i],
                labels[j],
                score,
                self.importance[score][i],
                self.importance[score][j],
                self.joint[score][i, j],
                self.interaction[score][i, j],
            )
            for score in SCORES
            for i, j in combinations(range(len(labels)), 2)
        ]
        names = ["first", "second", "score", "first_c", "second_c", "joint_c", "interaction"]
        return pd.DataFrame(rows, columns=names).astype(dict.fromkeys(names[:3], "str"))


def pair_interactions(
    model: nn.Module, probe: Probe, components: ComponentMap | None = None, progress: Progress | None = None
) -> PairInteractions:
    """Ablate every pair of components of a model together, and leave the model as it was.

    ``I_ij = C_ij - C_i - C_j``, with C the causal importance by joint mean ablation, for the accuracy and for minus
    the loss.

    Cost: ``n (n - 1) / 2 + n + 1`` forward passes of the probe: 211 for 20 components, 12,881 for 160. For fewer,
    give a component map of the components of interest.

    Args:
        model: The model, or a module that holds it.
        probe: The examples.
        components: The components; default: what `find_components` finds.
        progress: Called as ``progress(done, total)`` after each scored batch.

    Returns:
        The interactions, in float64.

    Raises:
        ComponentError: If the components are not found or do not fit the model.
        MeasurementError: If there are fewer than two components.
        ProbeError: If the objective does not return one loss and one match per example.
    """
    components = find_components(model) if components is None else components
    components.check(model)
    n = len(components)
    if n < 2:
        raise MeasurementError(f"a pair takes 2 components; got {n}.")
    pairs = list(combinations(range(n), 2))
    sets = [*((i,) for i in range(n)), *pairs]
    clean, loss, match = ablate_sets(model, probe, components, sets, progress)
    lost = {
        "exact_match": clean.exact_match.cpu().numpy().astype(float) - match.astype(float),
        "loss": loss.astype(float) - clean.loss.double().cpu().numpy(),
    }
    found = [_interactions(values, n, np.array(pairs).T) for values in lost.values()]
    importance, joint, interaction = (dict(zip(SCORES, arrays, strict=True)) for arrays in zip(*found, strict=True))
    return PairInteractions(components, importance, joint, interaction)


def _interactions(lost: np.ndarray, n: int, pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return C, joint C and I from what each example loses, ``(n singles and the pairs, example)``."""
    single, double = lost[:n], lost[n:]
    joint, interaction = np.diag(single.mean(-1)), np.full((n, n), np.nan)
    i, j = pairs
    joint[i, j] = joint[j, i] = double.mean(-1)
    # The mean of the differences, not the difference of the means: two that do not touch each other give exactly 0.
    interaction[i, j] = interaction[j, i] = (double - single[i] - single[j]).mean(-1)
    return single.mean(-1), joint, interaction
