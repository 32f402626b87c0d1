"""Show how far a long snapshot has come, beside whatever progress bar the trainer has."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import lightning as L
from lightning.pytorch.callbacks import ProgressBar, TQDMProgressBar
from tqdm import tqdm

from dynamics.measurements.scorer import Progress

SHOWN_AFTER = 3.0
"""Seconds before anything is shown: most snapshots are over by then."""
LINE_EVERY = 10.0


@contextmanager
def snapshot_progress(trainer: L.Trainer, title: str) -> Iterator[Progress | None]:
    """Give the function that a snapshot reports to; ``None`` if the trainer's progress bar is switched off."""
    bar = trainer.progress_bar_callback
    if bar is None:
        yield None
    elif isinstance(bar, TQDMProgressBar):
        with tqdm(desc=title, unit="batch", delay=SHOWN_AFTER, leave=False) as inner:

            def show(done: int, total: int) -> None:
                inner.total = total
                inner.update(done - inner.n)

            yield show
    else:
        # A second live display would garble a rich one; lines go well with any.
        yield _Lines(bar, title)


class _Lines:
    def __init__(self, bar: ProgressBar, title: str) -> None:
        self.bar, self.title = bar, title
        self.started = time.monotonic()
        self.due = self.started + SHOWN_AFTER

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now >= self.due:
            self.due = now + LINE_EVERY
            left = (now - self.started) * (total - done) / done
            self.bar.print(f"{self.title}: {done / total:.0%}, about {left:.0f} s left")
