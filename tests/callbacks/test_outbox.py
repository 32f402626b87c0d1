"""What becomes of rows that cannot be written while training goes on."""

from __future__ import annotations

import warnings

import lightning as L
import numpy as np
import pytest

from dynamics import GapTrackerCallback, open_run
from dynamics.errors import ConfigurationError, RunFileError
from tests.callbacks.trainings import tracked


class Hide(L.Callback):
    """Take the folder of the run file away before one step, and bring it back before another."""

    def __init__(self, folder, at=2, back=4):
        self.folder, self.at, self.back = folder, at, back
        self.hidden = folder.with_name("elsewhere")

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.global_step == self.at:
            self.folder.rename(self.hidden)
        if trainer.global_step == self.back:
            self.hidden.rename(self.folder)


def failed(path, step, group="train"):
    return (
        f"{path}: the row of step {step} in {group!r} could not be written (the file at this path was moved, removed "
        "or replaced; put it back). Nothing before it is touched; make room or mend what is wrong, then append the row "
        "again."
    )


def test_a_folder_that_vanishes_for_a_while_costs_no_row(tmp_path):
    folder, calm = tmp_path / "run", tmp_path / "calm"
    with pytest.warns(RuntimeWarning) as caught:
        tracked(folder, callbacks=[Hide(folder)], log_metrics=False)
    assert [str(warning.message) for warning in caught if warning.category is RuntimeWarning] == [
        f"{failed(folder / 'run.h5', 2)} Training goes on; what cannot be written is kept in memory and tried again."
    ]
    tracked(calm)
    with open_run(folder / "run.h5") as run, open_run(calm / "run.h5") as wanted:
        assert run.finished
        for group in ("snapshots", "train", "metrics"):
            assert getattr(run, group).steps.tolist() == getattr(wanted, group).steps.tolist()
        np.testing.assert_array_equal(run["loss"], wanted["loss"])


def test_training_stops_at_a_failed_write_if_asked_to(tmp_path):
    folder = tmp_path / "run"
    hide = Hide(folder, back=-1)
    tracker = None

    class Keep(L.Callback):
        def on_train_start(self, trainer, pl_module):
            nonlocal tracker
            tracker = next(c for c in trainer.callbacks if isinstance(c, GapTrackerCallback))

    with pytest.warns(RuntimeWarning) as caught, pytest.raises(RunFileError) as error:
        tracked(folder, callbacks=[hide, Keep()], log_metrics=False, on_write_error="raise")
    assert str(error.value) == failed(folder / "run.h5", 2)
    assert [str(warning.message) for warning in caught if warning.category is RuntimeWarning] == [
        f"the last snapshot of {folder / 'run.h5'} could not be taken: {failed(folder / 'run.h5', 2)}"
    ]
    # What could not be written is there still.
    with pytest.raises(RunFileError, match="the row of step 2 in 'train'"):
        tracker.close()
    hide.hidden.rename(folder)
    tracker.close()
    with open_run(folder / "run.h5") as run:
        assert run.train.steps.tolist() == [0, 1, 2]
        assert not run.finished


def test_a_failure_to_close_is_raised_if_asked_to(tmp_path, monkeypatch):
    def close(self, finished):
        raise RunFileError("no")

    for on_write_error in ("raise", "continue"):
        with monkeypatch.context() as patch:
            patch.setattr("dynamics.store.writer.RunWriter.close", close)
            context = (
                pytest.raises(RunFileError, match="no") if on_write_error == "raise" else pytest.warns(RuntimeWarning)
            )
            with context, warnings.catch_warnings():
                warnings.filterwarnings("ignore", "the last snapshot")
                tracked(tmp_path / on_write_error, log_metrics=False, on_write_error=on_write_error)


def test_an_unknown_choice_is_refused():
    with pytest.raises(ConfigurationError) as error:
        GapTrackerCallback(on_write_error="ignore")
    assert str(error.value) == (
        "on_write_error is 'ignore', expected 'continue' (warn, and try again later) or 'raise'."
    )
