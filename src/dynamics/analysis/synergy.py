"""Synergy: what ablating components together costs, against what ablating them one at a time costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from dynamics.analysis.importance import SCORES, causal_importance, recorded_importance
from dynamics.errors import AnalysisError
from dynamics.store import Run, RunGroup

_CONTROL = "random_"
_RATIOS, _ENDS = ("ratio_to_sum", "ratio_to_mean"), {"low": "min", "high": "max"}
_NUMBERS = [
    "joint", "sum", "mean", "excess", "ratio_to_sum", "ratio_to_mean",
    "control_joint", "control_low", "control_high", "control_ratio_to_sum", "control_ratio_to_mean",
    "control_ratio_to_sum_low", "control_ratio_to_sum_high", "control_ratio_to_mean_low", "control_ratio_to_mean_high",
]  # fmt: skip


@dataclass(frozen=True)
class SynergyRatios:
    """How the joint ablation of a set compares with its components one at a time.

    Attributes:
        excess: ``C_S - sum C_i``: 0 if the effects add up.
        ratio_to_sum: ``C_S / sum C_i``: 1 if the effects add up. NaN if undefined.
        ratio_to_mean: ``C_S / mean C_i``: the number of components if the effects add up. NaN if undefined.
        reason: Why the ratios are undefined, in words; ``None`` if they are defined.
    """

    excess: float
    ratio_to_sum: float
    ratio_to_mean: float
    reason: str | None


def synergy_ratios(joint: float, single: np.ndarray) -> SynergyRatios:
    """Compare the joint ablation of a set with the ablations of its components one at a time.

    ``ratio_to_sum = C_S / sum C_i`` and ``ratio_to_mean = C_S / mean C_i``. The "14x" of "Hidden Heroes and Gradient
    Bloats" (arXiv 2602.01442) is the second; it equals the size of the set if the effects merely add up.

    Args:
        joint: ``C_S`` of the joint ablation: accuracy lost, or nats of loss gained.
        single: ``C_i`` of each component of the set, ``(component,)``, in the same unit.

    Returns:
        The ratios; NaN, with a reason, if the set is empty, a value is not finite, or the sum is not positive: a
        ratio to nothing, or to a gain, says nothing about redundancy. ``excess`` needs finite values only.
    """
    single = np.asarray(single, dtype=float)
    total = float(single.sum())
    if not np.isfinite([joint, total]).all():
        return SynergyRatios(np.nan, np.nan, np.nan, "a value of C is not finite")
    excess = joint - total
    if not len(single):
        return SynergyRatios(excess, np.nan, np.nan, "the set is empty")
    if total <= 0:
        return SynergyRatios(excess, np.nan, np.nan, f"the sum of C over the set is not positive ({total:g})")
    return SynergyRatios(excess, joint / total, joint / (total / len(single)), None)


def joint_ablation_table(run: Run, scores: Sequence[str] = SCORES) -> pd.DataFrame:
    """Return every joint ablation that a run recorded, random sets among them.

    Args:
        run: An open run.
        scores: Any of ``"exact_match"`` and ``"loss"``.

    Returns:
        One row per step, set and score: ``step, set, score, judged_by, size, joint`` (C_S), ``sum`` and ``mean`` of
        C_i over the set, ``excess, ratio_to_sum, ratio_to_mean, reason``; see `synergy_ratios`. C is positive where
        the model needs the set: accuracy lost, or nats of loss gained, under mean ablation. ``judged_by``: the score
        that the roles of that step come from; missing where there were none.

    Raises:
        AnalysisError: If the run has no synergy, or lacks the single ablations; or if a score is unknown.
    """
    group = _recorded(run)
    row_of = {int(step): row for row, step in enumerate(run.steps)}
    names, members, judges = group.labels("set").tolist(), group["membership"], group["role_score"]
    rows = []
    for score in scores:
        _, causal = recorded_importance(run, "mean", score)
        clean, ablated = run[score], group[f"joint_{score}"]
        for row, step in enumerate(group.steps.tolist()):
            snapshot, judge = row_of[step], int(judges[row])
            joint = causal_importance(clean[snapshot], ablated[row], score)
            for name, chosen, c_joint in zip(names, members[row], joint.tolist(), strict=True):
                single = causal[snapshot][chosen]
                ratios = synergy_ratios(c_joint, single)
                rows.append(
                    {
                        "step": step,
                        "set": name,
                        "score": score,
                        "judged_by": SCORES[judge] if judge >= 0 else None,
                        "size": int(chosen.sum()),
                        "joint": c_joint,
                        "sum": single.sum(),
                        "mean": single.mean() if len(single) else np.nan,
                        **vars(ratios),
                    }
                )
    columns = ["step", "set", "score", "judged_by", "size", *_NUMBERS[:6], "reason"]
    types = {
        "step": "int64", "set": "str", "score": "str", "judged_by": "object", "size": "int64",
        **dict.fromkeys(_NUMBERS[:6], "float64"), "reason": "object",
    }  # fmt: skip
    # As objects first: pandas would make NaN of the None of a reason.
    return pd.DataFrame(rows, columns=columns, dtype=object).astype(types)


def synergy_table(run: Run, scores: Sequence[str] = SCORES) -> pd.DataFrame:
    """Return what the joint ablation of a run's Bloats, and of its Heroes, costs, beside random sets of the same size.

    Args:
        run: An open run.
        scores: Any of ``"exact_match"`` and ``"loss"``.

    Returns:
        The rows of `joint_ablation_table` for ``bloats`` and ``heroes``, sorted by step, and for the random sets of
        that step and size: ``draws``, how many; ``control_joint``, the mean of their C_S, with ``control_low`` and
        ``control_high``, the least and the most; and ``control_ratio_to_sum`` and ``control_ratio_to_mean``, the
        ratios of the mean C_S to the means over the draws of their sum and mean of C_i; NaN where those are not
        positive. ``draws_with_ratio``: how many random sets have a ratio of their own; the least and the most of
        these are ``control_ratio_to_sum_low`` and ``..._high``, and so for the mean. A random set may hold components
        of the set that it is the control of.

    Raises:
        AnalysisError: If the run has no synergy, or lacks the single ablations; or if a score is unknown.
    """
    table = joint_ablation_table(run, scores)
    control = table["set"].str.startswith(_CONTROL)
    of_set = table["set"].str.replace(rf"^{_CONTROL}(.*)_\d+$", r"\1", regex=True)
    draws = (
        table[control]
        .groupby(["step", of_set[control], "score"], sort=False)
        .agg(
            draws=("joint", "size"),
            control_joint=("joint", lambda values: values.mean(skipna=False)),
            control_low=("joint", lambda values: values.min(skipna=False)),
            control_high=("joint", lambda values: values.max(skipna=False)),
            total=("sum", lambda values: values.mean(skipna=False)),
            draws_with_ratio=("ratio_to_sum", "count"),
            **{f"control_{ratio}_{end}": (ratio, end_of) for ratio in _RATIOS for end, end_of in _ENDS.items()},
        )
        .reset_index()
    )
    found = table[~control].merge(draws, on=["step", "set", "score"], how="left")
    counts = ["draws", "draws_with_ratio"]
    found[counts] = found[counts].fillna(0).astype("int64")
    # One control whose C is unknown leaves the others' range unknown, too.
    ends = [f"control_{ratio}_{end}" for ratio in _RATIOS for end in _ENDS]
    found[ends] = found[ends].where(found["control_joint"].notna())
    # A ratio of means: the mean of ratios would be carried away by draws whose sum is nearly nothing.
    positive = found["total"].where(found["total"] > 0)
    found["control_ratio_to_sum"] = found["control_joint"] / positive
    found["control_ratio_to_mean"] = found["control_joint"] / (positive / found["size"])
    order = ["step", "set", "score", "judged_by", "size", *counts, *_NUMBERS, "reason"]
    types = dict.fromkeys(_NUMBERS, "float64")
    return found[order].astype(types).sort_values("step", kind="stable", ignore_index=True)


def _recorded(run: Run) -> RunGroup:
    if run.synergy is None:
        raise AnalysisError(
            f"{run.path} has no synergy: it was tracked with synergy=None, or by an earlier version. Track again with "
            "a schedule, such as synergy=5000."
        )
    return run.synergy
