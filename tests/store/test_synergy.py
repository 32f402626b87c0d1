"""The group of synergy rows, which a run has only if it was asked for."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from dynamics import open_run
from tests.analysis.runs import random_run, random_synergy

ROLES = {"bloats": [0, 3], "heroes": [5]}


def test_rows_come_back_exactly(tmp_path):
    sets, first = random_synergy(ROLES, 6)
    _, second = random_synergy({"bloats": [], "heroes": []}, 6, role_score=-1, seed=1)
    random_run(tmp_path / "run.h5", n_steps=4, sets=sets, joint=[(10, first), (30, second)])
    with open_run(tmp_path / "run.h5") as run:
        group = run.synergy
        assert group.steps.tolist() == [10, 30]
        for name in group:
            np.testing.assert_array_equal(group[name], np.stack([first[name], second[name]]))
            assert group[name].dtype == first[name].dtype
        assert {name: group.dims(name) for name in group} == {
            "joint_loss": ("step", "set", "example"),
            "joint_exact_match": ("step", "set", "example"),
            "membership": ("step", "set", "component"),
            "role_score": ("step",),
        }
        assert group.labels("set").tolist() == list(sets)
        assert group.attributes("joint_loss")["units"] == "nat"
        loss = run.to_xarray("synergy").joint_loss.sel(step=30, set="heroes")
        np.testing.assert_array_equal(loss, second["joint_loss"][1])
    with xr.open_dataset(tmp_path / "run.h5", engine="h5netcdf", group="synergy") as dataset:
        assert dataset.membership.dtype == bool
        assert dataset.role_score.values.tolist() == [0, -1]
        assert dataset.membership.sel(step=10, set="bloats").values.tolist() == [True, False, False, True, False, False]


def test_a_run_without_it(tmp_path):
    random_run(tmp_path / "run.h5")
    with open_run(tmp_path / "run.h5") as run:
        assert run.synergy is None
        run.refresh()
        with pytest.raises(KeyError) as caught:
            run.to_xarray("synergy")
    assert caught.value.args == (f"{tmp_path / 'run.h5'} has no group 'synergy'; it has snapshots, train, metrics.",)
