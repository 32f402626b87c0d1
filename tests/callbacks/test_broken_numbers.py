"""Numbers that go wrong in training are recorded, said to be so in the tables and left out of the pictures."""

from __future__ import annotations

import json

import lightning as L
import numpy as np
import pytest
import torch

from dynamics import GapTrackerCallback, Probe, find_components, open_run
from dynamics.analysis.findings import ScoreFindings
from dynamics.components import ComponentMap
from dynamics.errors import ComponentError, MeasurementError, ProbeError
from dynamics.plot.output import draw_run
from tests.callbacks.matrix import Cell, Data, Trained, small_probe, train


class Break(L.Callback):
    """Break something once the third step is taken, and mend it after the fifth."""

    def __init__(self, breaks) -> None:
        self.breaks, self.before = breaks, {}

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.global_step == 3:
            self.before = {name: value.detach().clone() for name, value in pl_module.named_parameters()}
            with torch.no_grad():
                self.breaks(pl_module.decoder)
        if trainer.global_step == 5:
            with torch.no_grad():
                for name, value in pl_module.named_parameters():
                    value.copy_(self.before[name])
            trainer.optimizers[0].state.clear()


class BreakGradient(L.Callback):
    """Make the gradient of a head's weights infinite or NaN in the fourth step, and so the weights from there on."""

    def __init__(self, value: float) -> None:
        self.value = value

    def on_after_backward(self, trainer, pl_module):
        if trainer.global_step == 3:
            pl_module.decoder.blocks[0].attention.value.weight.grad[0, 0] = self.value


class BreakLoss(Trained):
    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def loss(self, batch):
        loss = super().loss(batch)
        return loss * self.value if self.training and self.global_step == 3 else loss


def tracked(folder, module=None, others=(), **options):
    observer = GapTrackerCallback(
        folder / "run.h5", small_probe(), 2, train_gradients=1, ig_steps=2, faithfulness=4, synergy=4
    )
    cell = Cell(make=lambda _: (Trained() if module is None else module, Data()), **options)
    with pytest.warns(RuntimeWarning, match=r"^step 4: the probe's loss is not finite for "):
        train(cell, folder, [observer, *others])
    return folder / "run.h5"


BREAKS = {
    "an embedding is NaN": lambda decoder: decoder.embed.weight.fill_(torch.nan),
    "a head's weight is NaN": lambda decoder: decoder.blocks[0].attention.output.weight[0, 0].fill_(torch.nan),
    "an MLP's weight is infinite": lambda decoder: decoder.blocks[1].mlp.output.weight[0, 0].fill_(torch.inf),
    "a logit is infinite": lambda decoder: decoder.unembed.weight[3].fill_(torch.inf),
    "the loss is infinite": lambda decoder: decoder.unembed.weight.mul_(3e38),
}


@pytest.mark.parametrize("what", BREAKS)
def test_broken_weights_are_a_gap_in_tables_and_pictures(tmp_path, what):
    path = tracked(tmp_path, others=[Break(BREAKS[what])])
    with open_run(path) as run:
        assert run.finished
        assert run.steps.tolist() == [0, 2, 4, 6, 8]
        broken = ~np.isfinite(run["loss"]).all(1)
        assert broken.tolist() == [False, False, True, False, False]
        assert np.isfinite(run["ablation_loss"][[0, 1, 3, 4]]).all()
        # What is not finite is never taken for a success.
        assert not run["exact_match"][2][np.isnan(run["loss"][2])].any()
        rho = ScoreFindings(run, score="loss").rho.set_index("step")
        assert np.isnan(rho.rho).tolist() == [False, False, True, False, False]
        assert rho.reason[[0, 2, 6, 8]].isna().all()
        assert "are not finite" in rho.reason[4]
        counts = ScoreFindings(run, score="loss").counts
        assert counts[counts.step == 4]["count"].isna().all()
    data = json.loads(draw_run(path, tmp_path / "run.json").read_text())["datasets"]
    drawn = {row["step"]: row for row in data["rho"] if row["score"] == "loss"}
    assert {step for step, row in drawn.items() if row["rho"] is None} == {4}
    assert drawn[4]["reason"] == rho.reason[4]


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_broken_training_gradient_is_recorded_at_its_step(tmp_path, value):
    path = tracked(tmp_path, others=[BreakGradient(value)])
    with open_run(path) as run:
        at = run.train.steps.tolist().index(3)
        head = run.train["gradient_norm"][:, 0]
        assert np.isfinite(run.train["gradient_norm"][:at]).all()
        assert not np.isfinite(head[at:]).any()
        # The gradient that was broken is that of the first head only.
        assert np.isfinite(run.train["gradient_norm"][at, 1:]).all()
        assert run.steps.tolist() == [0, 2, 4, 6, 8]
        assert np.isnan(run["loss"][2:]).all()
        assert np.isfinite(run["loss"][:2]).all()


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_broken_training_loss_is_recorded_at_its_step(tmp_path, value):
    path = tracked(tmp_path, BreakLoss(value))
    with open_run(path) as run:
        logged = run.metrics["value"][:, run.metrics.labels("metric").tolist().index("train/loss")]
        by_step = {step: logged[run.metrics.steps == step] for step in (1, 2, 3, 4)}
        assert all(np.isfinite(by_step[step]).any() for step in (1, 2, 3))
        # The batch that led to step 4.
        assert len(by_step[4])
        assert np.isnan(value) or value in by_step[4]
        assert not np.isfinite(by_step[4]).any()
        assert np.isfinite(run.train["gradient_norm"][:3]).all()
        assert not np.isfinite(run.train["gradient_norm"][3:]).any()
        assert run.steps.tolist() == [0, 2, 4, 6, 8]
        assert np.isnan(run["loss"][2:]).all()


# --- what cannot be measured fails before the first step --------------------------------------------------------------


def no_heads(module):
    found = find_components(module)
    return ComponentMap([c for c in found if c.kind == "mlp"], root=found.root)


def another_width(module):
    found = find_components(Trained())
    module.decoder = type(module.decoder)(n_layers=2, n_heads=1, d_model=4, d_ff=16, vocab_size=11)
    return found


def without_gradient(module, batch):
    loss = module.loss(batch).detach().expand(len(batch["labels"]))
    return loss, loss < 0


UNMEASURABLE = {
    "components of a wider model": (ComponentError, another_width, small_probe()),
    "an objective without a gradient": (MeasurementError, lambda _: None, small_probe(without_gradient)),
    "a token that the model does not know": (
        ProbeError, lambda _: None, Probe([{"input_ids": torch.full((2, 5), 99), "labels": torch.ones(2, 5).long()}]),
    ),
    "an empty objective": (ProbeError, lambda _: None, small_probe(lambda *_: None)),
}  # fmt: skip


@pytest.mark.parametrize("what", UNMEASURABLE)
def test_what_cannot_be_measured_is_refused_before_the_first_step(tmp_path, what):
    error, components, probe = UNMEASURABLE[what]
    module = Trained()
    found = components(module)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    observer = GapTrackerCallback(tmp_path / "run.h5", probe, 100, components=found)
    with pytest.raises(error):
        train(Cell(make=lambda _: (module, Data())), tmp_path, [observer])
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    assert not (tmp_path / "run.h5").exists()
