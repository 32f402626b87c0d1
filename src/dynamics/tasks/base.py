"""What a sequence-to-sequence task on integers is, and the tokens that tasks share."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

PAD = 0
"""Unused by our own batches (one length each, no padding); reserved so that integers are their own token."""
SMALLEST, LARGEST = 1, 99
"""The integers of a sequence, both ends included; integer ``i`` is token ``i``."""
BOS, SEP, EOS = 100, 101, 102
VOCAB_SIZE = 103


class SequenceTask(Protocol):
    """A task: what the model has to write after reading ``x``.

    Attributes:
        name: The name under which `SequenceDataModule` finds the task.
    """

    name: str

    def target(self, x: Tensor) -> Tensor:
        """Return the right answer.

        Args:
            x: Integers, ``(examples, length)``.

        Returns:
            The answer for each example, ``(examples, length)``.
        """
        ...
