from __future__ import annotations

import numpy as np
import pytest

from dynamics.arrays import ArraySpec
from dynamics.store import Axis, RunWriter

N_COMPONENTS, N_EXAMPLES = 3, 2000

AXES = [
    Axis(
        "component",
        ["L0H0", "L0H1", "L0MLP"],
        "attention heads and MLPs",
        {
            "component_layer": ([0, 0, 0], "layer"),
            "component_kind": (["head", "head", "mlp"], "kind"),
            "component_head": ([0, 1, -1], "head"),
        },
    ),
    Axis("baseline", ["mean", "zero"], "baseline"),
    Axis("method", ["gradient"], "method"),
    Axis("example", list(range(N_EXAMPLES)), "example"),
]
SPECS = {
    "loss": ArraySpec("loss", ("example",), "nat", "loss"),
    "flag": ArraySpec("flag", ("component", "example"), "1", "a flag"),
    "small": ArraySpec("small", ("component",), "1", "a small row"),
}


def row(seed: int) -> dict[str, np.ndarray]:
    """One row of the group ``snapshots``; large arrays are stored compressed, small ones are not."""
    rng = np.random.default_rng(seed)
    return {
        "loss": rng.normal(size=N_EXAMPLES).astype(np.float32),
        "flag": rng.random((N_COMPONENTS, N_EXAMPLES)) < 0.5,
        "small": rng.normal(size=N_COMPONENTS),
    }


def write_run(path, overwrite: bool = False, metadata: dict | None = None) -> RunWriter:
    example = row(0)
    groups = {
        "snapshots": [(SPECS[name], example[name]) for name in SPECS],
        "train": [(ArraySpec("gradient_norm", ("component",), "nat", "norm"), np.zeros(N_COMPONENTS, np.float32))],
        "metrics": [(ArraySpec("value", ("metric",), "1", "logged"), np.zeros(0))],
    }
    return RunWriter(path, AXES, groups, {"seed": 7} if metadata is None else metadata, overwrite)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.h5"
