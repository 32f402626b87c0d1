"""Measure the weights that training goes on with, beside callbacks that put averaged ones into the module."""

from __future__ import annotations

import lightning as L
from lightning.pytorch import callbacks

# WeightAveraging came with Lightning 2.6.
_SWAPPING: tuple[type[L.Callback], ...] = tuple(
    getattr(callbacks, name) for name in ("WeightAveraging",) if hasattr(callbacks, name)
)
_AVERAGING = (*_SWAPPING, callbacks.StochasticWeightAveraging)


def go_before_averaging(trainer: L.Trainer, callback: L.Callback) -> None:
    """Have a callback called before those that average weights: at the end of training they overwrite the module's.

    Each callback keeps its place otherwise. The list is replaced, not changed: the trainer may be going through it.
    """
    others = [other for other in trainer.callbacks if other is not callback]  # type: ignore[attr-defined]
    place = next((i for i, other in enumerate(others) if isinstance(other, _AVERAGING)), len(others))
    if callback in trainer.callbacks[place:]:  # type: ignore[attr-defined]
        trainer.callbacks = [*others[:place], callback, *others[place:]]  # type: ignore[attr-defined]


def holds_averages(trainer: L.Trainer) -> bool:
    """Say whether the module holds averaged weights now, as it does for a validation under weight averaging."""
    return trainer.validating and any(isinstance(other, _SWAPPING) for other in trainer.callbacks)  # type: ignore[attr-defined]
