"""A snapshot: all measurements of a model at one moment of its training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from dynamics.arrays import ArraySpec
from dynamics.components import ComponentMap, find_components
from dynamics.components.base import Weights
from dynamics.errors import MeasurementError
from dynamics.measurements.ablation import BASELINES
from dynamics.measurements.attribution import METHODS
from dynamics.measurements.base import Subject
from dynamics.measurements.catalogue import CLEAN, MEASUREMENTS
from dynamics.measurements.gim import GIMRules
from dynamics.measurements.held_still import held_still
from dynamics.measurements.integrated_gradients import STEPS, check_steps
from dynamics.measurements.scorer import Progress, Ticks, bind
from dynamics.measurements.self_repair import THRESHOLD, check_threshold
from dynamics.probe import Probe


class Snapshot(Mapping[str, np.ndarray]):
    """Named arrays on the CPU: ``snapshot["gradient_norm"]``, with axes ``snapshot.dims("gradient_norm")``.

    Attributes:
        components: The components, in the order of the ``component`` axis.
        baselines: The ablation baselines, in the order of the ``baseline`` axis.
        methods: The attribution methods, in the order of the ``method`` axis.
        batch_sizes: Number of examples of each probe batch; the ``example`` axis runs through the batches in order.
    """

    def __init__(
        self,
        arrays: Mapping[str, np.ndarray],
        specs: Mapping[str, ArraySpec],
        components: ComponentMap,
        baselines: tuple[str, ...],
        methods: tuple[str, ...],
        batch_sizes: tuple[int, ...],
    ) -> None:
        self._arrays, self._specs = dict(arrays), dict(specs)
        self.components, self.baselines, self.methods = components, baselines, methods
        self.batch_sizes = batch_sizes

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._arrays:
            raise KeyError(f"this snapshot has no {name!r}; it holds {', '.join(self._arrays)}.")
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in self._arrays.items())
        return f"{type(self).__name__}({len(self.components)} components; {shapes})"

    def spec(self, name: str) -> ArraySpec:
        """Return axes, unit and meaning of an array."""
        self[name]
        return self._specs[name]

    def dims(self, name: str) -> tuple[str, ...]:
        """Return the names of an array's axes."""
        return self.spec(name).dims


def select_measurements(measurements: str | Iterable[str]) -> tuple[str, ...]:
    """Return the names of the measurements to take, in the catalogue's order; ``"all"`` is every one."""
    wanted = {measurements} if isinstance(measurements, str) else set(measurements)
    _known("measurements", wanted, ("all", *MEASUREMENTS))
    return tuple(name for name in MEASUREMENTS if name in wanted or "all" in wanted or name == CLEAN.name)


def select_baselines(baselines: str | Iterable[str]) -> tuple[str, ...]:
    """Return the ablation baselines to use, each once, in the given order."""
    return _chosen("baselines", baselines, BASELINES)


def select_methods(methods: str | Iterable[str]) -> tuple[str, ...]:
    """Return the attribution methods to use, each once, in the given order."""
    return _chosen("methods", methods, METHODS)


def _chosen(what: str, names: str | Iterable[str], known: Iterable[str]) -> tuple[str, ...]:
    chosen = tuple(dict.fromkeys([names] if isinstance(names, str) else names))
    _known(what, chosen, known)
    return chosen


def _known(what: str, names: Iterable[str], known: Iterable[str]) -> None:
    if unknown := sorted(set(names) - set(known)):
        raise MeasurementError(f"{what} must be among {', '.join(known)}; got {', '.join(map(repr, unknown))}.")


def take_snapshot(
    model: nn.Module,
    probe: Probe,
    components: ComponentMap | None = None,
    measurements: str | Iterable[str] = "all",
    baselines: str | Iterable[str] = BASELINES,
    rules: GIMRules | None = None,
    weights: Weights = "value_out",
    methods: str | Iterable[str] = METHODS,
    progress: Progress | None = None,
    ig_steps: int = STEPS,
    self_repair_threshold: float = THRESHOLD,
) -> Snapshot:
    """Measure every component of a model on a probe, and leave the model as it was.

    The model is put in evaluation mode; its modules' train/eval flags, the gradients in ``.grad``, the parameters'
    ``requires_grad`` and all random number generators are as before when this returns or raises.

    Args:
        model: The model, or a module (such as a LightningModule) that holds it.
        probe: The examples.
        components: What to measure; default: what `find_components` finds.
        measurements: ``"all"``, or names out of ``weight_norm``, ``gradient_norm``, ``attribution``, ``self_repair``,
            ``ablation``. The unablated loss and exact match (``clean``) always belong to it. ``self_repair`` refuses a
            model whose attention it does not find: leave it out there.
        baselines: Ablation baselines, out of ``"mean"`` and ``"zero"``.
        rules: Backward rules of the attribution method ``gim``; default: all of them, with temperature 2.
        weights: A component's own weights: ``"value_out"`` (default) or ``"all"``.
        methods: Attribution methods, out of ``"gradient"``, ``"gim"`` and ``"ig"`` (integrated gradients).
        progress: Called as ``progress(done, total)`` after each scored batch.
        ig_steps: Points at which ``ig`` takes a gradient, each a forward and a backward pass.
        self_repair_threshold: Nats that a position must contribute to be one of the two that make an attention row
            count in ``self_repair``.

    Returns:
        The snapshot: ``loss`` and ``exact_match`` ``(example,)``, ``weight_norm`` ``(component,)``, ``gradient_norm``
        ``(component, batch)``, ``attribution`` ``(method, component, example)``, ``self_repair_rows`` and
        ``self_repair_interaction`` ``(component, example)``, ``ablation_loss`` and ``ablation_exact_match``
        ``(baseline, component, example)``.

    Raises:
        ComponentError: If the components are not found or do not fit the model.
        MeasurementError: If a name is unknown, or a measurement finds nothing to act on.
        ProbeError: If the objective does not return one loss and one match per example.
    """
    components = find_components(model) if components is None else components
    components.check(model)
    names = select_measurements(measurements)
    baselines = select_baselines(baselines)
    if "ablation" in names and not baselines:
        raise MeasurementError(f"ablation needs a baseline, out of {', '.join(BASELINES)}; got none.")
    methods = select_methods(methods)
    if "attribution" in names and not methods:
        raise MeasurementError(f"attribution needs a method, out of {', '.join(METHODS)}; got none.")
    chosen = [MEASUREMENTS[name] for name in names]
    ticks = Ticks(progress)
    subject = Subject(
        bind(model, components, probe, ticks),
        components,
        baselines,
        methods,
        weights,
        rules or GIMRules(),
        check_steps(ig_steps),
        check_threshold(self_repair_threshold),
    )
    ticks.total = sum(measurement.passes(subject) for measurement in chosen)
    arrays: dict[str, np.ndarray] = {}
    with held_still(model):
        for measurement in chosen:
            arrays.update({name: to_numpy(tensor) for name, tensor in measurement.run(subject).items()})
        sizes = subject.clean.sizes
    specs = {spec.name: spec for measurement in chosen for spec in measurement.arrays}
    return Snapshot(arrays, specs, components, baselines, methods, sizes)


def to_numpy(tensor: Tensor) -> np.ndarray:
    """Return a tensor as an array on the CPU; half precision comes back in single precision."""
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor).numpy()
