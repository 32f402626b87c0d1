"""The plain engine: one forward pass of the whole model per intervention, with hooks. All others are held to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from dynamics.components import ComponentMap
from dynamics.measurements.engine import Intervention
from dynamics.measurements.interventions import replaced
from dynamics.measurements.scorer import Scorer


@dataclass(frozen=True)
class HookLoop:
    """Runs any model and any objective, since it asks for nothing but the modules that the components name."""

    name: ClassVar[str] = "hooks"
    score: Scorer
    components: ComponentMap

    def __call__(self, batch: Any, interventions: Sequence[Intervention]) -> tuple[Tensor, Tensor]:
        """Return loss and exact match, ``(interventions, examples)``."""
        rows = []
        for intervention in interventions:
            gone = [self.components[index] for index in intervention]
            with replaced(self.score.model, gone, list(intervention.values())):
                rows.append(self.score(batch))
        losses, matches = zip(*rows, strict=True)
        return torch.stack(losses), torch.stack(matches)


def prepare(score: Scorer, components: ComponentMap) -> HookLoop:
    """Return the engine; it suits every model."""
    return HookLoop(score, components)
