"""The data module: training, held-out and OOD data of a task, and the probe."""

from __future__ import annotations

from collections.abc import Sequence

import lightning as L
from torch.utils.data import DataLoader

from dynamics.errors import TaskError
from dynamics.probe import Probe
from dynamics.tasks.base import SequenceTask
from dynamics.tasks.batches import Batch, ContinuingLoader, FiniteBatches, FreshBatches
from dynamics.tasks.reverse import Reverse
from dynamics.tasks.sort import Sort

TASKS: dict[str, SequenceTask] = {task.name: task for task in (Reverse(), Sort())}


class SequenceDataModule(L.LightningDataModule):
    """Sequences of integers 1..99 with short lengths for training and longer, out-of-distribution (OOD) lengths.

    Every batch holds one length, so nothing is padded. A batch depends on the seed, its split and its index alone:
    two runs with one seed see the same data whatever else they do.

    Args:
        task: ``"reverse"``, ``"sort"``, or an object with a ``name`` and a ``target(x)``.
        lengths: Training lengths; also those of the in-distribution (ID) validation data.
        ood_lengths: Lengths never trained on: OOD validation and probe.
        batch_size: Training and validation examples per batch.
        train_examples: ``None``: new examples for ever. A number: that many distinct examples, in a new order at
            each pass (grokking); they never occur in the ID validation data.
        batches_per_epoch: Batches to an epoch; default 1,000, or one pass for a finite training set.
        val_batches: Validation batches per length.
        probe_batches: Batches of the probe, the OOD lengths in turn.
        probe_batch_size: Examples per probe batch.
        seed: Seed of all data.
        num_workers: Processes that make training batches; 0 makes them in the training process.

    Raises:
        TaskError: If a setting leaves nothing to train, validate or probe on.
    """

    def __init__(
        self,
        task: str | SequenceTask = "sort",
        lengths: Sequence[int] = (3, 4, 5, 6, 7),
        ood_lengths: Sequence[int] = (8, 9, 10, 11),
        batch_size: int = 64,
        train_examples: int | None = None,
        batches_per_epoch: int | None = None,
        val_batches: int = 2,
        probe_batches: int = 50,
        probe_batch_size: int = 32,
        seed: int = 0,
        num_workers: int = 0,
    ) -> None:
        super().__init__()
        if isinstance(task, str) and task not in TASKS:
            raise TaskError(f"task must be one of {', '.join(sorted(TASKS))}, or a task object; got {task!r}.")
        self.task = TASKS[task] if isinstance(task, str) else task
        self.lengths, self.ood_lengths = tuple(lengths), tuple(ood_lengths)
        for name, values in (("lengths", self.lengths), ("ood_lengths", self.ood_lengths)):
            if not values or any(length < 1 for length in values) or len(set(values)) < len(values):
                raise TaskError(f"{name} must be distinct whole numbers of at least 1; got {list(values)}.")
        if both := sorted(set(self.lengths) & set(self.ood_lengths)):
            raise TaskError(
                f"ood_lengths must not be trained on, but {both} also stand in lengths; remove them from one."
            )
        for name, value, least in (
            ("batch_size", batch_size, 1),
            ("train_examples", train_examples, len(self.lengths)),
            ("batches_per_epoch", batches_per_epoch, 1),
            ("val_batches", val_batches, 1),
            ("probe_batches", probe_batches, 1),
            ("probe_batch_size", probe_batch_size, 1),
            ("seed", seed, 0),
        ):
            if value is not None and value < least:
                raise TaskError(f"{name} must be at least {least}; got {value}.")
        self.batch_size, self.train_examples, self.batches_per_epoch = batch_size, train_examples, batches_per_epoch
        self.val_batches, self.probe_batches, self.probe_batch_size = val_batches, probe_batches, probe_batch_size
        self.seed, self.num_workers = seed, num_workers
        self.save_hyperparameters(
            {
                "task": self.task.name,
                "lengths": list(self.lengths),
                "ood_lengths": list(self.ood_lengths),
                "batch_size": batch_size,
                "train_examples": train_examples,
                "batches_per_epoch": batches_per_epoch,
                "probe_batches": probe_batches,
                "probe_batch_size": probe_batch_size,
                "data_seed": seed,
            },
            logger=False,
        )

    def train_dataloader(self) -> ContinuingLoader:
        """Return the training batches; each epoch goes on where the last one ended."""
        dataset: FiniteBatches | FreshBatches
        if self.train_examples is None:
            dataset = FreshBatches(
                self.task, self.lengths, self.batch_size, self.batches_per_epoch or 1000, self.seed, "train"
            )
        else:
            dataset = self._finite()
        return ContinuingLoader(
            dataset, batch_size=None, num_workers=self.num_workers, persistent_workers=False, shuffle=False
        )

    def val_dataloader(self) -> list[DataLoader[Batch]]:
        """Return the ID and the OOD validation batches, in this order; lengths in turn, ``val_batches`` of each."""
        exclude = frozenset() if self.train_examples is None else self._finite().sequences
        return [
            DataLoader(
                FreshBatches(
                    self.task,
                    lengths,
                    self.batch_size,
                    self.val_batches * len(lengths),
                    self.seed,
                    split,
                    cycle=True,
                    exclude=exclude,
                ),
                batch_size=None,
            )
            for split, lengths in (("id", self.lengths), ("ood", self.ood_lengths))
        ]

    def test_dataloader(self) -> list[DataLoader[Batch]]:
        """Return the validation data."""
        return self.val_dataloader()

    def probe(self) -> Probe:
        """Return the fixed OOD examples that the tracker measures: the OOD lengths in turn, the same every time."""
        batches = FreshBatches(
            self.task,
            self.ood_lengths,
            self.probe_batch_size,
            self.probe_batches,
            self.seed,
            "probe",
            cycle=True,
        )
        return Probe([batches[index] for index in range(len(batches))])

    def _finite(self) -> FiniteBatches:
        assert self.train_examples is not None
        return FiniteBatches(
            self.task, self.lengths, self.batch_size, self.train_examples, self.seed, self.batches_per_epoch
        )
