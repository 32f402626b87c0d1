"""What the training logs: which metrics are new, and how a measurement keeps out of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import lightning as L
from torch import Tensor

from dynamics.errors import ConfigurationError

PREFIX = "gap/"
"""Names under which the tracker itself logs; never copied back into the run file."""


@contextmanager
def not_logging(module: L.LightningModule) -> Iterator[None]:
    """Refuse ``module.log`` while the context is open: a probe's values would pass for the training's own."""

    def refuse(name: str, *_: Any, **__: Any) -> None:
        raise ConfigurationError(
            f"the probe's objective logs {name!r}, which would mix with what the training logs; "
            "let the objective compute the loss without self.log."
        )

    before = {"log": module.__dict__["log"]} if "log" in module.__dict__ else {}
    module.__dict__["log"] = refuse
    try:
        yield
    finally:
        del module.__dict__["log"]
        module.__dict__.update(before)


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
