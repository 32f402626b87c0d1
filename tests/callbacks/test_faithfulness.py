"""Faithfulness beside the snapshots of a training."""

from __future__ import annotations

import lightning as L
import numpy as np
import pytest

from dynamics import GapTrackerCallback, Probe, Schedule, open_run, take_faithfulness, take_snapshot
from dynamics.errors import DynamicsError, ScheduleError
from dynamics.probe import sequence_objective
from tests.callbacks.test_gap_tracker import Fail, Keep
from tests.callbacks.trainings import small_data, tracked

QUICK = {"measurements": ("gradient_norm", "ablation"), "baselines": "mean"}


@pytest.mark.parametrize("accumulate", [1, 2])
def test_rows_share_their_step_with_a_snapshot_that_ranks_them(tmp_path, accumulate):
    keep = Keep()
    tracked(
        tmp_path, schedule=Schedule.at([2, 3]), faithfulness=Schedule.at([0, 3, 5]),
        faithfulness_rankings=["ablation", "|gim|"], callbacks=[keep], accumulate_grad_batches=accumulate,
    )  # fmt: skip
    probe = small_data().probe()
    with open_run(tmp_path / "run.h5") as run:
        # Not before the first step; at step 5 a snapshot is taken for its sake; and both come at the end.
        assert run.steps.tolist() == [0, 2, 3, 5, 6]
        assert run.faithfulness.steps.tolist() == [3, 5, 6]
        assert run.faithfulness.labels("ranking").tolist() == ["ablation", "|gim|"]
        for row, step in enumerate(run.faithfulness.steps):
            module = keep.modules[step]
            taken = take_faithfulness(module, probe, take_snapshot(module, probe), ["ablation", "|gim|"])
            for name in taken:
                np.testing.assert_array_equal(run.faithfulness[name][row], taken[name])
                assert run.faithfulness.dims(name) == ("step", *taken.dims(name))
            snapshot = run.steps.tolist().index(step)
            np.testing.assert_array_equal(run.faithfulness["kept_loss"][row][0, -1], run["loss"][snapshot])
        assert run.metadata["tracker"]["faithfulness"] == "Schedule.at([0, 3, 5])"


def test_by_default_it_is_measured_at_the_end(tmp_path):
    tracker = GapTrackerCallback(tmp_path / "run.h5")
    assert repr(tracker.faithfulness) == "Schedule.every(5000)"
    tracked(tmp_path, faithfulness=5000, schedule=6, max_steps=6, **QUICK)
    with open_run(tmp_path / "run.h5") as run:
        # The snapshot of the last step was taken when it was due, before the end was known.
        assert run.steps.tolist() == [0, 6]
        assert run.faithfulness.steps.tolist() == [6]
        assert run.faithfulness.labels("ranking").tolist() == ["gradient_norm", "ablation", "random"]


def test_it_is_measured_once_where_the_schedule_and_the_end_meet(tmp_path):
    tracked(tmp_path, faithfulness={"every": 3}, schedule=6, **QUICK)
    with open_run(tmp_path / "run.h5") as run:
        assert run.faithfulness.steps.tolist() == [3, 6]


def test_none_switches_it_off(tmp_path):
    tracked(tmp_path, faithfulness=None, **QUICK)
    with open_run(tmp_path / "run.h5") as run:
        assert run.faithfulness is None
        assert run.metadata["tracker"]["faithfulness"] is None


@pytest.mark.parametrize("error", [ValueError("broken"), KeyboardInterrupt()])
def test_an_interrupted_training_is_not_held_up_by_it(tmp_path, error):
    with pytest.raises((ValueError, SystemExit)):
        tracked(tmp_path, faithfulness=2, callbacks=[Fail(error)], **QUICK)
    with open_run(tmp_path / "run.h5") as run:
        assert run.steps.tolist() == [0, 2, 3]
        assert run.faithfulness.steps.tolist() == [2]
        assert not run.finished


def test_a_measurement_that_fails_is_seen_and_not_begun_again(tmp_path):
    calls = 0

    def objective(model, batch):
        nonlocal calls
        calls += 1
        # 3 batches; a snapshot scores each once unablated, once for the gradient, and with each of 6 components gone.
        if calls > 2 * 3 * 8 + 10:
            raise ValueError("objective broke")
        return sequence_objective(model.model, batch)

    probe = Probe(small_data().probe().batches, objective)
    with pytest.raises(ValueError, match="objective broke"):
        tracked(tmp_path, probe=probe, faithfulness=3, schedule=3, **QUICK)
    assert calls == 2 * 3 * 8 + 11
    with open_run(tmp_path / "run.h5") as run:
        assert run.steps.tolist() == [0, 3]
        assert run.faithfulness.steps.tolist() == []
        assert not run.finished


def test_rows_that_cannot_be_written_wait_in_memory(tmp_path, monkeypatch):
    import dynamics.store.writer as writer_module

    full = False

    def reserve(self, needed):
        if full:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(writer_module.RunWriter, "_reserve", reserve)

    class FullDisk(L.Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            nonlocal full
            full = 1 <= trainer.global_step < 5

    with pytest.warns(RuntimeWarning, match="could not be written"):
        tracked(tmp_path, callbacks=[FullDisk()], faithfulness=2, **QUICK)
    tracked(tmp_path / "calm", faithfulness=2, **QUICK)
    with open_run(tmp_path / "run.h5") as run, open_run(tmp_path / "calm" / "run.h5") as calm:
        assert run.faithfulness.steps.tolist() == [2, 4, 6]
        for name in calm.faithfulness:
            np.testing.assert_array_equal(run.faithfulness[name], calm.faithfulness[name])


def test_rankings_and_schedule_are_checked_when_the_callback_is_made():
    with pytest.raises(DynamicsError) as caught:
        GapTrackerCallback(methods=("gim",), baselines="zero", faithfulness_rankings=("gim", "ig", "ablation"))
    assert str(caught.value) == (
        "rankings must be among gradient_norm, gim, random, |gim|, which is what the snapshot's measurements, "
        "baselines and methods allow; got 'ig', 'ablation'."
    )
    with pytest.raises(ScheduleError):
        GapTrackerCallback(faithfulness="often")
