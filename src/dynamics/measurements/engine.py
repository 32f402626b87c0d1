"""What scores a batch with component outputs replaced: the interface of the engines that do it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

from torch import Tensor

Intervention = Mapping[int, Tensor]
"""Component index to the constant, ``(width,)``, that takes the place of its output at every position."""


class Engine(Protocol):
    """Scores one batch under many interventions, for one model, probe and component map.

    An engine is made by a function ``prepare(score, components)``, which returns it, or says in words why the engine
    does not suit this model, objective or probe.

    Attributes:
        name: By which a user chooses it.
    """

    name: ClassVar[str]

    def __call__(self, batch: Any, interventions: Sequence[Intervention]) -> tuple[Tensor, Tensor]:
        """Return loss in nats and exact match (bool), ``(interventions, examples)``; ticks once per intervention."""
        ...
