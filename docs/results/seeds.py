"""The demo with several seeds: which components have a role in more runs than luck gives."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from dynamics.analysis import SeedFindings
from dynamics.plot import draw_runs
from dynamics.store import open_runs

HERE = Path(__file__).parent
RUNS = "runs/demo-*/run.h5"
LEVEL = 0.05
"""What the p-values of all components and roles together stay below, where a finding is called beyond luck."""
_ROLES = {"hero": "Hero", "bloat": "Bloat"}


def read_seeds() -> None:
    """Write ``seeds_roles.csv``, ``seeds_layers.csv`` and the picture ``seeds.svg``."""
    with open_runs(RUNS) as runs:
        found = SeedFindings(runs).by["exact_match"]
        found.role_frequency.round(6).to_csv(HERE / "seeds_roles.csv", index=False)
        found.roles_by_layer.round(6).to_csv(HERE / "seeds_layers.csv", index=False)
    draw_runs(RUNS, HERE / "seeds.svg")


def words() -> str:
    """Return in plain words what the seeds say."""
    roles, layers = pd.read_csv(HERE / "seeds_roles.csv"), pd.read_csv(HERE / "seeds_layers.csv")
    runs, tests = int(roles["runs"].iloc[0]), len(roles) * len(_ROLES)
    sure = []
    for role, title in _ROLES.items():
        beyond = roles[roles[f"{role}_p_value"] * tests < LEVEL].sort_values(f"{role}_p_value", kind="stable")
        plural = {"hero": "heroes", "bloat": "bloats"}[role]
        names = [f"{row['component']} in {row[plural]}" for row in beyond.to_dict("records")]
        sure.append(f"as {title} {', '.join(names)}" if names else f"as {title} none")
    where = layers[layers["p_value"] * len(layers) < LEVEL]
    found = [
        f"{row['mean']:.1f} {row['role']}s a run in layer {row['layer']} (luck: {row['chance']:.2f})".replace(
            "heros", "heroes"
        )
        for row in where.to_dict("records")
    ]
    return (
        f"Over {runs} seeds of the demo, by accuracy, luck is left behind ({tests} cells taken together, p below "
        f"{LEVEL:g}): {'; '.join(sure)} (of {runs} runs). By layer ({len(layers)} counts taken together) unlike luck: "
        f"{', '.join(found) or 'none'}. Which head of a layer it is cannot matter over seeds, since heads of a layer "
        "are alike at the start; its depth and kind can."
    )
