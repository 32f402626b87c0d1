"""Batches of a task as a map-style dataset: each batch is a pure function of (seed, split, index)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.random import Generator, default_rng
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from dynamics.errors import TaskError
from dynamics.probe import IGNORE
from dynamics.tasks.base import BOS, EOS, LARGEST, SEP, SMALLEST, SequenceTask

SPLITS = {"train": 0, "id": 1, "ood": 2, "probe": 3}
_FINITE_DRAW, _FINITE_ORDER = 101, 102

Batch = dict[str, Tensor]


def encode(task: SequenceTask, x: Tensor) -> Batch:
    """Write examples as a batch for next-token prediction.

    The sequence is ``BOS x… SEP y… EOS``; ``input_ids`` is all but its last token, ``labels`` all but its first, and
    only y and EOS are targets.

    Args:
        task: What y is.
        x: Integers, ``(examples, length)``.

    Returns:
        ``input_ids`` and ``labels``, both ``(examples, 2 * length + 2)``; labels that are not targets are -100.

    Raises:
        TaskError: If the task's answer has another shape, or integers beyond 1..99.
    """
    examples, length = x.shape

    def column(token: int) -> Tensor:
        return torch.full((examples, 1), token, dtype=torch.long)

    y = task.target(x)
    if y.shape != x.shape or y.min() < SMALLEST or y.max() > LARGEST:
        raise TaskError(
            f"the target of task {task.name!r} must be {tuple(x.shape)} integers from {SMALLEST} to {LARGEST}; got "
            f"{tuple(y.shape)} from {int(y.min())} to {int(y.max())}."
        )
    tokens = torch.cat([column(BOS), x, column(SEP), y, column(EOS)], dim=1)
    labels = tokens[:, 1:].clone()
    labels[:, : length + 1] = IGNORE
    return {"input_ids": tokens[:, :-1].contiguous(), "labels": labels}


def _draw(rng: Generator, examples: int, length: int) -> np.ndarray:
    return rng.integers(SMALLEST, LARGEST + 1, size=(examples, length))


class FreshBatches(Dataset[Batch]):
    """Batches of newly drawn examples; index ``i`` always gives the same batch, different indices different ones.

    Args:
        task: The task.
        lengths: Sequence lengths; one length to a batch.
        batch_size: Examples per batch.
        n_batches: Length of the dataset. Indices beyond it are valid too: there is always another batch.
        seed: Seed of the data.
        split: ``train``, ``id``, ``ood`` or ``probe``: splits never share a random stream.
        cycle: Take the lengths in turn (for evaluation) rather than at random.
        exclude: Sequences that must not occur (held-out data against a finite training set).
    """

    def __init__(
        self,
        task: SequenceTask,
        lengths: Sequence[int],
        batch_size: int,
        n_batches: int,
        seed: int,
        split: str,
        cycle: bool = False,
        exclude: frozenset[tuple[int, ...]] = frozenset(),
    ) -> None:
        self.task, self.lengths, self.batch_size, self.n_batches = task, tuple(lengths), batch_size, n_batches
        self.seed, self.split, self.cycle, self.exclude = seed, split, cycle, exclude
        self.first = 0
        for length in self.lengths:
            taken = sum(len(sequence) == length for sequence in exclude)
            if taken >= (LARGEST - SMALLEST + 1) ** length:
                raise TaskError(
                    f"the training set holds every sequence of length {length}, so nothing is held out; "
                    "set a smaller train_examples."
                )

    def __len__(self) -> int:
        return self.n_batches

    def __getitem__(self, index: int) -> Batch:
        index += self.first
        rng = default_rng([self.seed, SPLITS[self.split], index])
        length = self.lengths[index % len(self.lengths)] if self.cycle else int(rng.choice(self.lengths))
        x = _draw(rng, self.batch_size, length)
        if self.exclude:
            for row in x:
                while tuple(row.tolist()) in self.exclude:
                    row[:] = _draw(rng, 1, length)[0]
        return encode(self.task, torch.from_numpy(x))


class FiniteBatches(Dataset[Batch]):
    """A fixed set of distinct examples, in a new order at each pass over them.

    Args:
        task: The task.
        lengths: Sequence lengths; the examples are spread over them as evenly as possible.
        batch_size: Most examples per batch; one length to a batch, so the last batch of a length can be smaller.
        n_examples: Number of distinct examples.
        seed: Seed of the data and of their order.
        n_batches: Length of the dataset; default one pass. Indices beyond it are valid too: the next passes.
    """

    def __init__(
        self,
        task: SequenceTask,
        lengths: Sequence[int],
        batch_size: int,
        n_examples: int,
        seed: int,
        n_batches: int | None = None,
    ) -> None:
        self.task, self.batch_size, self.seed, self.first = task, batch_size, seed, 0
        rng = default_rng([seed, SPLITS["train"], _FINITE_DRAW])
        self.examples: list[np.ndarray] = []
        for position, length in enumerate(lengths):
            wanted = n_examples // len(lengths) + (position < n_examples % len(lengths))
            possible = (LARGEST - SMALLEST + 1) ** length
            if wanted > possible:
                raise TaskError(
                    f"train_examples={n_examples} asks for {wanted} distinct sequences of length {length}, but only "
                    f"{possible} exist; set a smaller train_examples or longer lengths."
                )
            distinct: dict[tuple[int, ...], None] = {}
            while len(distinct) < wanted:
                distinct.setdefault(tuple(_draw(rng, 1, length)[0].tolist()))
            self.examples.append(np.array(list(distinct), dtype=np.int64).reshape(wanted, length))
        self.batches_per_pass = sum(-(-len(group) // batch_size) for group in self.examples)
        self.n_batches = n_batches or self.batches_per_pass
        self._pass: tuple[int, list[np.ndarray]] | None = None

    @property
    def sequences(self) -> frozenset[tuple[int, ...]]:
        """Every training sequence, for keeping them out of the held-out data."""
        return frozenset(tuple(row.tolist()) for group in self.examples for row in group)

    def __len__(self) -> int:
        return self.n_batches

    def __getitem__(self, index: int) -> Batch:
        number, position = divmod(index + self.first, self.batches_per_pass)
        if self._pass is None or self._pass[0] != number:
            self._pass = (number, self._shuffle(number))
        return encode(self.task, torch.from_numpy(self._pass[1][position]))

    def _shuffle(self, number: int) -> list[np.ndarray]:
        rng = default_rng([self.seed, SPLITS["train"], _FINITE_ORDER, number])
        batches = []
        for group in self.examples:
            shuffled = group[rng.permutation(len(group))]
            batches += [shuffled[i : i + self.batch_size] for i in range(0, len(shuffled), self.batch_size)]
        return [batches[i] for i in rng.permutation(len(batches))]


class ContinuingLoader(DataLoader[Batch]):
    """A data loader over whole batches that goes on where it stopped: over epochs, and when training is resumed.

    It counts the batches it has handed out and lets the dataset continue from there, so a second epoch brings new
    data rather than the first epoch's again. Lightning stores ``state_dict()`` in checkpoints. Under a distributed
    sampler every rank advances by as many batches, so ranks never share one.
    """

    consumed = 0

    def __iter__(self):  # type: ignore[no-untyped-def]
        """Yield the batches of one epoch, starting behind the last one that was handed out."""
        ranks = getattr(self.sampler, "num_replicas", 1)
        dataset: Any = self.dataset
        dataset.first = self.consumed * ranks
        # A distributed sampler fills up its last round with batches that other ranks have; there are new ones instead.
        dataset.n_batches += -dataset.n_batches % ranks
        for batch in super().__iter__():
            self.consumed += 1
            yield batch

    def state_dict(self) -> dict[str, int]:
        """Return the number of batches handed out so far."""
        return {"consumed": self.consumed}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on behind the batches that an earlier process handed out."""
        self.consumed = state["consumed"]
