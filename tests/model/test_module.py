import math

import lightning as L
import pytest
import torch

from dynamics.errors import ModelError
from dynamics.model import SequenceModule, Transformer
from dynamics.probe import sequence_objective
from dynamics.tasks import SequenceDataModule


def small_model():
    torch.manual_seed(0)
    return Transformer(n_layers=1, n_heads=2, d_model=8, d_ff=8, positions="learned", max_length=16)


def small_data():
    return SequenceDataModule("sort", (1, 2), (3, 4), batch_size=6, batches_per_epoch=4, val_batches=2)


class Watch(L.Callback):
    """Keep what an optimizer step used: gradients as clipped, learning rate, and the metrics logged so far."""

    def __init__(self):
        self.norms, self.rates, self.names = [], [], []

    def on_before_optimizer_step(self, trainer, pl_module, optimizer):
        self.rates.append(optimizer.param_groups[0]["lr"])

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        gradients = [p.grad.flatten() for p in pl_module.parameters() if p.grad is not None]
        self.norms.append(torch.cat(gradients).norm().item())
        self.names.append(set(trainer.callback_metrics))


def fit(module, **options):
    watch = Watch()
    trainer = L.Trainer(
        **{
            "max_steps": 6,
            "accelerator": "cpu",
            "logger": False,
            "enable_checkpointing": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "num_sanity_val_steps": 0,
            "callbacks": watch,
            **options,
        }
    )
    trainer.fit(module, small_data())
    return trainer, watch


def test_it_logs_the_loss_and_exact_match_of_training_and_of_each_validation_set_and_length():
    trainer, watch = fit(SequenceModule(small_model()), max_steps=4)
    assert watch.names[0] == {"train/loss", "train/exact_match"}
    expected = {"train/loss", "train/exact_match"} | {
        f"{split}/{name}"
        for split, lengths in (("id", (1, 2)), ("ood", (3, 4)))
        for name in ("loss", "exact_match", *(f"exact_match_length_{length}" for length in lengths))
    }
    assert set(trainer.callback_metrics) == expected


@pytest.mark.parametrize("bias", [0.0, 50.0])
def test_what_it_logs_is_the_mean_over_the_examples_of_a_split(bias):
    module = SequenceModule(small_model())
    module.eval()
    with torch.no_grad():
        # Writes EOS everywhere, or nothing in particular.
        module.model.final_norm.bias.fill_(bias)
        module.model.unembed.weight[102] = 1.0
    trainer = L.Trainer(accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False)
    data = small_data()
    logged = {name: value for part in trainer.validate(module, data, verbose=False) for name, value in part.items()}
    for split, lengths, loader in zip(("id", "ood"), ((1, 2), (3, 4)), data.val_dataloader(), strict=True):
        scored = [(batch["input_ids"].shape[1] // 2 - 1, *sequence_objective(module.model, batch)) for batch in loader]
        losses, matches = (torch.cat([score[part] for score in scored]) for part in (1, 2))
        assert math.isclose(logged[f"{split}/loss"], losses.mean().item(), rel_tol=1e-5)
        assert logged[f"{split}/exact_match"] == matches.float().mean()
        for length in lengths:
            share = torch.cat([match for n, _, match in scored if n == length]).float().mean()
            assert logged[f"{split}/exact_match_length_{length}"] == share


def test_the_training_loss_is_the_mean_over_examples():
    module = SequenceModule(small_model()).train()
    torch.manual_seed(0)
    batch = small_data().train_dataloader().dataset[0]
    module.log = lambda *args, **options: None
    torch.manual_seed(1)
    loss = module.training_step(batch, 0)
    torch.manual_seed(1)
    assert torch.equal(loss, sequence_objective(module.model, batch)[0].mean())
    assert loss.requires_grad
    assert torch.equal(module.eval()(batch["input_ids"]), module.model(batch["input_ids"]))


def test_weight_matrices_decay_and_biases_and_norms_do_not():
    module = SequenceModule(small_model(), learning_rate=0.02, weight_decay=0.3, betas=(0.8, 0.9))
    module.model.blocks[0].mlp.input.weight.requires_grad_(False)
    module.model.blocks[0].mlp.input.bias.requires_grad_(False)
    optimizer = module.configure_optimizers()["optimizer"]
    assert isinstance(optimizer, torch.optim.AdamW)
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    for name, parameter in module.named_parameters():
        if "mlp.input" in name:
            assert id(parameter) not in decay
        else:
            assert decay[id(parameter)] == (0.0 if name.endswith("bias") or "norm" in name else 0.3), name
    assert all((group["initial_lr"], group["betas"]) == (0.02, (0.8, 0.9)) for group in optimizer.param_groups)


@pytest.mark.parametrize(
    ("warmup_steps", "rates"),
    [(4, [0.25, 0.5, 0.75, 1, 1, 1]), (1, [1] * 6), (0, [1] * 6)],
)
def test_the_learning_rate_rises_linearly_and_stays(warmup_steps, rates):
    _, watch = fit(SequenceModule(small_model(), learning_rate=0.008, warmup_steps=warmup_steps))
    assert all(math.isclose(got, 0.008 * rate) for got, rate in zip(watch.rates, rates, strict=True))


def test_the_gradient_is_clipped_to_the_modules_norm_unless_the_trainer_has_one():
    _, free = fit(SequenceModule(small_model(), clip_norm=None))
    assert min(free.norms) > 0.7
    _, clipped = fit(SequenceModule(small_model(), clip_norm=0.5))
    assert all(math.isclose(norm, 0.5, rel_tol=1e-4) for norm in clipped.norms)
    _, by_trainer = fit(SequenceModule(small_model(), clip_norm=0.5), gradient_clip_val=0.25)
    assert all(math.isclose(norm, 0.25, rel_tol=1e-4) for norm in by_trainer.norms)


def test_settings_are_kept_for_the_record():
    module = SequenceModule(small_model(), learning_rate=0.5)
    assert dict(module.hparams) == {
        "learning_rate": 0.5,
        "weight_decay": 0.1,
        "betas": (0.9, 0.98),
        "warmup_steps": 200,
        "clip_norm": 1.0,
    }


@pytest.mark.parametrize(
    ("settings", "got"),
    [
        ({"learning_rate": 0.0}, "learning_rate=0.0, weight_decay=0.1, warmup_steps=200, clip_norm=1.0."),
        ({"weight_decay": -0.1}, "learning_rate=0.001, weight_decay=-0.1, warmup_steps=200, clip_norm=1.0."),
        ({"warmup_steps": -1}, "learning_rate=0.001, weight_decay=0.1, warmup_steps=-1, clip_norm=1.0."),
        ({"clip_norm": 0.0}, "learning_rate=0.001, weight_decay=0.1, warmup_steps=200, clip_norm=0.0."),
    ],
)
def test_settings_out_of_range_are_errors(settings, got):
    with pytest.raises(ModelError) as caught:
        SequenceModule(small_model(), **settings)
    assert str(caught.value) == (
        "learning_rate and clip_norm must be positive, weight_decay and warmup_steps not negative; got " + got
    )
