"""Synergy beside the snapshots of a training."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dynamics import GapTrackerCallback, Schedule, open_run, take_snapshot, take_synergy
from dynamics.analysis import gap_table, rho_table, synergy_table
from dynamics.errors import ConfigurationError
from dynamics.synergy import set_names, with_controls
from tests.callbacks.test_gap_tracker import Fail, Keep
from tests.callbacks.trainings import small_data, small_module, tracked

QUICK = {"measurements": ("gradient_norm", "ablation"), "baselines": ("zero", "mean")}


@pytest.mark.parametrize("accumulate", [1, 2])
def test_rows_hold_the_roles_of_the_snapshot_of_their_step(tmp_path, accumulate):
    keep = Keep()
    tracked(
        tmp_path, schedule=Schedule.at([2, 3]), synergy=Schedule.at([0, 3, 5]), faithfulness=Schedule.at([3]),
        callbacks=[keep], accumulate_grad_batches=accumulate, **QUICK,
    )  # fmt: skip
    probe = small_data().probe()
    with open_run(tmp_path / "run.h5") as run:
        # Not before the first step; at step 5 a snapshot is taken for its sake; and both come at the end.
        assert run.steps.tolist() == [0, 2, 3, 5, 6]
        assert run.synergy.steps.tolist() == [3, 5, 6]
        assert run.faithfulness.steps.tolist() == [3, 6]
        assert run.metadata["tracker"]["synergy"] == "Schedule.at([0, 3, 5])"
        names = run.synergy.labels("set").tolist()
        assert tuple(names) == set_names(("bloats", "heroes"))
        table = synergy_table(run).set_index(["step", "set", "score"])
        for row, step in enumerate(run.synergy.steps.tolist()):
            # An untrained model solves nothing, and then rho is defined by the loss only.
            judge = "exact_match" if rho_table(run).set_index("step")["rho"].notna()[step] else "loss"
            assert run.synergy["role_score"][row] == ("exact_match", "loss").index(judge)
            roles = gap_table(run, score=judge)
            roles = roles[roles["step"] == step]["role"].tolist()
            sets = {
                name: [i for i, role in enumerate(roles) if role == of]
                for name, of in (("bloats", "bloat"), ("heroes", "hero"))
            }
            module, sets = keep.modules[step], with_controls(sets, 6)
            taken = take_synergy(module, probe, sets)
            for name in ("joint_loss", "joint_exact_match", "membership"):
                np.testing.assert_array_equal(run.synergy[name][row], taken[name])
                assert run.synergy.dims(name) == ("step", *taken.dims(name))
            by_hand = (taken["joint_loss"][0].astype(float) - take_snapshot(module, probe)["loss"]).mean()
            assert table.loc[(step, "bloats", "loss"), "joint"] == pytest.approx(by_hand, abs=1e-12)
            assert table.loc[(step, "bloats", "loss"), "size"] == len(sets["bloats"])
        assert (table["draws"] == 10).all()
        assert table["size"].max() > 0


def test_it_is_off_by_default_and_none_switches_it_off(tmp_path):
    assert GapTrackerCallback(tmp_path / "run.h5").synergy is None
    tracked(tmp_path, **QUICK)
    with open_run(tmp_path / "run.h5") as run:
        assert run.synergy is None
        assert run.metadata["tracker"]["synergy"] is None


def test_alone_it_is_measured_once_where_the_schedule_and_the_end_meet(tmp_path):
    tracked(tmp_path, synergy={"every": 3}, schedule=6, **QUICK)
    with open_run(tmp_path / "run.h5") as run:
        assert run.faithfulness is None
        assert run.steps.tolist() == [0, 3, 6]
        assert run.synergy.steps.tolist() == [3, 6]


def test_a_model_that_diverged_has_no_roles_and_says_so(tmp_path):
    module = small_module()
    with torch.no_grad():
        module.model.blocks[0].mlp.input.weight[0, 0] = torch.nan
    with pytest.warns(RuntimeWarning, match="not finite"):
        tracked(tmp_path, module, synergy=6, **QUICK)
    with open_run(tmp_path / "run.h5") as run:
        assert run.synergy["role_score"].tolist() == [-1]
        assert not run.synergy["membership"].any()
        table = synergy_table(run)
    assert table["judged_by"].isna().all()
    assert (table["size"] == 0).all()
    # The empty set is the unablated model: by accuracy nothing is lost, and the loss is unknown.
    assert table.set_index(["set", "score"]).loc[("bloats", "exact_match"), "joint"] == 0
    reasons = dict(zip(table["score"], table["reason"], strict=True))
    assert reasons == {"exact_match": "the set is empty", "loss": "a value of C is not finite"}


def test_an_interrupted_training_is_not_held_up_by_it(tmp_path):
    with pytest.raises(ValueError, match="broken"):
        tracked(tmp_path, synergy=2, callbacks=[Fail(ValueError("broken"))], **QUICK)
    with open_run(tmp_path / "run.h5") as run:
        assert run.steps.tolist() == [0, 2, 3]
        assert run.synergy.steps.tolist() == [2]


@pytest.mark.parametrize(
    ("measurements", "baselines", "named"),
    [
        ("ablation", "mean", "the measurements clean, ablation and the baselines mean"),
        (
            ("gradient_norm", "ablation"),
            "zero",
            "the measurements clean, gradient_norm, ablation and the baselines zero",
        ),
    ],
)
def test_it_needs_what_tells_the_roles(measurements, baselines, named):
    with pytest.raises(ConfigurationError) as caught:
        GapTrackerCallback(measurements=measurements, baselines=baselines, faithfulness=None, synergy=5)
    assert str(caught.value) == (
        "synergy ablates the Bloats and Heroes of a snapshot, which needs the measurements gradient_norm and ablation "
        f"and the baseline mean; got {named}. Add what is missing, or leave synergy=None."
    )
