from __future__ import annotations

import copy
import warnings

import lightning as L
import numpy as np
import pytest
import torch

from dynamics import GapTrackerCallback, GIMRules, Probe, Schedule, find_components, open_run, take_snapshot
from dynamics.errors import ComponentError, ConfigurationError, DynamicsError, ProbeError, RunFileError
from tests.callbacks.trainings import BareModule, csv_logger, read_log, small_data, small_module, small_trainer, tracked


class Keep(L.Callback):
    """Keep copies of the module by step, and the gradients before clipping."""

    def __init__(self) -> None:
        self.modules: dict[int, L.LightningModule] = {}
        self.gradients: dict[int, dict[str, torch.Tensor]] = {}

    def on_train_start(self, trainer, pl_module):
        self.modules[0] = copy.deepcopy(pl_module.model)

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        self.gradients[trainer.global_step] = {n: p.grad.clone() for n, p in pl_module.named_parameters()}

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        self.modules[trainer.global_step] = copy.deepcopy(pl_module.model)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_rows_are_the_snapshots_of_the_model_at_their_steps(tmp_path, accumulate):
    keep = Keep()
    tracked(tmp_path, schedule=Schedule.at([1, 4]), callbacks=[keep], accumulate_grad_batches=accumulate)
    probe = small_data().probe()
    with open_run(tmp_path / "run.h5") as run:
        assert run.steps.tolist() == [0, 1, 4, 6]
        assert run.finished
        for row, step in enumerate(run.steps):
            snapshot = take_snapshot(keep.modules[step], probe)
            for name in snapshot:
                np.testing.assert_array_equal(run[name][row], snapshot[name])
                assert run.dims(name) == ("step", *snapshot.dims(name))
        assert run.metadata["probe"]["fingerprint"] == probe.fingerprint()


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_training_gradient_is_the_accumulated_one_before_clipping(tmp_path, accumulate):
    keep = Keep()
    tracked(
        tmp_path, train_gradients=Schedule.at([0, 2, 3]), callbacks=[keep], accumulate_grad_batches=accumulate,
        gradient_clip_val=1e-3,
    )  # fmt: skip
    with open_run(tmp_path / "run.h5") as run:
        assert run.train.steps.tolist() == [0, 2, 3]
        width = 8
        for row, step in enumerate(run.train.steps):
            gradients = keep.gradients[step]
            expected = []
            for component in run.components:
                block = f"model.blocks.{component.layer}"
                if component.head is None:
                    own = gradients[f"{block}.mlp.output.weight"].flatten()
                else:
                    rows = slice(component.head * width, (component.head + 1) * width)
                    value = gradients[f"{block}.attention.value.weight"][rows]
                    output = gradients[f"{block}.attention.output.weight"][:, rows]
                    own = torch.cat([value.flatten(), output.flatten()])
                expected.append(own.square().mean().sqrt().item())
            np.testing.assert_allclose(run.train["gradient_norm"][row], expected, rtol=1e-5)
            assert np.linalg.norm(expected) > 1e-3


def test_logged_metrics_are_recorded_at_their_steps(tmp_path):
    tracked(tmp_path, logger=csv_logger(tmp_path), val_check_interval=3, check_val_every_n_epoch=None)
    logged = {
        (int(line["step"]), name): float(value)
        for line in read_log(tmp_path)
        for name, value in line.items()
        if name not in ("step", "epoch") and not name.startswith("gap/")
    }
    with open_run(tmp_path / "run.h5") as run:
        table = run.to_xarray("metrics").value
        names = set(table.metric.values.tolist())
        assert {"train/loss", "train/exact_match", "id/exact_match", "ood/exact_match_length_11"} <= names
        assert not any(name.startswith("gap/") for name in names)
        for position, step in enumerate(table.step.values):
            for name in names:
                value = table.values[position, table.metric.values.tolist().index(name)]
                if not np.isnan(value):
                    # Lightning's loggers count the batch that led to step s as s - 1.
                    assert value == pytest.approx(logged[step - 1, name], rel=1e-6)
        # Nothing is recorded twice at a step.
        for column in table.values.T:
            steps = table.step.values[~np.isnan(column)]
            assert len(set(steps.tolist())) == len(steps)
        validated = table.step.values[~np.isnan(table.sel(metric="ood/exact_match").values)]
        assert validated.tolist() == [3, 6]


def test_rho_and_role_counts_reach_loggers_and_progress_bar(tmp_path):
    _, trainer, _ = tracked(tmp_path, logger=csv_logger(tmp_path))
    sent = {int(line["step"]): line for line in read_log(tmp_path) if "gap/rho_loss" in line}
    assert sorted(sent) == [0, 2, 4, 6]
    assert set(sent[2]) == {"step", *(f"gap/{name}" for name in ("rho", "rho_loss", "heroes", "bloats", "chance"))}
    # n = 6 components, tau = 2: 6 * (4 * 5) / (2 * 36)
    assert float(sent[2]["gap/chance"]) == pytest.approx(6 * 20 / 72)
    assert {"gap/rho", "gap/rho_loss"} <= set(trainer.progress_bar_metrics)
    quiet = tmp_path / "quiet"
    _, trainer, _ = tracked(quiet, logger=csv_logger(quiet), log_metrics=False)
    assert not any(name.startswith("gap/") for line in read_log(quiet) for name in line)
    assert "gap/rho" not in trainer.progress_bar_metrics


def test_a_users_own_module_needs_nothing_but_the_callback(tmp_path):
    module = BareModule()
    tracked(tmp_path, module)
    with open_run(tmp_path / "run.h5") as run:
        assert run.steps.tolist() == [0, 2, 4, 6]
        last = take_snapshot(module.decoder, small_data().probe())
        np.testing.assert_array_equal(run["ablation_loss"][-1], last["ablation_loss"])


def test_the_probe_may_be_batches_a_probe_or_the_modules_own(tmp_path):
    batches = list(small_data().probe().batches)[:2]
    expected = Probe(batches).fingerprint()

    class WithProbe(BareModule):
        def probe(self):
            return batches

    loader = small_data().train_dataloader()
    for name, module, probe in (
        ("batches", BareModule(), batches),
        ("generator", BareModule(), (batch for batch in batches)),
        ("probe", BareModule(), Probe(batches)),
        ("module", WithProbe(), None),
    ):
        tracked(tmp_path / name, module, loader, probe=probe)
        with open_run(tmp_path / name / "run.h5") as run:
            assert run.metadata["probe"] == {"batches": 2, "examples": 8, "fingerprint": expected}


def test_no_probe_is_refused_before_training(tmp_path):
    module = BareModule()
    before = copy.deepcopy(module.state_dict())
    with pytest.raises(ProbeError) as error:
        tracked(tmp_path, module, small_data().train_dataloader())
    assert str(error.value) == (
        "GapTrackerCallback has no probe: expected probe=... or a probe() method on the data module or the module, "
        "and found neither. Pass a list of batches with input_ids and labels that the model is not trained on."
    )
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    assert not (tmp_path / "run.h5").exists()


def test_unknown_components_are_refused_before_training(tmp_path):
    module = BareModule(torch.nn.Sequential(torch.nn.Embedding(103, 8), torch.nn.Linear(8, 103)))
    with pytest.raises(ComponentError, match=r"^no known transformer in BareModule, whose submodules are "):
        tracked(tmp_path, module)
    assert not (tmp_path / "run.h5").exists()


def test_a_component_map_of_ones_own(tmp_path):
    module = small_module()
    some = find_components(module)
    chosen = type(some)(some[:3], root=some.root)
    tracked(tmp_path, module, components=chosen)
    with open_run(tmp_path / "run.h5") as run:
        assert [c.label for c in run.components] == ["L0H0", "L0H1", "L0MLP"]
        assert run["gradient_norm"].shape == (4, 3, 3)


def test_an_existing_file_is_refused_before_training_and_kept(tmp_path):
    path = tmp_path / "run.h5"
    path.write_text("precious")
    module = small_module()
    before = copy.deepcopy(module.state_dict())
    with pytest.raises(RunFileError, match="exists already and is not overwritten"):
        tracked(tmp_path, module)
    assert path.read_text() == "precious"
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    tracked(tmp_path, module, overwrite=True)
    with open_run(path) as run:
        assert len(run.steps) == 4


def test_a_second_fit_does_not_destroy_the_first_run(tmp_path):
    tracker, _, module = tracked(tmp_path, overwrite=True)
    with pytest.raises(RunFileError) as error:
        small_trainer(tmp_path, [tracker]).fit(module, small_data())
    assert str(error.value) == (
        f"this GapTrackerCallback has already written {tmp_path / 'run.h5'}; for another call of fit, "
        "make a new callback with another path."
    )
    with open_run(tmp_path / "run.h5") as run:
        assert run.steps.tolist() == [0, 2, 4, 6]


def test_sharded_strategies_are_refused(tmp_path):
    tracker = GapTrackerCallback(tmp_path / "run.h5")
    trainer = small_trainer(tmp_path, [tracker])
    strategy = L.pytorch.strategies.FSDPStrategy.__new__(L.pytorch.strategies.FSDPStrategy)
    trainer.strategy.__class__ = type("Sharded", (type(strategy), type(trainer.strategy)), {})
    with pytest.raises(ConfigurationError) as error:
        tracker.setup(trainer, small_module(), "fit")
    assert str(error.value) == (
        "GapTrackerCallback cannot measure under Sharded, which shards parameters; "
        "train with strategy='auto' or 'ddp', or measure saved checkpoints with take_snapshot."
    )


def test_a_trial_run_writes_no_file(tmp_path):
    tracked(tmp_path, fast_dev_run=2)
    assert not (tmp_path / "run.h5").exists()


def test_validation_alone_writes_no_file(tmp_path):
    trainer = small_trainer(tmp_path, [GapTrackerCallback(tmp_path / "run.h5")])
    trainer.validate(small_module(), small_data(), verbose=False)
    assert not (tmp_path / "run.h5").exists()


class Poison(L.Callback):
    """Make the weights NaN after a step."""

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.global_step == 3:
            with torch.no_grad():
                pl_module.model.unembed.weight.fill_(torch.nan)


def test_a_nan_loss_is_recorded_and_training_goes_on(tmp_path):
    with pytest.warns(RuntimeWarning) as caught:
        _, trainer, _ = tracked(tmp_path, callbacks=[Poison()])
    assert [str(w.message) for w in caught if w.category is RuntimeWarning] == [
        "step 4: the probe's loss is not finite for 12 of 12 examples. It is recorded as it is, and training goes on."
    ]
    assert trainer.global_step == 6
    with open_run(tmp_path / "run.h5") as run:
        assert run.steps.tolist() == [0, 2, 4, 6]
        assert np.isfinite(run["loss"][:2]).all()
        assert np.isnan(run["loss"][2:]).all()
        assert np.isnan(run["gradient_norm"][2:]).all()
        loss = run.metrics["value"][:, run.metrics.labels("metric").tolist().index("train/loss")]
        assert np.isnan(loss[run.metrics.steps > 4]).all()
        assert np.isnan(run.train["gradient_norm"][run.train.steps > 3]).all()


class Fail(L.Callback):
    def __init__(self, error: BaseException, step: int = 3) -> None:
        self.error, self.step = error, step

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.global_step == self.step:
            raise self.error


@pytest.mark.parametrize("error", [ValueError("broken"), KeyboardInterrupt()])
def test_an_interrupted_training_leaves_a_last_snapshot_and_a_closed_file(tmp_path, error):
    with pytest.raises((ValueError, SystemExit)):
        tracked(tmp_path, callbacks=[Fail(error)])
    with open_run(tmp_path / "run.h5") as run:
        assert run.steps.tolist() == [0, 2, 3]
        assert not run.finished


def test_training_that_stops_early_ends_with_a_snapshot(tmp_path):
    class Stop(L.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            trainer.should_stop = trainer.global_step == 3

    tracked(tmp_path, callbacks=[Stop()])
    with open_run(tmp_path / "run.h5") as run:
        assert run.steps.tolist() == [0, 2, 3]
        assert run.finished


def test_a_measurement_that_fails_is_seen_and_the_file_stays_whole(tmp_path):
    calls = 0

    def objective(model, batch):
        nonlocal calls
        calls += 1
        if calls > 150:
            raise ValueError("objective broke")
        logits = model.model(batch["input_ids"])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), reduction="none")
        return loss.view(len(logits), -1).mean(1), torch.zeros(len(logits), dtype=torch.bool)

    probe = Probe(small_data().probe().batches, objective=objective)
    with pytest.raises(ValueError, match="objective broke"):
        tracked(tmp_path, probe=probe)
    assert 150 < calls <= 151
    with open_run(tmp_path / "run.h5") as run:
        assert len(run.steps) >= 1
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

    with pytest.warns(RuntimeWarning) as caught:
        _, trainer, _ = tracked(tmp_path, callbacks=[FullDisk()], schedule=1, log_metrics=False)
    assert [str(w.message) for w in caught if w.category is RuntimeWarning] == [
        f"{tmp_path / 'run.h5'}: the row of step 1 in 'train' could not be written ([Errno 28] No space left on "
        "device). Nothing before it is touched; make room or mend what is wrong, then append the row again. "
        "Training goes on; what cannot be written is kept in memory and tried again."
    ]
    assert trainer.global_step == 6
    tracked(tmp_path / "calm", schedule=1)
    with open_run(tmp_path / "run.h5") as run, open_run(tmp_path / "calm" / "run.h5") as calm:
        assert run.finished
        for group in ("snapshots", "train", "metrics"):
            for name in getattr(calm, group):
                np.testing.assert_array_equal(getattr(run, group)[name], getattr(calm, group)[name])
            assert getattr(run, group).steps.tolist() == getattr(calm, group).steps.tolist()


def test_rows_still_waiting_at_the_end_are_not_dropped(tmp_path, monkeypatch):
    import dynamics.store.writer as writer_module

    class FullDisk(L.Callback):
        def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
            if trainer.global_step == 4:
                patch.setattr(
                    writer_module.RunWriter, "_reserve", lambda *_: (_ for _ in ()).throw(OSError("disk full"))
                )

    with monkeypatch.context() as patch, pytest.warns(RuntimeWarning) as caught:
        tracker, _, _ = tracked(tmp_path, callbacks=[FullDisk()])
    assert [str(w.message) for w in caught if w.category is RuntimeWarning][-1] == (
        f"{tmp_path / 'run.h5'}: 5 rows are still not written. Make room, then call "
        "close() of this callback before the program ends."
    )
    with open_run(tmp_path / "run.h5") as run:
        assert run.steps.tolist() == [0, 2, 4]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tracker.close()
    with open_run(tmp_path / "run.h5") as run:
        assert run.steps.tolist() == [0, 2, 4, 6]


def test_a_subset_of_measurements_and_all_weights(tmp_path):
    keep = Keep()
    tracked(
        tmp_path,
        measurements=("gradient_norm", "weight_norm"),
        baselines=("zero",),
        weights="all",
        self_repair_threshold=0.25,
        callbacks=[keep],
    )
    with open_run(tmp_path / "run.h5") as run:
        assert sorted(run) == ["exact_match", "gradient_norm", "loss", "weight_norm"]
        expected = take_snapshot(keep.modules[6], small_data().probe(), weights="all")
        np.testing.assert_array_equal(run["gradient_norm"][-1], expected["gradient_norm"])
        assert run.metadata["tracker"] == {
            "schedule": "Schedule.every(2)",
            "train_gradients": "Schedule.every(1)",
            "faithfulness": None,
            "synergy": None,
            "measurements": ["clean", "weight_norm", "gradient_norm"],
            "weights": "all",
            "rules": {"temperature": 2.0, "freeze_norm": True, "split_products": True},
            "ig_steps": 8,
            "self_repair_threshold": 0.25,
        }


def test_metadata_names_configuration_and_origin(tmp_path):
    tracked(tmp_path, metadata={"note": "</script>"})
    with open_run(tmp_path / "run.h5") as run:
        assert run.metadata["note"] == "</script>"
        assert run.metadata["module"]["class"] == "SequenceModule"
        assert run.metadata["module"]["hyperparameters"]["learning_rate"] == 1e-2
        assert run.metadata["datamodule"]["hyperparameters"]["task"] == "sort"
        assert run.metadata["trainer"]["max_steps"] == 6
        assert "Linear(in_features=16, out_features=32, bias=True)" in run.metadata["network"]
        assert run.metadata["versions"]["torch"]


def test_several_optimizers_do_not_jump_over_scheduled_steps(tmp_path):
    class TwoOptimizers(BareModule):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False
            self.other = torch.nn.Parameter(torch.ones(1))

        def training_step(self, batch, batch_idx):
            loss = super().training_step(batch, batch_idx) + self.other.square().sum()
            for optimizer in self.optimizers():
                optimizer.zero_grad()
            self.manual_backward(loss)
            for optimizer in self.optimizers():
                optimizer.step()

        def configure_optimizers(self):
            return [torch.optim.SGD(self.decoder.parameters(), lr=0.1), torch.optim.SGD([self.other], lr=0.1)]

    tracked(tmp_path, TwoOptimizers(), schedule=Schedule.at([3, 4]), max_steps=8)
    with open_run(tmp_path / "run.h5") as run:
        # Lightning counts two steps per batch here: step 3 does not exist, so it is due at 4; taken once.
        assert run.steps.tolist() == [0, 4, 8]
        # Only the optimizer that owns component weights counts.
        assert run.train.steps.tolist() == [0, 2, 4, 6]
        assert np.isfinite(run.train["gradient_norm"]).all()


def test_one_component_alone_has_no_ranks_but_can_be_tracked(tmp_path):
    module = small_module()
    found = find_components(module)
    tracked(tmp_path, module, components=type(found)(found[:1], root=found.root), baselines="mean")
    with open_run(tmp_path / "run.h5") as run:
        assert run.baselines == ("mean",)
        assert run["ablation_loss"].shape == (4, 1, 1, 12)


def test_rules_and_methods_reach_the_attributions(tmp_path):
    keep = Keep()
    rules = GIMRules(temperature=3.0, split_products=False)
    tracked(tmp_path, callbacks=[keep], rules=rules, methods=("gim",))
    with open_run(tmp_path / "run.h5") as run:
        assert run.methods == ("gim",)
        expected = take_snapshot(keep.modules[6], small_data().probe(), rules=rules, methods="gim")
        np.testing.assert_array_equal(run["attribution"][-1], expected["attribution"])
        other = take_snapshot(keep.modules[6], small_data().probe(), methods="gim")
        assert not np.array_equal(run["attribution"][-1], other["attribution"])


def test_components_of_another_optimizer_have_no_gradient_yet(tmp_path):
    class Halves(BareModule):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch, batch_idx):
            for optimizer in self.optimizers():
                optimizer.zero_grad()
                self.manual_backward(super().training_step(batch, batch_idx))
                optimizer.step()

        def configure_optimizers(self):
            layers = self.decoder.blocks
            return [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in layers]

    tracked(tmp_path, Halves(), max_steps=4)
    with open_run(tmp_path / "run.h5") as run:
        missing = np.isnan(run.train["gradient_norm"])
        assert run.train.steps.tolist() == [0, 1, 2, 3]
        first_layer = np.array([c.layer == 0 for c in run.components])
        assert (missing[0::2] == ~first_layer).all()
        assert (missing[1::2] == first_layer).all()


def test_an_objective_that_logs_is_refused(tmp_path):
    def objective(model, batch):
        loss = model.training_step(batch, 0)
        return loss.expand(4), torch.zeros(4, dtype=torch.bool)

    module = small_module()
    with pytest.raises(ConfigurationError) as error:
        tracked(tmp_path, module, probe=Probe(small_data().probe().batches, objective=objective))
    assert str(error.value) == (
        "the probe's objective logs 'train/loss', which would mix with what the training logs; "
        "let the objective compute the loss without self.log."
    )
    assert "log" not in vars(module)


def test_a_layer_called_probe_is_not_asked(tmp_path):
    module = BareModule()
    module.probe = torch.nn.Linear(2, 2)
    with pytest.raises(ProbeError, match=r"^GapTrackerCallback has no probe"):
        tracked(tmp_path, module, small_data().train_dataloader())


def test_names_are_checked_when_the_callback_is_made():
    for options, message in (
        ({"weights": "some"}, "weights must be 'value_out' or 'all'; got 'some'."),
        ({"methods": "shap"}, "methods must be among gradient, gim, ig; got 'shap'."),
        ({"baselines": ["median"]}, "baselines must be among mean, zero; got 'median'."),
    ):
        with pytest.raises(DynamicsError) as error:
            GapTrackerCallback(**options)
        assert str(error.value) == message


def test_a_sparse_schedule_costs_nothing_late_in_training(monkeypatch):
    # Every step is looked at once, however long ago the last row was.
    looked_at = []
    tracker = GapTrackerCallback(train_gradients=Schedule.at([0]))
    schedule = tracker.train_gradients
    monkeypatch.setattr(type(schedule), "__call__", lambda self, step: looked_at.append(step) or step == 0)
    tracker._writer = object()
    tracker._gradient_step = 99_999
    trainer = small_trainer(".", [])
    for step in (100_000, 100_001, 100_002):
        monkeypatch.setattr(type(trainer), "global_step", step)
        tracker.on_before_optimizer_step(trainer, small_module(), None)
    assert looked_at == [100_000, 100_001, 100_002]
