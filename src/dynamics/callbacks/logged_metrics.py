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
        self._returned: dict[str, tuple[int, str]] = {}

    def new(self, trainer: L.Trainer) -> dict[str, float]:
        """Return the metrics that were logged since the last call, by name."""
        step, fresh = trainer.global_step, {}
        current: Mapping[str, Tensor] = trainer.callback_metrics
        for name, value in current.items():
            # What an earlier loop logged stays the same object; the running loop's values are new objects each time,
            # so that one may come twice at a step.
            number = float(value)
            is_old = self._last.get(name) is value or self._returned.get(name) == (step, repr(number))
            if not is_old and not name.startswith(PREFIX):
                fresh[name] = number
                self._returned[name] = (step, repr(number))
        self._last = dict(current)
        return fresh
