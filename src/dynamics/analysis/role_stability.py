"""How stable roles are: turnover between snapshots, time spent in each role, and sensitivity to the threshold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from dynamics.analysis.emergence import DEFINED_ROLES, PERSISTENCE, confident_roles, equal_runs, role_episodes
from dynamics.analysis.roles import BLOAT, HERO, UNDEFINED, classify_roles
from dynamics.analysis.timeline import Timeline


def turnover_table(
    timeline: Timeline,
    by_layer: bool = False,
    probability: Mapping[str, ArrayLike] | None = None,
    confidence: float | None = None,
) -> pd.DataFrame:
    """Return how many components change their role from one snapshot to the next.

    A component is compared with its latest defined role before; at a snapshot at which its role is undefined it is not
    compared. ``chance`` is what to expect if the roles of the snapshot were dealt anew among the compared components,

        chance = m - sum over roles r of  before_r now_r / m

    with m components compared, of which before_r had and now_r have the role. Well below it, roles persist.

    Args:
        timeline: What `read_timeline` returns.
        by_layer: One row for each layer, rather than for all components together.
        probability: Probability of each role, by name; see `confident_roles`.
        confidence: Least probability of a role that counts.

    Returns:
        One row per snapshot after the first (and layer): ``step``, (``layer``,) ``compared``, ``changed``, ``share``
        (changed / compared) and ``chance``, a number of components; NaN where none is compared.
    """
    roles = confident_roles(timeline, probability, confidence)
    before = np.full(roles.shape, UNDEFINED, dtype=roles.dtype)
    for row in range(1, len(roles)):
        before[row] = np.where(roles[row - 1] != UNDEFINED, roles[row - 1], before[row - 1])
    layers = np.array([component.layer for component in timeline.components])
    groups = (
        [(layer, layers == layer) for layer in np.unique(layers)] if by_layer else [(0, np.full(len(layers), True))]
    )
    tables = []
    for layer, chosen in groups:
        was, now = before[1:, chosen], roles[1:, chosen]
        both = (was != UNDEFINED) & (now != UNDEFINED)
        compared = both.sum(1)
        changed = (both & (was != now)).sum(1)
        kept = sum(((was == role) & both).sum(1) * ((now == role) & both).sum(1) for role in DEFINED_ROLES)
        m = np.where(compared, compared, np.nan)
        columns = {"step": timeline.steps[1:], "layer": layer, "compared": compared, "changed": changed}
        tables.append(pd.DataFrame({**columns, "share": changed / m, "chance": m - kept / m}))
    table = pd.concat(tables).sort_values(["step", "layer"], kind="stable", ignore_index=True)
    return table if by_layer else table.drop(columns="layer")


def stable_role_table(
    timeline: Timeline, probability: Mapping[str, ArrayLike] | None = None, confidence: float | None = None
) -> pd.DataFrame:
    """Return how much of the run each component spends in each role.

    Args:
        timeline: What `read_timeline` returns, or a part of it (`select_snapshots`).
        probability: Probability of each role, by name; see `confident_roles`.
        confidence: Least probability of a role that counts.

    Returns:
        One row per component and role (hero, bloat, aligned): ``component``, ``layer``, ``kind``, ``role``;
        ``snapshots``: how many it has in the role, of ``defined`` at which its role is defined, and their ``share``,
        NaN if none is; ``longest``: most in a row, undefined ones skipped; ``first`` and ``last``: steps of the first
        and the last of them, missing if there is none.
    """
    roles = confident_roles(timeline, probability, confidence)
    rows = []
    for column, component in enumerate(timeline.components):
        defined = np.flatnonzero(roles[:, column] != UNDEFINED)
        own = roles[defined, column]
        runs = equal_runs(own)
        for role in DEFINED_ROLES:
            steps = timeline.steps[defined[own == role]]
            longest = max((stop - first for first, stop in runs if own[first] == role), default=0)
            share = len(steps) / len(own) if len(own) else np.nan
            ends = (steps[0], steps[-1]) if len(steps) else (None, None)
            head = (component.label, component.layer, component.kind, role)
            rows.append((*head, len(steps), len(own), share, longest, *ends))
    types = {
        "component": "str", "layer": "int64", "kind": "str", "role": "str", "snapshots": "int64", "defined": "int64",
        "share": "float64", "longest": "int64", "first": "Int64", "last": "Int64",
    }  # fmt: skip
    return pd.DataFrame(rows, columns=list(types)).astype(types)


def with_threshold(timeline: Timeline, threshold: float) -> Timeline:
    """Return the timeline with its roles judged anew, by another threshold tau, in ranks."""
    n = len(timeline.components)
    deltas = [gap.delta if gap.reason is None else np.full(n, np.nan) for gap in timeline.gaps]
    roles = np.array([classify_roles(delta, threshold) for delta in deltas])
    return replace(timeline, threshold=threshold, roles=roles)


def default_thresholds(n: int) -> tuple[int, ...]:
    """Return ``round(0.2 n), round(0.3 n), round(0.4 n)``, each at least 1 and each once: 4, 6, 8 for n = 20."""
    return tuple(sorted({max(1, round(share * n)) for share in (0.2, 0.3, 0.4)}))


def threshold_table(
    timeline: Timeline, thresholds: Sequence[float] | None = None, persistence: int = PERSISTENCE
) -> pd.DataFrame:
    """Return how much heroes and bloats depend on the threshold tau.

    Args:
        timeline: What `read_timeline` returns.
        thresholds: The values of tau, in ranks; default: `default_thresholds`.
        persistence: Snapshots for which a role must be kept to emerge.

    Returns:
        One row per threshold and role (hero, bloat): ``threshold``, ``role``; ``mean_count``: mean number over the
        snapshots with roles, and ``chance``: the number by luck alone; ``emerged``: components that ever have an
        episode, and ``confirmed``: a confirmed one; ``first_onset``, missing if there is none; ``turnover``: mean share
        of components that change any role; ``same``: share of roles, over components and snapshots with roles, that
        are those by the timeline's own threshold.

    Raises:
        AnalysisError: If a threshold is not positive or the persistence less than 1.
    """
    n = len(timeline.components)
    rows = []
    for tau in default_thresholds(n) if thresholds is None else thresholds:
        judged = with_threshold(timeline, tau)
        defined = judged.roles != UNDEFINED
        episodes = role_episodes(judged, persistence)
        changes = turnover_table(judged)["share"].mean()
        same = (judged.roles == timeline.roles)[defined].mean() if defined.any() else np.nan
        for role in (HERO, BLOAT):
            counts = (judged.roles == role).sum(1)[defined.any(1)]
            mean = counts.mean() if len(counts) else np.nan
            own = episodes[episodes["role"] == role]
            emerged = own["component"].nunique()
            confirmed = own.loc[own["confirmed"], "component"].nunique()
            first = own["onset"].min() if len(own) else None
            rows.append((tau, role, mean, judged.chance * n, emerged, confirmed, first, changes, same))
    types = {
        "threshold": "float64", "role": "str", "mean_count": "float64", "chance": "float64", "emerged": "int64",
        "confirmed": "int64", "first_onset": "Int64", "turnover": "float64", "same": "float64",
    }  # fmt: skip
    return pd.DataFrame(rows, columns=list(types)).astype(types)
