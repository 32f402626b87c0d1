"""The catalogue: every measurement that a snapshot can hold, by name. A new one is a file and a line here."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from dynamics.arrays import ArraySpec
from dynamics.measurements.ablation import ablation
from dynamics.measurements.attribution import attribution
from dynamics.measurements.base import Measurement, Subject
from dynamics.measurements.gim_rules import working_dtype
from dynamics.measurements.gradient_norm import gradient_norm
from dynamics.measurements.integrated_gradients import integrated_gradients
from dynamics.measurements.self_repair import self_repair
from dynamics.measurements.weight_norm import weight_norm


def _batches(subject: Subject) -> int:
    return len(subject.score.batches)


def _ablation(subject: Subject) -> Mapping[str, Tensor]:
    loss, match = ablation(subject.score, subject.components, subject.baselines, subject.clean.means)
    return {"ablation_loss": loss, "ablation_exact_match": match}


def _attribution(subject: Subject) -> Mapping[str, Tensor]:
    given = subject.score, subject.components, subject.clean.means
    methods = {
        "gradient": lambda: attribution(*given),
        "gim": lambda: attribution(*given, subject.rules),
        "ig": lambda: integrated_gradients(*given, subject.ig_steps),
    }
    return {"attribution": torch.stack([methods[method]() for method in subject.methods])}


def _attribution_passes(subject: Subject) -> int:
    return sum(subject.ig_steps if method == "ig" else 1 for method in subject.methods) * _batches(subject)


def _self_repair(subject: Subject) -> Mapping[str, Tensor]:
    if not _has_heads(subject):  # MLPs hold NaN here, whichever components they are measured with
        nothing = torch.full((len(subject.components), len(subject.clean.loss)), torch.nan)
        nothing = nothing.to(working_dtype(subject.clean.loss.dtype))
        return {"self_repair_rows": nothing, "self_repair_interaction": nothing}
    rows, interaction = self_repair(subject.score, subject.components, subject.self_repair_threshold)
    return {"self_repair_rows": rows, "self_repair_interaction": interaction}


def _has_heads(subject: Subject) -> bool:
    return any(component.kind == "head" for component in subject.components)


CLEAN = Measurement(
    "clean",
    (
        ArraySpec("loss", ("example",), "nat", "mean cross-entropy of the example's targets"),
        ArraySpec("exact_match", ("example",), "1", "whether every target of the example is the arg-max"),
    ),
    lambda subject: {"loss": subject.clean.loss, "exact_match": subject.clean.exact_match},
    _batches,
)

MEASUREMENTS: dict[str, Measurement] = {
    measurement.name: measurement
    for measurement in (
        CLEAN,
        Measurement(
            "weight_norm",
            (ArraySpec("weight_norm", ("component",), "1", "Frobenius norm of the component's weights"),),
            lambda subject: {"weight_norm": weight_norm(subject.model, subject.components, subject.weights)},
            lambda subject: 0,
        ),
        Measurement(
            "gradient_norm",
            (
                ArraySpec(
                    "gradient_norm",
                    ("component", "batch"),
                    "nat",
                    "norm of the batch loss's gradient at the component's weights, over sqrt(number of weights)",
                ),
            ),
            lambda subject: {"gradient_norm": gradient_norm(subject.score, subject.components, subject.weights)},
            _batches,
        ),
        Measurement(
            "attribution",
            (
                ArraySpec(
                    "attribution",
                    ("method", "component", "example"),
                    "nat",
                    "contribution to log p by the method, against the mean output; positive: supports the answer",
                ),
            ),
            _attribution,
            _attribution_passes,
        ),
        Measurement(
            "self_repair",
            (
                ArraySpec(
                    "self_repair_rows",
                    ("component", "example"),
                    "1",
                    "attention rows in which two or more positions contribute; NaN for MLPs",
                ),
                ArraySpec(
                    "self_repair_interaction",
                    ("component", "example"),
                    "nat",
                    "mean over these rows of R({1,2}) - R({1}) - R({2}); NaN without rows and for MLPs",
                ),
            ),
            _self_repair,
            lambda subject: _batches(subject) if _has_heads(subject) else 0,
        ),
        Measurement(
            "ablation",
            (
                ArraySpec(
                    "ablation_loss",
                    ("baseline", "component", "example"),
                    "nat",
                    "loss with the component ablated",
                ),
                ArraySpec(
                    "ablation_exact_match",
                    ("baseline", "component", "example"),
                    "1",
                    "exact match with the component ablated",
                ),
            ),
            _ablation,
            lambda subject: len(subject.baselines) * len(subject.components) * _batches(subject),
        ),
    )
}
