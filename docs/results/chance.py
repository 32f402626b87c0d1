"""What of a run is beyond chance: tables of rho, counts and depth with their nulls, and what they say in words."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from dynamics.analysis import SCORES, Findings, Resampling
from dynamics.store import Run

HERE = Path(__file__).parent
LEVEL = 0.05
"""Two-sided p-values below this are called beyond chance, each by itself."""
MEASURES = {
    "all": "all components",
    "heads": "heads alone",
    "within layers": "within layers",
    "within layers, heads": "heads within layers",
    "partial": "given layer and kind",
}
_RHO = ["step", "rho", "low", "high", "null_low", "null_high", "p_null", "ties", "indistinguishable"]


def write_tables(run: Run, name: str) -> None:
    """Write ``NAME_chance.csv`` of a run, a row per step and score, ``NAME_depth.csv`` and ``NAME_layers.csv``."""
    findings = Findings(run, resampling=Resampling())
    steps, depths, layers = [], [], []
    for score in SCORES:
        found = findings.by[score]
        whole = found.counts[found.counts["layer"].isna()]
        parts = [found.rho[_RHO].set_index("step")]
        for role in ("hero", "bloat"):
            of_role = whole[whole["role"] == role].set_index("step")[["count", "chance", "low", "high"]]
            parts.append(of_role.add_prefix(f"{role}_"))
        share = found.depth_share[found.depth_share["factor"] == "layer and kind"].set_index("step")
        parts.append(share[["share", "chance"]].add_prefix("depth_"))
        steps.append(pd.concat(parts, axis=1).reset_index().assign(score=score))
        layers.append(found.counts.dropna(subset="layer").drop(columns="p_value").assign(score=score))
        depths.append(found.depth[["step", "score", "measure", "rho", "low", "high", "p_value", "n"]])
    pd.concat(steps).round(6).to_csv(HERE / f"{name}_chance.csv", index=False)
    pd.concat(layers).round(6).to_csv(HERE / f"{name}_layers.csv", index=False)
    pd.concat(depths).round(6).to_csv(HERE / f"{name}_depth.csv", index=False)


class Chance:
    """What the tables of a run say of the snapshots at some steps, with C in one score."""

    def __init__(self, name: str, steps: pd.Series, score: str = "exact_match") -> None:
        def chosen(table: str) -> pd.DataFrame:
            found = pd.read_csv(HERE / f"{name}_{table}.csv")
            return found[(found["score"] == score) & found["step"].isin(steps)]

        self.steps, self.depth, self.layers = chosen("chance"), chosen("depth"), chosen("layers")
        self.n = len(self.steps)

    def beyond(self, measure: str) -> int:
        """Return at how many snapshots rho of a measure is beyond chance, and positive."""
        found = self.depth[self.depth["measure"] == measure]
        return int(((found["p_value"] < LEVEL) & (found["rho"] > 0)).sum())

    def rho(self, measure: str) -> float:
        """Return the median of rho of a measure."""
        return float(self.depth[self.depth["measure"] == measure]["rho"].median())

    def outside(self, role: str) -> tuple[int, int]:
        """Return at how many snapshots there are more of a role than the band of luck holds, and at how many fewer."""
        count, low, high = (self.steps[f"{role}_{name}"] for name in ("count", "low", "high"))
        return int((count > high).sum()), int((count < low).sum())

    def lines(self, task: str) -> list[str]:
        """Return the task's lines of a table: every measure, its median rho and where it is beyond chance."""
        return [
            f"| {task} | {title} | {self.rho(measure):.2f} | {self.beyond(measure)} of {self.n} |"
            for measure, title in MEASURES.items()
        ]

    def words(self, task: str) -> str:
        """Return in plain words what of the task's run is beyond chance."""
        heroes, bloats = self.outside("hero"), self.outside("bloat")
        share, chance = self.steps["depth_share"].median(), self.steps["depth_chance"].median()
        rho = f"beyond chance at {self.beyond('all')} of {self.n} snapshots, and inside layers at"
        return (
            f"{task.capitalize()}: G agrees with C {rho} {self.beyond('within layers')}. There are more heroes than "
            f"luck gives at {heroes[0]} snapshots and fewer at {heroes[1]}; more bloats at {bloats[0]}, fewer at "
            f"{bloats[1]}. Layer and kind alone make {share:.0%} of the gaps (of their sum of squares, median; "
            f"{chance:.0%} by chance)."
        )

    def layer_lines(self, task: str) -> list[str]:
        """Return the task's lines of a table: numbers of heroes and bloats in each layer, and where luck has fewer."""
        lines = []
        for layer, here in self.layers.groupby("layer"):
            cells = []
            for role in ("hero", "bloat"):
                found = here[here["role"] == role]
                more = int((found["count"] > found["high"]).sum())
                cells.append(f"{found['count'].mean():.1f} | {more} of {self.n}")
            lines.append(f"| {task} | {layer:.0f} | {here['chance'].mean():.2f} | {' | '.join(cells)} |")
        return lines
