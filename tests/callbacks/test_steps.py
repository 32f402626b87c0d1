"""At which steps rows are taken, in every way for a training to go and to end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import lightning as L
import pytest

from dynamics import GapTrackerCallback, Schedule, open_run
from tests.callbacks.matrix import Cell, Data, Trained, small_probe, train
from tests.callbacks.trainings import small_trainer

PROBE = small_probe()
EVERY_SECOND = Schedule.every(2)


class BrokenError(Exception):
    pass


class At(L.Callback):
    """Do something in a hook, at a step."""

    def __init__(self, hook: str, step: int, do: Any) -> None:
        def called(trainer: L.Trainer, *_: Any, **__: Any) -> None:
            if trainer.global_step == step:
                do(trainer)

        setattr(self, hook, called)


def stop(trainer: L.Trainer) -> None:
    trainer.should_stop = True


def fail(_: L.Trainer) -> None:
    raise BrokenError


def interrupt(_: L.Trainer) -> None:
    raise KeyboardInterrupt


@dataclass
class Course:
    """How a training goes.

    Attributes:
        rows: Steps of the rows that there should be.
        trainer: Options of the Trainer.
        callbacks: Callbacks after the tracker.
        before: Callbacks before the tracker.
        module: Options of the module.
        schedule: When snapshots are due.
        raises: What the training ends with.
        train_rows: Steps of the rows of training gradients; default: all that there were.
    """

    rows: Sequence[int]
    trainer: dict[str, Any] = field(default_factory=dict)
    callbacks: Sequence[L.Callback] = ()
    before: Sequence[L.Callback] = ()
    module: dict[str, Any] = field(default_factory=dict)
    schedule: Schedule = EVERY_SECOND
    raises: type[BaseException] | None = None
    train_rows: Sequence[int] | None = None


# An epoch has five batches.
COURSES = {
    "max_steps": Course([0, 2, 4, 5], {"max_steps": 5}),
    "max_steps where a row is due": Course([0, 2, 4, 6], {"max_steps": 6}),
    "max_epochs": Course([0, 2, 4, 6, 8, 10], {"max_steps": -1, "max_epochs": 2}),
    "one epoch": Course([0, 2, 4, 5], {"max_steps": -1, "max_epochs": 1}),
    "no step": Course([0], {"max_steps": 0}),
    "no epoch": Course([0], {"max_steps": -1, "max_epochs": 0}),
    "no batch": Course([0], {"limit_train_batches": 0}),
    "one step": Course([0, 1], {"max_steps": 1}),
    "no time": Course([0], {"max_time": {"seconds": 0}, "max_steps": 9}),
    "accumulation": Course([0, 2, 4, 5], {"max_steps": 5, "accumulate_grad_batches": 2}, train_rows=[0, 1, 2, 3, 4]),
    # Of five batches the fifth is a step of its own.
    "accumulation over an epoch": Course(
        [0, 2, 4, 6], {"max_steps": -1, "max_epochs": 2, "accumulate_grad_batches": 2}, train_rows=[0, 1, 2, 3, 4, 5]
    ),
    # Lightning counts the steps of both optimizers: two for each batch.
    "two optimizers": Course(
        [0, 4, 6, 8], {"max_steps": 8}, module={"manual": True}, schedule=Schedule.at([3, 6]),
        train_rows=[0, 1, 2, 3, 4, 5, 6, 7],
    ),
    "L-BFGS": Course([0, 2, 3], {"max_steps": 3}, module={"optimizer": "lbfgs"}),
    "fresh loader each epoch": Course(
        [0, 2, 4, 6, 8, 10], {"max_steps": -1, "max_epochs": 2, "reload_dataloaders_every_n_epochs": 1}
    ),
    "should_stop": Course([0, 2, 3], callbacks=[At("on_train_batch_end", 3, stop)]),
    "should_stop where a row is due": Course([0, 2, 4], callbacks=[At("on_train_batch_end", 4, stop)]),
    "should_stop before the tracker": Course([0, 2, 3], before=[At("on_train_batch_end", 3, stop)]),
    "should_stop in validation": Course([0, 2, 4], callbacks=[At("on_validation_end", 4, stop)]),
    "should_stop at the start": Course([0], callbacks=[At("on_train_start", 0, stop)]),
    "exception": Course([0, 2, 3], callbacks=[At("on_train_batch_start", 3, fail)], raises=BrokenError),
    "exception where a row is due": Course(
        [0, 2, 4], callbacks=[At("on_train_batch_end", 4, fail)], raises=BrokenError
    ),
    "exception at a due row, before the tracker": Course(
        [0, 2, 4], before=[At("on_train_batch_end", 4, fail)], raises=BrokenError
    ),
    "exception in the backward pass": Course(
        [0, 2, 3], callbacks=[At("on_after_backward", 3, fail)], raises=BrokenError
    ),
    "exception in validation": Course([0, 2, 4], callbacks=[At("on_validation_start", 4, fail)], raises=BrokenError),
    "exception in the first batch": Course([0], callbacks=[At("on_train_batch_start", 0, fail)], raises=BrokenError),
    "exception at the start": Course([0], callbacks=[At("on_train_start", 0, fail)], raises=BrokenError),
    "exception at the end": Course(
        [0, 2, 4, 5], {"max_steps": 5}, callbacks=[At("on_train_end", 5, fail)], raises=BrokenError
    ),
    "KeyboardInterrupt": Course([0, 2, 3], callbacks=[At("on_train_batch_start", 3, interrupt)], raises=SystemExit),
}  # fmt: skip


@pytest.mark.parametrize("name", COURSES)
def test_rows_are_taken_before_at_the_scheduled_steps_and_at_the_end(tmp_path, name):
    course = COURSES[name]
    path = tmp_path / "run.h5"
    observer = GapTrackerCallback(
        path, PROBE, course.schedule, measurements="ablation", baselines="mean", train_gradients=1, faithfulness=None
    )
    cell = Cell(course.module, course.trainer)
    observers = [*course.before, observer, *course.callbacks]
    if course.raises is None:
        train(cell, tmp_path, observers, must_log=False)
    else:
        with pytest.raises(course.raises):
            train(cell, tmp_path, observers)
    with open_run(path) as run:
        assert run.steps.tolist() == list(course.rows)
        # At the end all was over before another callback failed.
        assert run.finished == (course.raises is None or name == "exception at the end")
        if course.train_rows is not None:
            assert run.train.steps.tolist() == list(course.train_rows)


@pytest.mark.parametrize("what", ["fast_dev_run", "validate", "test", "predict"])
def test_no_file_is_written_where_nothing_is_trained(tmp_path, what):
    class Whole(Trained):
        def test_step(self, batch, batch_idx):
            self.validation_step(batch, batch_idx)

        def predict_step(self, batch, batch_idx):
            return self.loss(batch)

    class More(Data):
        def test_dataloader(self):
            return self.val_dataloader()

        predict_dataloader = test_dataloader

    observer = GapTrackerCallback(tmp_path / "run.h5", PROBE, 1)
    trainer = small_trainer(tmp_path, [observer], **({"fast_dev_run": 3} if what == "fast_dev_run" else {}))
    options = {"verbose": False} if what in ("validate", "test") else {}
    getattr(trainer, "fit" if what == "fast_dev_run" else what)(Whole(), More(), **options)
    assert list(tmp_path.rglob("*.h5")) == []


def test_validating_after_training_takes_no_row(tmp_path):
    observer = GapTrackerCallback(tmp_path / "run.h5", PROBE, 2, measurements="ablation", faithfulness=None)
    trainer = small_trainer(tmp_path, [observer], max_steps=3)
    module = Trained()
    trainer.fit(module, Data())
    content = (tmp_path / "run.h5").read_bytes()
    trainer.validate(module, Data(), verbose=False)
    assert (tmp_path / "run.h5").read_bytes() == content
