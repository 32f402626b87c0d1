"""Everything that a picture of many runs shows, as tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import groupby, takewhile
from pathlib import Path

import pandas as pd

from dynamics.analysis import SeedFindings
from dynamics.analysis.importance import SCORES, require_snapshots
from dynamics.analysis.roles import BLOAT, HERO
from dynamics.analysis.seed_findings import ScoreSeedFindings
from dynamics.analysis.windows import Window
from dynamics.plot.facts import Fact
from dynamics.plot.seeds_facts import seeds_facts
from dynamics.store import Runs

ROLES = (HERO, BLOAT)
LEVEL = 0.05
"""Beyond luck is what luck gives in less than this share of such pictures: p-values times the number of tests."""


class SeedTables:
    """The tables behind a picture of many runs, for both scores; the runs must be open until a table is made.

    Args:
        runs: Open runs of the same components.
        window: Accuracies on the probe of the snapshots that count: a name among `WINDOWS`, or least and largest.
        baseline: What ablated outputs were replaced by: ``"mean"`` or ``"zero"``.
        threshold: Smallest gap of a hero or bloat, in ranks; default ``round(0.3 n)``.

    Attributes:
        name: What the runs have in common, and how many there are.
        findings: Where the tables come from.

    Raises:
        AnalysisError: If a run has no snapshot yet; from a table, if one lacks what that needs.
    """

    def __init__(
        self, runs: Runs, window: Window = "paper", baseline: str = "mean", threshold: float | None = None
    ) -> None:
        for run in runs:
            require_snapshots(run)
        self.runs, self.findings = runs, SeedFindings(runs, window, baseline, threshold)
        self.name = f"{_common(runs)}: {len(runs)} run{'s' * (len(runs) != 1)}"
        self._names = {str(run.path): name for run, name in zip(runs, runs.names, strict=True)}

    @cached_property
    def facts(self) -> tuple[Fact, ...]:
        """Return what to know about the runs, by name."""
        return seeds_facts(self.runs, self.findings)

    @cached_property
    def missing(self) -> dict[str, str]:
        """Return why nothing can be said of the window, by score; empty if something can for both."""
        reasons = {score: found.missing for score, found in self.findings.by.items()}
        return {score: reason for score, reason in reasons.items() if reason is not None}

    @cached_property
    def rho_by_run(self) -> pd.DataFrame:
        """Return ``run`` (its name), ``step, accuracy, score, rho, reason``."""
        table = self._both(lambda found: found.rho_by_run)
        return table.assign(run=table["run"].map(self._names))

    @cached_property
    def rho_by_step(self) -> pd.DataFrame:
        """Return `rho_by_step` of the steps at which at least half of the runs have a rho.

        Else a mean would jump where runs come and go.
        """
        table = self._both(lambda found: found.rho_by_step)
        return table[table["runs"] >= max(1, math.ceil(len(self.runs) / 2))].reset_index(drop=True)

    @cached_property
    def rho_by_accuracy(self) -> pd.DataFrame:
        """Return `rho_by_accuracy`, without the bins that have no rho."""
        table = self._both(lambda found: found.rho_by_accuracy)
        return table[table["runs"] > 0].reset_index(drop=True)

    @cached_property
    def frequency(self) -> pd.DataFrame:
        """Return a row for each score, role and component.

        ``score, role, component, layer, row`` (of its layer), ``column`` (its place in the layer), ``position`` (what
        the column is called, empty if layers differ), ``runs`` (in which it has the role), ``of`` (so many), ``share``,
        ``by_luck`` (a number of runs), ``p_value, beyond`` (luck, for all rows of the score together), ``possible``
        (whether any number of so many runs would be beyond luck), and ``heroes, bloats, aligned, mixed``.
        """
        table = self._windowed(lambda found: found.role_frequency)
        if not len(table):
            return table
        layers = {layer: row for row, layer in enumerate(sorted(table["layer"].unique()))}
        table["row"] = table["layer"].map(layers)
        table["column"] = table.groupby(["score", "layer"]).cumcount()
        table["position"] = _positions(table)
        tests = len(ROLES) * table["component"].nunique()
        counts = {HERO: "heroes", BLOAT: "bloats"}
        kept = ["score", "component", "layer", "row", "column", "position", "heroes", "bloats", "aligned", "mixed"]
        parts = [
            table[kept].assign(
                role=role,
                runs=table[counts[role]],
                of=table["runs"],
                share=table[f"{role}_share"],
                by_luck=table[f"{role}_chance"] * table["runs"],
                p_value=table[f"{role}_p_value"],
                beyond=table[f"{role}_p_value"] * tests <= LEVEL,
                possible=table[f"{role}_least_p_value"] * tests <= LEVEL,
            )
            for role in ROLES
        ]
        return pd.concat(parts, ignore_index=True)

    @cached_property
    def layers(self) -> pd.DataFrame:
        """Return `roles_by_layer` with ``row`` (of the layer) and ``beyond`` (luck, for all rows of the score)."""
        table = self._windowed(lambda found: found.roles_by_layer)
        if not len(table):
            return table
        layers = {layer: row for row, layer in enumerate(sorted(table["layer"].unique()))}
        tests = len(ROLES) * len(layers)
        return table.assign(row=table["layer"].map(layers), beyond=table["p_value"] * tests <= LEVEL)

    @cached_property
    def pruning(self) -> pd.DataFrame:
        """Return `pruning_table`; no row if a run lacks ablation to the mean."""
        return self._pruned(lambda found: found.pruning)

    @cached_property
    def pruning_by_run(self) -> pd.DataFrame:
        """Return `pruning_by_run` with the runs' names, without what is not defined."""
        table = self._pruned(lambda found: found.pruning_by_run)
        if not len(table):
            return table
        return table.assign(run=table["run"].map(self._names)).dropna(subset=["lost"])

    def _both(self, build: Callable[[ScoreSeedFindings], pd.DataFrame]) -> pd.DataFrame:
        return pd.concat([build(self.findings.by[score]) for score in SCORES], ignore_index=True)

    def _pruned(self, build: Callable[[ScoreSeedFindings], pd.DataFrame]) -> pd.DataFrame:
        return self._windowed(build) if all("mean" in run.baselines for run in self.runs) else pd.DataFrame()

    def _windowed(self, build: Callable[[ScoreSeedFindings], pd.DataFrame]) -> pd.DataFrame:
        found = [found for score, found in self.findings.by.items() if score not in self.missing]
        return pd.concat([build(one) for one in found], ignore_index=True) if found else pd.DataFrame()


def _common(runs: Runs) -> str:
    """Return what the names of the runs begin with, or else the folder that all lie in."""
    if len(runs) == 1:
        return runs.names[0]
    # Only whole words: sort-1 and sort-12 have sort in common.
    words = [["".join(part) for _, part in groupby(name, str.isalnum)] for name in runs.names]
    shared = takewhile(lambda column: len(set(column)) == 1, zip(*words, strict=False))
    prefix = "".join(column[0] for column in shared).strip("-_./ ")
    return prefix or shared_folder([run.path for run in runs]).resolve().name or "runs"


def shared_folder(paths: Sequence[Path]) -> Path:
    """Return the innermost folder that all files lie in, as their paths write it where they allow that."""
    folders = [path.parent for path in paths]
    if len({folder.is_absolute() for folder in folders}) > 1 or any(".." in folder.parts for folder in folders):
        folders = [folder.resolve() for folder in folders]
    columns = takewhile(lambda column: len(set(column)) == 1, zip(*(folder.parts for folder in folders), strict=False))
    return Path(*(column[0] for column in columns))


def _positions(table: pd.DataFrame) -> pd.Series:
    """Return the components' labels without their layer, if every layer has the same; else nothing."""
    short = pd.Series(
        [label.removeprefix(f"L{layer}") for label, layer in zip(table["component"], table["layer"], strict=True)],
        index=table.index,
    )
    # Of whole layers: the longest has all of the names, and the others begin alike.
    names = short.groupby(table["column"]).nunique()
    return short if (names == 1).all() else pd.Series("", index=table.index)
