"""Files that earlier versions wrote keep opening; one archived file for each version of the format."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dynamics import open_run
from dynamics.analysis import rho_table
from dynamics.plot import draw_run

ARCHIVE = Path(__file__).parents[1] / "data"


def test_format_1_0():
    with open_run(ARCHIVE / "run-1.0.h5") as run:
        assert run.finished
        assert run.steps.tolist() == [0, 2, 4]
        assert run.train.steps.tolist() == [0, 1, 2, 3]
        assert [c.label for c in run.components] == ["L0H0", "L0H1", "L0MLP"]
        assert run.baselines == ("mean", "zero")
        assert run.methods == ("gradient", "gim")
        assert {name: run.dims(name) for name in run} == {
            "loss": ("step", "example"),
            "exact_match": ("step", "example"),
            "weight_norm": ("step", "component"),
            "gradient_norm": ("step", "component", "batch"),
            "attribution": ("step", "method", "component", "example"),
            "ablation_loss": ("step", "baseline", "component", "example"),
            "ablation_exact_match": ("step", "baseline", "component", "example"),
        }
        np.testing.assert_allclose(run["loss"][-1].mean(), 4.970281600952148, rtol=1e-6)
        np.testing.assert_allclose(run["gradient_norm"][-1, -1, -1], 0.019244341179728508, rtol=1e-6)
        np.testing.assert_allclose(run["attribution"][1, 1, 2, 3], 0.01991666480898857, rtol=1e-6)
        assert run["exact_match"].dtype == bool
        assert run.metadata["seed"] == 0
        assert rho_table(run, score="loss")["rho"].notna().all()


@pytest.mark.parametrize("suffix", [".html", ".svg"])
def test_format_1_0_is_drawn(tmp_path, suffix):
    assert draw_run(ARCHIVE / "run-1.0.h5", tmp_path / f"run{suffix}").stat().st_size > 10_000
