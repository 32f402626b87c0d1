import lightning as L
import pytest
import torch

from dynamics.errors import TaskError
from dynamics.model import SequenceModule, Transformer
from dynamics.probe import Probe
from dynamics.tasks import TASKS, SequenceDataModule
from tests.tasks.test_batches import sequences


def small(**settings):
    return SequenceDataModule(
        **{
            "task": "reverse",
            "lengths": (1, 2),
            "ood_lengths": (3, 4, 5),
            "batch_size": 4,
            "probe_batches": 7,
            "probe_batch_size": 3,
            **settings,
        }
    )


def rows(loader):
    return [row for batch in loader for row in sequences(batch)]


def test_each_split_has_its_lengths_and_sizes():
    data = small(batches_per_epoch=30, val_batches=2)
    train, (id_, ood) = data.train_dataloader(), data.val_dataloader()
    assert (len(train), len(id_), len(ood)) == (30, 4, 6)
    assert {len(row) for row in rows(train)} == {1, 2}
    assert [len(sequences(batch)[0]) for batch in id_] == [1, 2, 1, 2]
    assert [len(sequences(batch)[0]) for batch in ood] == [3, 4, 5, 3, 4, 5]
    assert len(rows(id_)) == 16
    assert [rows(loader) for loader in data.test_dataloader()] == [rows(id_), rows(ood)]
    assert len(SequenceDataModule().train_dataloader()) == 1000


def test_validation_data_are_the_same_every_time_and_not_the_probe():
    first, second = small(), small()
    for a, b in zip(first.val_dataloader(), second.val_dataloader(), strict=True):
        assert rows(a) == rows(a) == rows(b)
    ood = small(lengths=(1,), ood_lengths=(8,), val_batches=7).val_dataloader()[1]
    probe = small(lengths=(1,), ood_lengths=(8,)).probe()
    assert not set(rows(ood)) & set(rows(probe.batches))
    assert rows(first.val_dataloader()[0]) != rows(small(seed=1).val_dataloader()[0])


def test_the_probe_is_the_same_every_time_and_takes_the_ood_lengths_in_turn():
    data = small()
    probe = data.probe()
    assert isinstance(probe, Probe)
    assert [len(sequences(batch)[0]) for batch in probe.batches] == [3, 4, 5, 3, 4, 5, 3]
    assert {len(batch["input_ids"]) for batch in probe.batches} == {3}
    assert (
        probe.fingerprint() == data.probe().fingerprint() == small(batch_size=9, train_examples=5).probe().fingerprint()
    )
    assert probe.fingerprint() != small(seed=1).probe().fingerprint()
    assert probe.target_counts() == [n + 1 for n in (3, 4, 5, 3, 4, 5, 3) for _ in range(3)]


def test_held_out_data_never_contain_a_training_example():
    # 90 of the 99 sequences of length 1 are trained on: without care nearly all held-out ones would be among them.
    data = small(lengths=(1, 2), train_examples=180, val_batches=20)
    train, held_out = set(rows(data.train_dataloader())), rows(data.val_dataloader()[0])
    assert len(train) == 180
    assert {len(row) for row in held_out} == {1, 2}
    assert len(held_out) == 160
    assert not train & set(held_out)


def test_a_finite_epoch_is_one_pass_unless_it_is_told_otherwise():
    assert len(small(train_examples=11).train_dataloader()) == 4
    assert len(small(train_examples=11, batches_per_epoch=9).train_dataloader()) == 9


def test_a_task_of_ones_own():
    class Copy:
        name = "copy"

        def target(self, x):
            return x

    data = small(task=Copy())
    batch = data.probe().batches[0]
    assert torch.equal(batch["input_ids"][:, 1:4], batch["input_ids"][:, 5:])
    assert data.hparams["task"] == "copy"


def test_settings_are_kept_for_the_record():
    assert dict(small(train_examples=50, seed=3).hparams) == {
        "task": "reverse",
        "lengths": [1, 2],
        "ood_lengths": [3, 4, 5],
        "batch_size": 4,
        "train_examples": 50,
        "batches_per_epoch": None,
        "probe_batches": 7,
        "probe_batch_size": 3,
        "data_seed": 3,
    }
    assert sorted(TASKS) == ["reverse", "sort"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"task": "shuffle"}, "task must be one of reverse, sort, or a task object; got 'shuffle'."),
        ({"lengths": ()}, "lengths must be distinct whole numbers of at least 1; got []."),
        ({"lengths": (0, 1)}, "lengths must be distinct whole numbers of at least 1; got [0, 1]."),
        ({"ood_lengths": (4, 4)}, "ood_lengths must be distinct whole numbers of at least 1; got [4, 4]."),
        (
            {"lengths": (1, 2, 4), "ood_lengths": (5, 4, 2)},
            "ood_lengths must not be trained on, but [2, 4] also stand in lengths; remove them from one.",
        ),
        ({"batch_size": 0}, "batch_size must be at least 1; got 0."),
        ({"train_examples": 1}, "train_examples must be at least 2; got 1."),
        ({"batches_per_epoch": 0}, "batches_per_epoch must be at least 1; got 0."),
        ({"val_batches": 0}, "val_batches must be at least 1; got 0."),
        ({"probe_batches": 0}, "probe_batches must be at least 1; got 0."),
        ({"probe_batch_size": 0}, "probe_batch_size must be at least 1; got 0."),
        ({"seed": -1}, "seed must be at least 0; got -1."),
    ],
)
def test_settings_that_leave_nothing_to_work_on_are_errors(settings, message):
    with pytest.raises(TaskError) as caught:
        small(**settings)
    assert str(caught.value) == message


class Diary(L.Callback):
    """Write down every training batch, and the weights at the end; save a checkpoint at every step if told where."""

    def __init__(self, folder):
        self.folder, self.batches = folder, []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.batches.append(sequences(batch))

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if self.folder:
            trainer.save_checkpoint(self.folder / f"{trainer.global_step}.ckpt")

    def on_train_epoch_end(self, trainer, pl_module):
        if self.folder:
            trainer.save_checkpoint(self.folder / f"epoch_{trainer.global_step}.ckpt")

    def on_train_end(self, trainer, pl_module):
        self.weights = [p.detach().clone() for p in pl_module.parameters()]


def fit(data, folder=None, checkpoint=None):
    torch.manual_seed(0)
    model = Transformer(n_layers=1, n_heads=1, d_model=4, d_ff=4, max_length=16)
    diary = Diary(folder)
    trainer = L.Trainer(
        max_steps=13,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        callbacks=diary,
    )
    trainer.fit(SequenceModule(model, warmup_steps=2), data, ckpt_path=checkpoint)
    return diary


@pytest.mark.parametrize("train_examples", [None, 13])
def test_a_resumed_run_sees_the_batches_and_ends_in_the_weights_of_an_uninterrupted_one(tmp_path, train_examples):
    def data():
        return small(batches_per_epoch=5, val_batches=1, train_examples=train_examples)

    whole = fit(data(), tmp_path)
    dataset = data().train_dataloader().dataset
    assert whole.batches == [sequences(dataset[index]) for index in range(13)]
    # In the middle of an epoch, before and after its last batch, when it is over, and in the next one.
    for name in ("2", "4", "5", "epoch_5", "6", "10", "epoch_10", "11"):
        step = int(name.removeprefix("epoch_"))
        rest = fit(data(), checkpoint=tmp_path / f"{name}.ckpt")
        assert rest.batches == whole.batches[step:]
        assert all(torch.equal(a, b) for a, b in zip(rest.weights, whole.weights, strict=True))
