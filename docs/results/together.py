"""What a run's Bloats, and its Heroes, cost when they are ablated together: a table, and what it says."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from dynamics.analysis import SCORES, synergy_table
from dynamics.store import Run

HERE = Path(__file__).parent
_COLUMNS = [
    "step",
    "set",
    "score",
    "judged_by",
    "size",
    "draws",
    "joint",
    "sum",
    "mean",
    "control_joint",
    "control_sum",
]
_TITLES = ("task", "set", "score", "rows", "components", "C together", "sum of C")
_RATIOS = ("together / sum", "together / mean", "random: together / sum")
HEAD = f"| {' | '.join(_TITLES + _RATIOS)} |\n|{' --- |' * len(_TITLES + _RATIOS)}"


def write_table(run: Run, name: str) -> None:
    """Write ``NAME_synergy.csv``: the rows of `synergy_table`, with the mean sum of the random sets."""
    table = synergy_table(run)
    table["control_sum"] = table["control_joint"] / table["control_ratio_to_sum"]
    table[_COLUMNS].round(6).to_csv(HERE / f"{name}_synergy.csv", index=False)


def lines(name: str, task: str, steps: pd.Series) -> list[str]:
    """Return a task's lines of a table: means over the rows at some steps, and ratios of these means."""
    table = pd.read_csv(HERE / f"{name}_synergy.csv")
    table = table[table["step"].isin(steps)]
    found = []
    for which in ("bloats", "heroes"):
        for score in SCORES:
            part = table[(table["set"] == which) & (table["score"] == score)]
            mean = part[["size", "joint", "sum", "mean", "control_joint", "control_sum"]].mean()
            ratios = [
                _ratio(mean["joint"], mean[below]) for below in ("sum", "mean")
            ] + [_ratio(mean["control_joint"], mean["control_sum"])]  # fmt: skip
            unit = "accuracy" if score == "exact_match" else "nats"
            cells = [task, which, unit, len(part), f"{mean['size']:.1f}", f"{mean['joint']:.3f}", f"{mean['sum']:.3f}"]
            found.append(f"| {' | '.join(map(str, [*cells, *ratios]))} |")
    return found


def _ratio(above: float, below: float) -> str:
    # A ratio to nothing, or to a gain, says nothing.
    return f"{above / below:.1f}" if below > 0 else "none"
