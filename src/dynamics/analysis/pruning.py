"""What pruning Heroes or Bloats costs, one at a time and together, over many runs; and the summary of an experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from dynamics.analysis.many_runs import Windows, interval_row, interval_table, read_windows, seed_interval
from dynamics.analysis.role_frequency import frequency_rows, layer_rows
from dynamics.analysis.roles import BLOAT, HERO
from dynamics.analysis.synergy import synergy_table
from dynamics.analysis.timeline import Timeline
from dynamics.analysis.windows import Window
from dynamics.store import Run

ALONE, TOGETHER = ABLATED = ("one at a time", "together")
"""How the components of a role are ablated."""

SETS = {HERO: "heroes", BLOAT: "bloats"}
"""The recorded set of each role."""


def pruning_by_run(
    runs: Sequence[Run],
    window: Window = "paper",
    score: str = "exact_match",
    threshold: float | None = None,
) -> pd.DataFrame:
    """Return what each run loses when its Heroes, or its Bloats, are mean-ablated, one at a time or together.

    One at a time: the mean of C over the components of the role at a snapshot, then over the snapshots in the window
    that have such components. Together: the mean of C_S over the synergy rows in the window; only those whose sets
    were judged by ``score``, and with the threshold that the run recorded them with.

    Args:
        runs: Open runs.
        window: Accuracies on the probe of the snapshots that count: a name among `WINDOWS`, or least and largest.
        score: ``"exact_match"`` or ``"loss"``: what judges the roles, and what the loss is measured in.
        threshold: Smallest gap of a hero or bloat, in ranks; default ``round(0.3 n)``.

    Returns:
        One row per run with snapshots in the window, role and way: ``run`` (the path), ``role, ablated`` (``"one at a
        time"``, ``"together"``), ``score, snapshots, lost`` (C: accuracy lost, or nats of loss gained; positive where
        the model needs them), and ``single``: for ``"together"`` the mean C_i of the same sets, for ``"one at a time"``
        the same as ``lost``. NaN where there is nothing to average.

    Raises:
        AnalysisError: If no run has a snapshot in the window, one lacks what is needed, or their components differ.
    """
    return pruned_by_run(read_windows(runs, window, "mean", score, threshold), score)


def pruned_by_run(found: Windows, score: str) -> pd.DataFrame:
    """Return the table of `pruning_by_run` for what `read_windows` gives under mean ablation."""
    rows = []
    for run, timeline, inside in found:
        for role in (HERO, BLOAT):
            alone = _alone(timeline, inside, role)
            rows.append((str(run.path), role, ALONE, score, len(alone), *[_mean(alone)] * 2))
        joint = _joint(run, timeline.steps[inside], score)
        for role in (HERO, BLOAT):
            of_role = joint[joint["set"] == SETS[role]]
            lost, single = (_mean(of_role[name].to_numpy()) for name in ("joint", "mean"))
            rows.append((str(run.path), role, TOGETHER, score, len(of_role), lost, single))
    types = {
        "run": "str", "role": "str", "ablated": "str", "score": "str", "snapshots": "int64", "lost": "float64",
        "single": "float64",
    }  # fmt: skip
    return pd.DataFrame(rows, columns=list(types)).astype(types)


def pruning_table(
    runs: Sequence[Run],
    window: Window = "paper",
    score: str = "exact_match",
    threshold: float | None = None,
    confidence: float = 0.95,
) -> pd.DataFrame:
    """Return what ablating Heroes, or Bloats, costs over runs; each run counts once.

    Args:
        runs: Open runs.
        window: Accuracies on the probe of the snapshots that count: a name among `WINDOWS`, or least and largest.
        score: ``"exact_match"`` or ``"loss"``.
        threshold: Smallest gap of a hero or bloat, in ranks; default ``round(0.3 n)``.
        confidence: Confidence of the interval.

    Returns:
        One row per role and way (see `pruning_by_run`): ``role, ablated, score``, the fields of `SeedInterval` (of what
        is lost), and ``ratio_to_mean``: for ``"together"``, the mean over runs of C_S over the mean over the same runs
        of the mean C_i (the paper's 14x); NaN otherwise, and where that mean is not positive.

    Raises:
        AnalysisError: If no run has a snapshot in the window, one lacks what is needed, or their components differ.
    """
    return pruned_over_runs(pruning_by_run(runs, window, score, threshold), score, confidence)


def pruned_over_runs(table: pd.DataFrame, score: str, confidence: float) -> pd.DataFrame:
    """Return the table of `pruning_table` for that of `pruning_by_run`."""
    rows, ratios = [], []
    for role in (HERO, BLOAT):
        for ablated in ABLATED:
            part = table[(table["role"] == role) & (table["ablated"] == ablated)]
            rows.append((role, ablated, score, *interval_row(seed_interval(part["lost"], confidence))))
            known = part.dropna(subset=["lost"])
            single = _mean(known["single"].to_numpy())
            ratios.append(_mean(known["lost"].to_numpy()) / single if ablated == TOGETHER and single > 0 else np.nan)
    result = interval_table(rows, {"role": "str", "ablated": "str", "score": "str"})
    return result.assign(ratio_to_mean=ratios)


@dataclass(frozen=True)
class ExperimentTables:
    """What `experiment_tables` returns.

    Attributes:
        summary: One row per experiment.
        layers: `roles_by_layer` of each, with ``experiment`` in front.
        components: `role_frequency` of each, with ``experiment`` in front.
    """

    summary: pd.DataFrame
    layers: pd.DataFrame
    components: pd.DataFrame


def experiment_tables(
    experiments: Mapping[str, Sequence[Run]],
    window: Window = "paper",
    score: str = "exact_match",
    threshold: float | None = None,
    confidence: float = 0.95,
) -> ExperimentTables:
    """Summarise experiments of several runs each, as "Hidden Heroes and Gradient Bloats" (arXiv 2602.01442) does.

    Args:
        experiments: Open runs by name: ``{"sorting": open_runs("runs/sort-*/run.h5")}``.
        window: Accuracies on the probe of the snapshots that count: a name among `WINDOWS`, or least and largest.
        score: ``"exact_match"`` or ``"loss"``.
        threshold: Smallest gap of a hero or bloat, in ranks; default ``round(0.3 n)``.
        confidence: Confidence of the intervals.

    Returns:
        The tables. ``summary`` has ``experiment, score, runs`` (with a snapshot in the window, ``of`` so many),
        ``snapshots``; ``rho`` (a run's is the mean over its snapshots) with ``rho_sd, rho_low, rho_high, rho_least,
        rho_most``; ``heroes`` and ``bloats``, mean numbers, beside ``chance``; and what is lost: ``hero_alone,
        bloat_alone, hero_together, bloat_together``, each with ``_sd``, and ``bloat_ratio_to_mean``, ``bloat_together``
        over the mean C_i of the same sets. All under mean ablation.

    Raises:
        AnalysisError: If an experiment has no snapshot in the window, or a run lacks what is needed.
    """
    summaries, layers, components = [], [], []
    for name, runs in experiments.items():
        found = read_windows(runs, window, "mean", score, threshold)
        rho = seed_interval([_mean(_rho(timeline, inside)) for _, timeline, inside in found], confidence)
        pruned = pruned_over_runs(pruned_by_run(found, score), score, confidence).set_index(["role", "ablated"])
        mean, sd = (pruned[field].to_dict() for field in ("mean", "sd"))
        lost: dict[str, float] = {}
        for way, suffix in ((ALONE, "alone"), (TOGETHER, "together")):
            for role in (HERO, BLOAT):
                lost |= {f"{role}_{suffix}": mean[role, way], f"{role}_{suffix}_sd": sd[role, way]}
        summaries.append(
            {
                "experiment": name,
                "score": score,
                "runs": len(found),
                "of": len(runs),
                "snapshots": sum(int(inside.sum()) for *_, inside in found),
                "rho": rho.mean,
                **{f"rho_{field}": getattr(rho, field) for field in ("sd", "low", "high", "least", "most")},
                "heroes": _mean(np.array([_count(timeline, inside, HERO) for _, timeline, inside in found])),
                "bloats": _mean(np.array([_count(timeline, inside, BLOAT) for _, timeline, inside in found])),
                "chance": found[0][1].chance * len(found[0][1].components),
                **lost,
                "bloat_ratio_to_mean": pruned.loc[(BLOAT, TOGETHER), "ratio_to_mean"],
            }
        )
        layers.append(layer_rows(found, score, confidence).assign(experiment=name))
        components.append(frequency_rows(found, score).assign(experiment=name))
    return ExperimentTables(pd.DataFrame(summaries), _named(layers), _named(components))


def _named(tables: list[pd.DataFrame]) -> pd.DataFrame:
    if not tables:
        return pd.DataFrame()
    table = pd.concat(tables, ignore_index=True)
    return table[["experiment", *table.columns.drop("experiment")]]


def _alone(timeline: Timeline, inside: np.ndarray, role: str) -> np.ndarray:
    """Return the mean C over the components of a role at each snapshot inside that has any."""
    pairs = zip(timeline.causal[inside], timeline.roles[inside] == role, strict=True)
    return np.array([causal[chosen].mean() for causal, chosen in pairs if chosen.any()])


def _joint(run: Run, steps: np.ndarray, score: str) -> pd.DataFrame:
    """Return the synergy rows at these steps whose sets are not empty and were judged by the score."""
    if run.synergy is None:
        return pd.DataFrame(columns=["set", "joint", "mean"])
    table = synergy_table(run, (score,))
    kept = (table["judged_by"] == score) & (table["size"] > 0) & table["step"].isin(steps)
    return table[kept]


def _rho(timeline: Timeline, inside: np.ndarray) -> np.ndarray:
    return np.array([gap.rho for gap in timeline.gaps])[inside]


def _count(timeline: Timeline, inside: np.ndarray, role: str) -> float:
    return float((timeline.roles[inside] == role).sum(1).mean())


def _mean(values: np.ndarray) -> float:
    return float(np.mean(values)) if len(values) else float("nan")
