"""Which components, and which layers, are Heroes or Bloats in how many runs, against chance."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from dynamics.analysis.majority_chance import at_least, majority_chance
from dynamics.analysis.many_runs import Windows, interval_row, interval_table, read_windows, seed_interval
from dynamics.analysis.roles import ALIGNED, BLOAT, HERO
from dynamics.analysis.timeline import Timeline
from dynamics.analysis.windows import Window
from dynamics.errors import AnalysisError
from dynamics.store import Run

MIXED = "mixed"
"""Of a component that has no role in more than half of a run's snapshots."""

PERMUTATIONS = 2000
_CHUNK = 4_000_000


def majority_roles(roles: np.ndarray) -> np.ndarray:
    """Return the role that each component has in more than half of the snapshots, or ``"mixed"``.

    Args:
        roles: What `classify_roles` gives, ``(step, component)``.

    Returns:
        Text, ``(component,)``.
    """
    result = np.full(roles.shape[1], MIXED, dtype="<U9")
    for role in (HERO, BLOAT, ALIGNED):
        result[(roles == role).mean(0) > 0.5] = role
    return result


def role_frequency(
    runs: Sequence[Run],
    window: Window = "paper",
    baseline: str = "mean",
    score: str = "exact_match",
    threshold: float | None = None,
) -> pd.DataFrame:
    """Return in how many runs each component is a Hero, and a Bloat.

    A run counts a component for the role that it has in **more than half** of the run's snapshots in the window, and
    as ``mixed`` if there is none. Runs without a snapshot in the window do not count.

    By luck, a component is a Hero in a run with the probability that two components drawn at random, one for its G and
    one for its C, make a Hero at most snapshots: with a gap ``rank(G_i) - rank(C_j) <= -tau``. So what is alike from
    snapshot to snapshot, and ties, stay as they are, as in `roles_by_layer`; runs are independent. The p-value is the
    probability that at least so many runs have the role then, from the runs' own probabilities, without sampling. For n
    components there are 2 n p-values: multiply by 2 n before believing one. And a component may be beyond luck for its
    depth alone.

    Args:
        runs: Open runs.
        window: Accuracies on the probe of the snapshots that count: a name among `WINDOWS`, or least and largest.
        baseline: What ablated outputs were replaced by: ``"mean"`` or ``"zero"``.
        score: ``"exact_match"`` or ``"loss"``: what C is measured in.
        threshold: Smallest gap of a hero or bloat, in ranks; default ``round(0.3 n)``.

    Returns:
        One row per component: ``component, layer, kind, head, score, runs, heroes, bloats, aligned, mixed`` (numbers
        of runs), ``hero_share`` and ``bloat_share`` of the runs; ``chance``: the share that luck alone gives at a
        single snapshot; ``hero_chance`` and ``bloat_chance``: the share of runs that it gives; and ``hero_p_value``,
        ``bloat_p_value`` (one-sided: at least so many runs) beside ``hero_least_p_value`` and ``bloat_least_p_value``,
        which all of the runs would give: no smaller one can come of so few.

    Raises:
        AnalysisError: If no run has a snapshot in the window, one lacks what is needed, or their components differ.
    """
    return frequency_rows(read_windows(runs, window, baseline, score, threshold), score)


def frequency_rows(found: Windows, score: str) -> pd.DataFrame:
    """Return the rows of `role_frequency` for what `read_windows` gives."""
    roles = np.stack([majority_roles(timeline.roles[inside]) for _, timeline, inside in found])
    components, n_runs = found[0][1].components, len(found)
    counts = {role: (roles == role).sum(0) for role in (HERO, BLOAT, ALIGNED, MIXED)}
    table = pd.DataFrame(
        {
            "component": [component.label for component in components],
            "layer": [component.layer for component in components],
            "kind": [component.kind for component in components],
            "head": pd.array([component.head for component in components], dtype="Int64"),
            "score": score,
            "runs": n_runs,
            "heroes": counts[HERO],
            "bloats": counts[BLOAT],
            "aligned": counts[ALIGNED],
            "mixed": counts[MIXED],
            "hero_share": counts[HERO] / n_runs,
            "bloat_share": counts[BLOAT] / n_runs,
            "chance": found[0][1].chance,
        }
    )
    by_luck = [majority_chance(timeline, inside) for _, timeline, inside in found]
    for role in (HERO, BLOAT):
        chances = [chance[role] for chance in by_luck]
        table[f"{role}_chance"] = np.mean(chances)
        p_values = at_least(chances)
        table[f"{role}_p_value"], table[f"{role}_least_p_value"] = p_values[counts[role]], p_values[-1]
    return table.astype({"component": "str", "kind": "str", "score": "str"})


def roles_by_layer(
    runs: Sequence[Run],
    window: Window = "paper",
    baseline: str = "mean",
    score: str = "exact_match",
    threshold: float | None = None,
    confidence: float = 0.95,
    permutations: int = PERMUTATIONS,
    seed: int = 0,
) -> pd.DataFrame:
    """Return the numbers of Heroes and Bloats in each layer, over runs, against chance.

    A run's number is the mean over its snapshots in the window; then every run counts once. By chance there would be
    ``components of the layer x (n - tau)(n - tau + 1) / (2 n^2)``, if the ranks of G and C were independent and
    without ties. The p-value comes from permutations of just that: in each run the components' G, and, apart from it,
    their C are dealt out anew, by one permutation each for all snapshots of the run, so that what is alike from
    snapshot to snapshot, the ties, and the dependence of components that share their ranks stay as they are. Only runs
    are taken to be independent.

    What it does not say: that a layer is special for any other reason than its depth. In pre-LN models the gradient
    falls with depth, whatever the components do, and this null is of ranks that depend on nothing. And of 2 roles x L
    layers some have a small p-value by luck: multiply by 2 L before believing one.

    Args:
        runs: Open runs.
        window: Accuracies on the probe of the snapshots that count: a name among `WINDOWS`, or least and largest.
        baseline: What ablated outputs were replaced by: ``"mean"`` or ``"zero"``.
        score: ``"exact_match"`` or ``"loss"``: what C is measured in.
        threshold: Smallest gap of a hero or bloat, in ranks; default ``round(0.3 n)``.
        confidence: Confidence of the interval over runs.
        permutations: How many are drawn.
        seed: Of their generator.

    Returns:
        One row per role and layer: ``role`` (``"hero"``, ``"bloat"``), ``layer, components, score``, the fields of
        `SeedInterval` (of the number per run), ``share`` (mean / components), ``chance`` (a number, to be compared
        with ``mean``) and ``p_value`` (two-sided: twice the smaller tail, at most 1, at least 2 / (permutations + 1)).

    Raises:
        AnalysisError: If no run has a snapshot in the window, one lacks what is needed, or their components differ;
            or if there is not at least one permutation.
    """
    found = read_windows(runs, window, baseline, score, threshold)
    return layer_rows(found, score, confidence, permutations, seed)


def layer_rows(
    found: Windows, score: str, confidence: float, permutations: int = PERMUTATIONS, seed: int = 0
) -> pd.DataFrame:
    """Return the rows of `roles_by_layer` for what `read_windows` gives."""
    if permutations < 1:
        raise AnalysisError(f"a p-value needs at least one permutation; got {permutations}.")
    timelines = [timeline for _, timeline, _ in found]
    of_component = np.array([component.layer for component in timelines[0].components])
    layers, sizes = np.unique(of_component, return_counts=True)
    in_layer = (of_component[:, None] == layers).astype(float)
    rng = np.random.default_rng(seed)
    # (run, role, layer), and the sum of the same over runs for each permutation.
    counts = np.stack(
        [
            np.stack([(timeline.roles[inside] == role).mean(0) @ in_layer for role in (HERO, BLOAT)])
            for _, timeline, inside in found
        ]
    )
    null = sum(_permuted_counts(timeline, inside, in_layer, permutations, rng) for _, timeline, inside in found)
    total = counts.sum(0)
    tails = [((side * (null - total) >= -1e-9).sum(0) + 1) / (permutations + 1) for side in (1, -1)]
    p_values = np.minimum(1, 2 * np.minimum(*tails))
    rows = [
        (role, layer, size, score, *interval_row(seed_interval(counts[:, which, place], confidence)))
        for which, role in enumerate((HERO, BLOAT))
        for place, (layer, size) in enumerate(zip(layers, sizes, strict=True))
    ]
    table = interval_table(rows, {"role": "str", "layer": "int64", "components": "int64", "score": "str"})
    table["share"] = table["mean"] / table["components"]
    table["chance"] = table["components"] * timelines[0].chance
    table["p_value"] = p_values.ravel()
    return table


def _permuted_counts(
    timeline: Timeline, inside: np.ndarray, in_layer: np.ndarray, permutations: int, rng: np.random.Generator
) -> np.ndarray:
    """Return the mean numbers of heroes and bloats by layer with components dealt out anew, ``(draw, role, layer)``."""
    gaps = [gap for gap, kept in zip(timeline.gaps, inside, strict=True) if kept]
    # Twice a rank is whole, also of a tie, and the smaller the numbers, the faster they are dealt out.
    gradient, causal = (
        np.stack([2 * getattr(gap, f"rank_{side}") for gap in gaps], axis=1).astype(np.int32)
        for side in ("gradient", "causal")
    )
    n, tau = len(gradient), 2 * timeline.threshold
    result, at_once = [], max(1, _CHUNK // gradient.size)
    for start in range(0, permutations, at_once):
        draws = min(at_once, permutations - start)
        own, other = (rng.permuted(np.tile(np.arange(n), (draws, 1)), axis=1) for _ in range(2))
        # (draw, component, step)
        delta = gradient[own] - causal[other]
        result.append(np.stack([(delta <= -tau).mean(-1) @ in_layer, (delta >= tau).mean(-1) @ in_layer], axis=1))
    return np.concatenate(result)
