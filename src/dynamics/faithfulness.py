"""Faithfulness of rankings: how well a model does with only its k highest ranked components, for every k."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from torch import nn

from dynamics.arrays import ArraySpec
from dynamics.errors import MeasurementError
from dynamics.measurements.clean import clean_run
from dynamics.measurements.faithfulness import count_passes, kept_scores
from dynamics.measurements.held_still import held_still
from dynamics.measurements.scorer import Progress, Ticks, bind
from dynamics.probe import Probe
from dynamics.rankings import descending, possible_rankings, ranking_scores, select_rankings
from dynamics.snapshot import Snapshot, to_numpy

SPECS = {
    spec.name: spec
    for spec in (
        ArraySpec(
            "kept_loss",
            ("ranking", "kept", "example"),
            "nat",
            "loss with only the highest ranked components kept, the others mean-ablated together",
        ),
        ArraySpec(
            "kept_exact_match",
            ("ranking", "kept", "example"),
            "1",
            "exact match with only the highest ranked components kept, the others mean-ablated together",
        ),
        ArraySpec(
            "ranking_score",
            ("ranking", "component"),
            "1",
            "what the components are ranked by, in the unit of each ranking; the highest is kept first",
        ),
        ArraySpec(
            "ranking_order",
            ("ranking", "component"),
            "1",
            "the components from the highest ranked to the lowest, as indices along the component axis",
        ),
    )
}


class Faithfulness(Snapshot):
    """The arrays of `take_faithfulness`.

    Attributes:
        rankings: The rankings, in the order of the ``ranking`` axis. The ``kept`` axis counts from 0 to n.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray], snapshot: Snapshot, rankings: tuple[str, ...]) -> None:
        super().__init__(arrays, SPECS, snapshot.components, ("mean",), snapshot.methods, snapshot.batch_sizes)
        self.rankings = rankings


def take_faithfulness(
    model: nn.Module,
    probe: Probe,
    snapshot: Snapshot,
    rankings: str | Iterable[str] | None = None,
    progress: Progress | None = None,
) -> Faithfulness:
    """Keep the k highest ranked components of a model, for every k and ranking, and leave the model as it was.

    All other components are mean-ablated together. From the scores m(k) follow the faithfulness
    ``f(k) = (m(k) - m(0)) / (m(n) - m(0))`` and its areas CPR and CMD (`dynamics.analysis.faithfulness_curve`).

    Cost: at most ``len(rankings) * (n - 1) + 2`` forward passes of the probe.

    Args:
        model: The model, as it was when the snapshot was taken.
        probe: The examples that the snapshot was taken on.
        snapshot: What the components are ranked by.
        rankings: Names of rankings: ``gradient_norm``, the snapshot's attribution methods and their magnitudes such as
            ``|gim|``, ``ablation``, ``random``. Default: all but the magnitudes, as far as the snapshot has them.
        progress: Called as ``progress(done, total)`` after each scored batch.

    Returns:
        ``kept_loss`` and ``kept_exact_match`` ``(ranking, kept, example)``, ``kept`` from 0 to n; ``ranking_score``
        and ``ranking_order`` ``(ranking, component)``. Ties are ranked in the order of the components, NaN last.

    Raises:
        ComponentError: If the snapshot's components do not fit the model.
        MeasurementError: If a ranking is not possible, or the probe is not that of the snapshot.
        ProbeError: If the objective does not return one loss and one match per example.
    """
    components = snapshot.components
    components.check(model)
    names = select_rankings(rankings, possible_rankings(set(snapshot), snapshot.baselines, snapshot.methods))
    scores = ranking_scores(snapshot, names)
    orders = descending(scores)
    total = (1 + count_passes(orders.tolist())) * len(probe)
    score = bind(model, components, probe, Ticks(progress, total))
    with held_still(model):
        clean = clean_run(score, components)
        if clean.sizes != snapshot.batch_sizes:
            raise MeasurementError(
                f"the snapshot was taken on probe batches of {list(snapshot.batch_sizes)} examples, but this probe has "
                f"{list(clean.sizes)}; give the probe of the snapshot."
            )
        same = np.allclose(to_numpy(clean.loss), snapshot["loss"], rtol=1e-3, atol=1e-4, equal_nan=True)
        if not same:
            raise MeasurementError(
                "the snapshot's losses are not those of this model on this probe; give the model as it was when the "
                "snapshot was taken, and the snapshot's probe."
            )
        loss, match = kept_scores(score, components, clean, orders.tolist())
    arrays = {
        "kept_loss": to_numpy(loss),
        "kept_exact_match": to_numpy(match),
        "ranking_score": scores,
        "ranking_order": orders,
    }
    return Faithfulness(arrays, snapshot, names)


def blank_faithfulness(snapshot: Snapshot, rankings: tuple[str, ...]) -> Faithfulness:
    """Return zeros in the shapes and types that `take_faithfulness` will give for such snapshots."""
    n = len(snapshot.components)
    kept, ranked = (len(rankings), n + 1, len(snapshot["loss"])), (len(rankings), n)
    arrays = {
        "kept_loss": np.zeros(kept, snapshot["loss"].dtype),
        "kept_exact_match": np.zeros(kept, bool),
        "ranking_score": np.zeros(ranked),
        "ranking_order": np.zeros(ranked, np.int64),
    }
    return Faithfulness(arrays, snapshot, rankings)
