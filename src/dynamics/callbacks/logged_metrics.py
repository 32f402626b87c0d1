"""Which of the metrics that the training logs are new since they were last looked at."""

from __future__ import annotations

from collections.abc import Mapping

import lightning as L
from torch import Tensor

PREFIX = "gap/"
"""Names under which the tracker itself logs; never copied back into the run file."""


class LoggedMetrics:
    """Follow ``trainer.callback_metrics``, which keeps the last value of every metric for ever."""

    def __init__(self) -> None:
        self._last: dict[str, Tensor] = {}

    def new(self, trainer: L.Trainer) -> dict[str, float]:
        """Return the metrics that were logged since the last call, by name."""
        current: Mapping[str, Tensor] = trainer.callback_metrics
        # An old value stays the same object; a metric that is logged again, even with an equal value, is a new one.
        fresh = {name: value for name, value in current.items() if self._last.get(name) is not value}
        self._last = dict(current)
        return {name: float(value) for name, value in fresh.items() if not name.startswith(PREFIX)}
