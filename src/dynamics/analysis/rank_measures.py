"""Rank correlation of a part of the components, or beyond what layer and kind explain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import orth

from dynamics.analysis.ranks import centred_ranks_within
from dynamics.store import ComponentInfo

ALL, HEADS, WITHIN_LAYERS, HEADS_WITHIN_LAYERS, PARTIAL = RANK_MEASURES = (
    "all",
    "heads",
    "within layers",
    "within layers, heads",
    "partial",
)
"""The measures; see `rank_measures`."""


@dataclass(frozen=True, eq=False)
class RankMeasure:
    """What is ranked among what, and what is taken off the ranks before they are correlated.

    Attributes:
        name: One of `RANK_MEASURES`.
        chosen: The components that count, ``(chosen,)``.
        ranked_in: Group of each chosen component inside which ranks are taken, ``(chosen,)``.
        basis: Orthonormal columns that are projected out of the centred ranks, ``(chosen, explained)``; ``None``: none.
        exchangeable: Group of each chosen component inside which the null may permute, ``(chosen,)``.
        nothing: Why the measure is undefined where nothing is left of a side: its name comes before these words.
    """

    name: str
    chosen: np.ndarray
    ranked_in: np.ndarray
    basis: np.ndarray | None
    exchangeable: np.ndarray
    nothing: str

    def residuals(self, values: np.ndarray) -> np.ndarray:
        """Return centred ranks less what is projected out of them: ``(..., component)`` to ``(..., chosen)``."""
        everyone = len(self.chosen) == values.shape[-1]
        return self._projected(centred_ranks_within(values if everyone else values[..., self.chosen], self.ranked_in))

    def residuals_of_ranks(self, centred: np.ndarray) -> np.ndarray:
        """Do what `residuals` does for values that `centred_ranks` has ranked among all components already."""
        if len(self.chosen) == centred.shape[-1] and (self.ranked_in == self.ranked_in[0]).all():
            return self._projected(centred)
        return self.residuals(centred)

    def _projected(self, found: np.ndarray) -> np.ndarray:
        return found if self.basis is None else found - (found @ self.basis) @ self.basis.T


def rank_measures(components: Sequence[ComponentInfo]) -> tuple[RankMeasure, ...]:
    """Return the ways to correlate ranks of G and C with less and less of depth and kind in them.

    - ``all``: Spearman's rho of all components, as everywhere else.
    - ``heads``: the same among heads alone: no difference between heads and MLPs is left.
    - ``within layers``: ranks are taken inside each layer, less the layer's mean rank, and the correlation is taken
      over all components together. A larger layer has larger ranks, and weighs more; one whose C are all equal adds to
      the spread of G alone, and pulls rho to 0.
    - ``within layers, heads``: the same among heads alone.
    - ``partial``: ranks among all components, less what a linear regression on layer and on kind (an indicator for
      each, no interaction) explains of them: the partial Spearman correlation given layer and kind.

    The null permutes what each leaves to be exchanged: all components, all heads, components or heads within a layer,
    and for ``partial`` components of one kind within a layer.

    Args:
        components: The components of a run.
    """
    layer = np.array([component.layer for component in components])
    kind = np.array([component.kind != "head" for component in components], dtype=int)
    everyone, heads = np.arange(len(components)), np.flatnonzero(kind == 0)
    same = np.zeros(len(components), dtype=int)
    stratum = 2 * np.unique(layer, return_inverse=True)[1].reshape(-1) + kind

    basis = indicator_basis([layer, kind])

    return (
        RankMeasure(ALL, everyone, same, None, same, "is the same for all components"),
        RankMeasure(HEADS, heads, same[heads], None, same[heads], "does not differ among heads"),
        RankMeasure(WITHIN_LAYERS, everyone, layer, None, layer, "does not differ within any layer"),
        RankMeasure(
            HEADS_WITHIN_LAYERS, heads, layer[heads], None, layer[heads], "does not differ among heads of any layer"
        ),
        RankMeasure(PARTIAL, everyone, same, basis, stratum, "is fully explained by layer and kind"),
    )


def indicator_basis(labels: Sequence[np.ndarray]) -> np.ndarray:
    """Return an orthonormal basis of what indicators of the given labels can explain.

    Args:
        labels: One array for each factor, ``(component,)``: components of one level share a label.

    Returns:
        ``(component, dimensions)``; a constant is always among what it spans.
    """
    columns = [(factor[:, None] == np.unique(factor)).astype(float) for factor in labels]
    return orth(np.hstack(columns))
