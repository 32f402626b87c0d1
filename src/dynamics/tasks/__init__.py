"""Tasks: sequence reversal and sorting, their batches and their data module."""

from dynamics.tasks.base import BOS, EOS, LARGEST, PAD, SEP, SMALLEST, VOCAB_SIZE, SequenceTask
from dynamics.tasks.batches import encode
from dynamics.tasks.datamodule import TASKS, SequenceDataModule

__all__ = [
    "BOS",
    "EOS",
    "LARGEST",
    "PAD",
    "SEP",
    "SMALLEST",
    "TASKS",
    "VOCAB_SIZE",
    "SequenceDataModule",
    "SequenceTask",
    "encode",
]
