"""What a measurement is, and what it is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor, nn

from dynamics.arrays import ArraySpec
from dynamics.components import ComponentMap
from dynamics.components.base import Weights
from dynamics.measurements.clean import CleanRun, clean_run
from dynamics.measurements.gim import GIMRules
from dynamics.measurements.scorer import Scorer


@dataclass(frozen=True)
class Subject:
    """All that a measurement may depend on.

    Attributes:
        score: The bound objective.
        components: The components.
        baselines: Ablation baselines.
        methods: Attribution methods.
        weights: Which weights count as a component's own.
        rules: Backward rules of the attribution method ``gim``.
        ig_steps: Points at which the attribution method ``ig`` takes a gradient.
        self_repair_threshold: Nats that a position must contribute to be one of the two that make a row count.
    """

    score: Scorer
    components: ComponentMap
    baselines: tuple[str, ...]
    methods: tuple[str, ...]
    weights: Weights
    rules: GIMRules
    ig_steps: int
    self_repair_threshold: float

    @property
    def model(self) -> nn.Module:
        """Return the model."""
        return self.score.model

    @cached_property
    def clean(self) -> CleanRun:
        """Return the results of the unablated model, run once for all measurements."""
        return clean_run(self.score, self.components)


@dataclass(frozen=True)
class Measurement:
    """An entry of the catalogue.

    Attributes:
        name: Name by which a user selects it.
        arrays: What it returns.
        run: The measurement.
        passes: How many batches it scores, for the progress display.
    """

    name: str
    arrays: tuple[ArraySpec, ...]
    run: Callable[[Subject], Mapping[str, Tensor]]
    passes: Callable[[Subject], int]
