"""Files that earlier versions wrote keep opening; one archived file for each version of the format."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from dynamics import open_run
from dynamics.analysis import faithfulness_table, rho_table
from dynamics.plot import draw_run
from dynamics.store import continue_run
from tests.store.mutations import digest

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
        assert run.faithfulness is None
        assert run.synergy is None


def test_format_1_1():
    with open_run(ARCHIVE / "run-1.1.h5") as run:
        assert run.finished
        assert run.steps.tolist() == [0, 2, 4]
        assert run.methods == ("gradient", "gim", "ig")
        # Written before the group was added to this version of the format.
        assert run.synergy is None
        group = run.faithfulness
        assert group.steps.tolist() == [2, 4]
        assert group.labels("ranking").tolist() == ["gradient_norm", "gim", "|gim|", "ablation", "random"]
        assert group["kept_loss"].shape == group["kept_exact_match"].shape == (2, 5, 4, 6)
        assert group["ranking_order"][0].tolist() == [[2, 0, 1], [1, 2, 0], [0, 2, 1], [2, 0, 1], [0, 2, 1]]
        np.testing.assert_allclose(group["kept_loss"][1, 2, 1].mean(), 4.8167043, rtol=1e-6)
        table = faithfulness_table(run, "loss").set_index(["step", "ranking"])
        np.testing.assert_allclose(table.loc[(4, "gim"), ["cpr", "cmd"]].tolist(), [0.605873, 0.394127], rtol=1e-5)


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_archived_runs_can_be_gone_on_with(tmp_path, version):
    path = tmp_path / "run.h5"
    shutil.copy(ARCHIVE / f"run-{version}.h5", path)
    before = digest(path)
    continue_run(path, until=100).close()
    assert digest(path) == before
    assert digest(tmp_path / "run.h5.backup-1") == before


@pytest.mark.parametrize("suffix", [".html", ".svg"])
@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_archived_runs_are_drawn(tmp_path, version, suffix):
    assert draw_run(ARCHIVE / f"run-{version}.h5", tmp_path / f"run{suffix}").stat().st_size > 10_000
