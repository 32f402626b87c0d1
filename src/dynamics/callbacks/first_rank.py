"""Work that rank 0 does while the other ranks wait for it."""

from __future__ import annotations

from collections.abc import Callable

import lightning as L

from dynamics.errors import MeasurementError


def on_first_rank(trainer: L.Trainer, work: Callable[[], object]) -> None:
    """Do something on rank 0 alone, and have it fail on every rank if it fails there.

    Each rank must call this at the same points of the training. The others wait; without word from rank 0 they would
    go on to their next gradient and wait there, for a rank that is gone, as long as the process group allows.

    Raises:
        MeasurementError: On the other ranks, if the work failed.
    """
    if trainer.world_size == 1:
        work()
        return
    failure: BaseException | None = None
    if trainer.is_global_zero:
        try:
            work()
        except BaseException as error:  # also an interrupt: the others must not wait for what will not come
            failure = error
    said = None if failure is None else f"{type(failure).__name__}: {failure}"
    said = trainer.strategy.broadcast(said, src=0)
    if failure is not None:
        raise failure
    if said is not None:
        raise MeasurementError(f"rank 0, which measures for all, failed with {said}")
