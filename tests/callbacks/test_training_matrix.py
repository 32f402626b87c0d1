"""Training with the tracker ends in the same bits as training without it, in every way to train that we know of."""

from __future__ import annotations

import random
from functools import cache

import lightning as L
import numpy as np
import pytest
import torch

from dynamics import GapTrackerCallback, open_run
from dynamics.errors import MeasurementError
from dynamics.probe import sequence_objective
from tests.callbacks.matrix import (
    CELLS,
    SLOW_CELLS,
    Cell,
    failing_objective,
    first_difference,
    small_probe,
    tracker,
    train,
)
from tests.measurements.test_derivatives import REFUSED


def check(cell, folder):
    alone = train(cell, folder / "alone", [])
    tracked = train(cell, folder / "tracked", [tracker(cell, folder / "tracked")])
    difference = first_difference(alone, tracked)
    assert difference is None, difference
    with open_run(folder / "tracked" / "run.h5") as run:
        assert run.finished
        assert run.steps[0] == 0
        assert len(run.steps) > 2


@pytest.mark.parametrize("name", CELLS)
def test_training_is_not_touched(tmp_path, name):
    check(CELLS[name], tmp_path)


@pytest.mark.soak
# The compiler's own: what PyTorch deprecates inside of it, and Python functions that it leaves uncompiled.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:Dynamo does not know how to trace")
@pytest.mark.parametrize("name", SLOW_CELLS)
def test_training_is_not_touched_in_the_slow_cells(tmp_path, name):
    check(SLOW_CELLS[name], tmp_path)


def test_compiled_code_is_not_compiled_anew(tmp_path):
    compiled: dict[str, int] = {}

    def in_place(name):
        def backend(graph, inputs):
            compiled[name] = compiled.get(name, 0) + 1
            return graph.forward

        def compile_(module):
            module.decoder.compile(backend=backend)
            return module

        return Cell(compiled=compile_)

    for name in ("alone", "tracked"):
        torch._dynamo.reset()
        observers = [tracker(Cell(), tmp_path / name)] if name == "tracked" else []
        train(in_place(name), tmp_path / name, observers)
    assert compiled["alone"] == compiled["tracked"] > 0


# --- a measurement that fails ----------------------------------------------------------------------------------------


class PlantedError(Exception):
    pass


class Forgiving(GapTrackerCallback):
    """Let training go on after a measurement that failed."""

    failures = 0

    def on_train_batch_end(self, *args):
        try:
            super().on_train_batch_end(*args)
        except PlantedError:
            self.failures += 1


FAILING = Cell({"dropout": 0.2, "batch_norm": True})
PER_SNAPSHOT = 2 + 2 + (2 + 2 + 2 * 2) + 2 + 2 * 6 * 2
"""Calls of the objective: clean, gradient norm, attribution by three methods, self-repair, ablation."""


@cache
def _alone(folder):
    return train(FAILING, folder, [])


@pytest.mark.parametrize(
    ("into", "what"), [(1, "clean"), (3, "gradient norm"), (5, "attribution"), (7, "GIM"), (10, "IG"),
                       (13, "self-repair"), (14, "self-repair"), (15, "ablation"), (38, "ablation")],
)  # fmt: skip
def test_a_snapshot_that_failed_half_way_leaves_training_as_it_was(tmp_path_factory, tmp_path, into, what):
    alone = _alone(tmp_path_factory.getbasetemp() / "alone")
    probe = small_probe(failing_objective(PER_SNAPSHOT + into, PlantedError()))
    observer = Forgiving(tmp_path / "run.h5", probe, 3, train_gradients=1, faithfulness=None, ig_steps=2)
    tracked = train(FAILING, tmp_path, [observer])
    difference = first_difference(alone, tracked)
    assert difference is None, difference
    assert observer.failures == 1
    with open_run(tmp_path / "run.h5") as run:
        assert run.steps.tolist() == [0, 6, 8]


def test_the_calls_of_a_snapshot_are_as_many_as_the_test_above_takes_them_to_be(tmp_path):
    probe = small_probe(failing_objective(PER_SNAPSHOT + 1, PlantedError()))
    tracker_of_two = GapTrackerCallback(tmp_path / "run.h5", probe, 3, faithfulness=None, ig_steps=2)
    with pytest.raises(PlantedError):
        train(FAILING, tmp_path, [tracker_of_two])
    with open_run(tmp_path / "run.h5") as run:
        assert run.steps.tolist() == [0]


def test_reentrant_checkpointing_is_refused_before_the_first_step(tmp_path):
    cell = Cell({"checkpointing": True, "reentrant": True})
    with (
        pytest.warns(UserWarning, match="None of the inputs have requires_grad=True"),
        pytest.raises(MeasurementError) as error,
    ):
        train(cell, tmp_path, [tracker(cell, tmp_path)])
    assert str(error.value) == REFUSED
    assert not (tmp_path / "run.h5").exists()


# --- weights other than those that training goes on with -------------------------------------------------------------


@pytest.mark.parametrize("name", ["EMA", "SWA"])
def test_the_weights_in_training_are_measured_rather_than_averages_of_them(tmp_path, name):
    cell, alone = CELLS[name], Cell(CELLS[name].module, CELLS[name].trainer)
    first, last = tracker(cell, tmp_path / "first"), tracker(cell, tmp_path / "last")
    train(cell, tmp_path / "last", [last])
    train(alone, tmp_path / "first", [first, *cell.callbacks(tmp_path / "first")])
    with open_run(tmp_path / "last" / "run.h5") as run, open_run(tmp_path / "first" / "run.h5") as other:
        for group in ("snapshots", "faithfulness", "synergy"):
            one, two = getattr(run, group), getattr(other, group)
            assert one.steps.tolist() == two.steps.tolist()
            for array in one:
                np.testing.assert_array_equal(one[array], two[array])


def test_the_last_row_beside_weight_averaging_is_that_of_the_same_training_without(tmp_path):
    # A schedule that meets no step: the last row is taken when training ends.
    cell = Cell(tracker={"schedule": 100, "faithfulness": None, "synergy": None})
    averaged = Cell(callbacks=CELLS["EMA"].callbacks)
    for each, folder in ((cell, tmp_path / "plain"), (averaged, tmp_path / "averaged")):
        train(each, folder, [tracker(cell, folder)])
    with open_run(tmp_path / "plain" / "run.h5") as run, open_run(tmp_path / "averaged" / "run.h5") as other:
        assert run.steps.tolist() == other.steps.tolist() == [0, 8]
        for array in run:
            np.testing.assert_array_equal(run[array], other[array])


def test_no_last_row_is_taken_where_a_validation_of_averages_was_interrupted(tmp_path):
    class Break(L.Callback):
        def on_validation_batch_end(self, *_, **__):
            raise PlantedError

    cell = Cell(callbacks=CELLS["EMA"].callbacks)
    for folder, others in ((tmp_path / "plain", []), (tmp_path / "averaged", cell.callbacks(tmp_path))):
        with pytest.raises(PlantedError):
            train(Cell(), folder, [*others, Break(), tracker(Cell(tracker={"schedule": 3}), folder)])
    with open_run(tmp_path / "plain" / "run.h5") as run, open_run(tmp_path / "averaged" / "run.h5") as other:
        assert run.steps.tolist() == [0, 3, 4]
        assert other.steps.tolist() == [0, 3]


# --- the comparison itself -------------------------------------------------------------------------------------------


class Intruder(L.Callback):
    """Do something to a training, once, at its third step."""

    def __init__(self, do) -> None:
        self.do, self.done = do, False

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.global_step == 3 and not self.done:
            self.done = True
            self.do(trainer, pl_module)


def _takes_a_batch(trainer, module):
    next(trainer.fit_loop._data_fetcher.iterator)


def _touches_a_gradient(trainer, module):
    gradient = module.decoder.unembed.weight.grad
    gradient[0, 0] = torch.nextafter(gradient[0, 0], gradient.new_tensor(9.0))


def _goes_back_through_the_loss(trainer, module):
    scores, _ = sequence_objective(module.decoder, small_probe().batches[0])
    scores.mean().backward()


@torch.no_grad()
def _moves_a_weight(trainer, module):
    weight = module.decoder.unembed.weight
    weight[0, 0] = torch.nextafter(weight[0, 0], weight.new_tensor(9.0))


def _counts_a_batch(trainer, module):
    module.decoder.final_norm[1].norm.num_batches_tracked += 1


def _counts_a_step(trainer, module):
    next(iter(trainer.optimizers[0].state.values()))["step"] += 1


def _leaves_a_hook(trainer, module):
    module.decoder.blocks[0].register_forward_hook(lambda *_: None)


def _leaves_a_gradient_hook(trainer, module):
    module.decoder.unembed.weight.register_hook(lambda gradient: None)


INTRUDERS = {
    "torch's random numbers": lambda trainer, module: torch.rand(1),
    "numpy's random numbers": lambda trainer, module: np.random.rand(),
    "python's random numbers": lambda trainer, module: random.random(),
    "the batch": _takes_a_batch,
    "gradients": _touches_a_gradient,
    "gradients ": _goes_back_through_the_loss,
    "weights": _moves_a_weight,
    "buffers": _counts_a_batch,
    "train flags": lambda trainer, module: module.decoder.blocks[1].dropout.eval(),
    "requires_grad": lambda trainer, module: module.decoder.embed.requires_grad_(False),
    "hooks": _leaves_a_hook,
    "gradient hooks": _leaves_a_gradient_hook,
    "attributes": lambda trainer, module: setattr(module.decoder, "seen", True),
    "optimizers": _counts_a_step,
    "learning rates": lambda trainer, module: trainer.lr_scheduler_configs[0].scheduler.step(),
    "logged metrics": lambda trainer, module: module.log("other", 1.0),
    "what was logged": lambda trainer, module: trainer.loggers[0].log_metrics({"other": 1.0}),
}


@pytest.mark.parametrize("what", INTRUDERS)
def test_the_comparison_sees_what_an_observer_may_not_do(tmp_path_factory, tmp_path, what):
    alone = _alone(tmp_path_factory.getbasetemp() / "alone")
    watched = train(FAILING, tmp_path, [Intruder(INTRUDERS[what])])
    moment = "the end" if what == "what was logged" else "batch 3"
    difference = first_difference(alone, watched)
    assert difference is not None
    assert difference.startswith(f"at {moment}: ")
    assert what.strip() in difference.removeprefix(f"at {moment}: ").split(", ")


def test_the_comparison_sees_an_observer_that_stops_training(tmp_path_factory, tmp_path):
    alone = _alone(tmp_path_factory.getbasetemp() / "alone")
    stopped = train(FAILING, tmp_path, [Intruder(lambda trainer, module: setattr(trainer, "should_stop", True))])
    assert first_difference(alone, stopped) is not None
