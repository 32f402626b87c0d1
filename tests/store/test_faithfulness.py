"""The group of faithfulness rows, which a run has only if it was asked for."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from dynamics import Snapshot, open_run
from dynamics.faithfulness import blank_faithfulness
from dynamics.store import create_run
from tests.analysis.runs import (
    BASELINES,
    N_EXAMPLES,
    SPECS,
    components,
    random_arrays,
    random_faithfulness,
    random_run,
)

RANKINGS = ("gradient_norm", "random")


@pytest.fixture
def rows():
    return list(zip([10, 30], random_faithfulness(6, 2, 2), strict=True))


def test_rows_come_back_exactly(tmp_path, rows):
    random_run(tmp_path / "run.h5", n_steps=4, rankings=RANKINGS, faithful=rows)
    with open_run(tmp_path / "run.h5") as run:
        group = run.faithfulness
        assert group.steps.tolist() == [10, 30]
        assert run.steps.tolist() == [0, 10, 20, 30]
        for name in group:
            np.testing.assert_array_equal(group[name], np.stack([row[name] for _, row in rows]))
            assert group[name].dtype == rows[0][1][name].dtype
        assert {name: group.dims(name) for name in group} == {
            "kept_loss": ("step", "ranking", "kept", "example"),
            "kept_exact_match": ("step", "ranking", "kept", "example"),
            "ranking_score": ("step", "ranking", "component"),
            "ranking_order": ("step", "ranking", "component"),
        }
        assert group.labels("ranking").tolist() == list(RANKINGS)
        assert group.labels("kept").tolist() == list(range(7))
        assert group.attributes("kept_loss")["units"] == "nat"
        with pytest.raises(KeyError) as caught:
            run["kept_loss"]
        assert caught.value.args == ("'kept_loss' is in the group 'faithfulness': run.faithfulness['kept_loss'].",)
        loss = run.to_xarray("faithfulness").kept_loss.sel(step=30, ranking="random", kept=6)
        np.testing.assert_array_equal(loss, rows[1][1]["kept_loss"][1, 6])
    with xr.open_dataset(tmp_path / "run.h5", engine="h5netcdf", group="faithfulness") as dataset:
        assert dataset.kept_exact_match.dtype == bool
        assert dataset.ranking_score.coords["component_kind"].values.tolist() == ["head", "head", "mlp"] * 2


def test_rows_that_come_later_are_seen_after_a_refresh(tmp_path, rows):
    listed = components(2, 2)
    sizes = (N_EXAMPLES - 4, 2, 2)
    snapshot = Snapshot(random_arrays(np.random.default_rng(0), 6), SPECS, listed, BASELINES, ("gradient",), sizes)
    writer = create_run(tmp_path / "run.h5", snapshot, {}, faithfulness=blank_faithfulness(snapshot, RANKINGS))
    with open_run(tmp_path / "run.h5") as run:
        writer.append("faithfulness", 10, rows[0][1])
        assert len(run.faithfulness.steps) == 0
        run.refresh()
        np.testing.assert_array_equal(run.faithfulness["kept_loss"][0], rows[0][1]["kept_loss"])
    writer.close()


def test_a_run_without_it(tmp_path):
    random_run(tmp_path / "run.h5")
    with open_run(tmp_path / "run.h5") as run:
        assert run.faithfulness is None
        run.refresh()
        with pytest.raises(KeyError) as caught:
            run.to_xarray("faithfulness")
    assert caught.value.args == (
        f"{tmp_path / 'run.h5'} has no group 'faithfulness'; it has snapshots, train, metrics.",
    )
