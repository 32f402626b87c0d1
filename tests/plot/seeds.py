"""Seeds of an experiment whose roles are known: four components in two layers, with C by loss as planted."""

from __future__ import annotations

from pathlib import Path

from tests.analysis.test_role_frequency import planted

INVERTED, ALIKE = ([4, 3, 2, 1], [1, 2, 3, 4]), ([1, 2, 3, 4], [1, 2, 3, 4])
"""G and C of L0H0, L0MLP, L1H0 and L1MLP. Inverted: gaps 3, 1, -1, -3; so with a threshold of 2, L0H0 is a Bloat and
L1MLP a Hero."""


def write_seeds(folder: Path, orders=(INVERTED, INVERTED, ALIKE), **options) -> str:
    """Write a run for each order, and return the pattern of all."""
    for seed, (gradient, causal) in enumerate(orders):
        (folder / f"sort-{seed}").mkdir(parents=True)
        planted(folder / f"sort-{seed}" / "run.h5", gradient, causal, **{"steps": 3, **options})
    return str(folder / "sort-*" / "run.h5")
