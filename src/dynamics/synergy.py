"""Synergy: what ablating a set of components together costs, to be held against ablating them one at a time."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from torch import nn

from dynamics.arrays import ArraySpec
from dynamics.components import ComponentMap, find_components
from dynamics.errors import MeasurementError
from dynamics.measurements.clean import CleanRun, clean_run
from dynamics.measurements.held_still import held_still
from dynamics.measurements.joint_ablation import count_passes, joint_ablation
from dynamics.measurements.scorer import Progress, Ticks, bind
from dynamics.probe import Probe
from dynamics.snapshot import Snapshot, to_numpy

DRAWS = 10
"""Random sets that each set of components is held against, by default."""

_SEED = 0
"""Of the generator behind the random sets: they are the same at every step and in every run of as many components."""

SCORES = ("exact_match", "loss")
"""What the roles behind the sets may be judged by; the file keeps the index, or -1 where there were no roles."""

SPECS = {
    spec.name: spec
    for spec in (
        ArraySpec("joint_loss", ("set", "example"), "nat", "loss with the set's components mean-ablated together"),
        ArraySpec(
            "joint_exact_match", ("set", "example"), "1", "exact match with the set's components mean-ablated together"
        ),
        ArraySpec("membership", ("set", "component"), "1", "whether the component belongs to the set"),
        ArraySpec(
            "role_score",
            (),
            "1",
            "what the roles behind the sets were judged by: 0 exact match, 1 loss, -1 there were no roles",
        ),
    )
}


class Synergy(Snapshot):
    """The arrays of `take_synergy`.

    Attributes:
        sets: Names of the sets, in the order of the ``set`` axis.
    """

    def __init__(
        self,
        arrays: Mapping[str, np.ndarray],
        components: ComponentMap,
        batch_sizes: tuple[int, ...],
        sets: tuple[str, ...],
    ) -> None:
        super().__init__(arrays, SPECS, components, ("mean",), (), batch_sizes)
        self.sets = sets


def control_name(name: str, draw: int) -> str:
    """Return the name of a set's random control: ``random_bloats_3``."""
    return f"random_{name}_{draw}"


def set_names(names: Sequence[str], draws: int = DRAWS) -> tuple[str, ...]:
    """Return the names of the sets that `with_controls` makes of sets with these names."""
    return (*names, *(control_name(name, draw) for name in names for draw in range(draws)))


def with_controls(sets: Mapping[str, Collection[int]], n: int, draws: int = DRAWS) -> dict[str, list[int]]:
    """Return sets of components, and after them random sets of the same sizes as controls.

    The random sets are drawn from all n components, each set of its size being equally likely: they may overlap with
    the set that they are the control of. The first k of a fixed random order make a set of k, so a control changes
    from step to step only as the size does, and is the same in every run of as many components.

    Args:
        sets: Indices of components, by the name of the set.
        n: Number of components.
        draws: Random sets for each set.

    Returns:
        Indices by name, in the order of `set_names`.
    """
    generator = np.random.default_rng(_SEED)
    orders = {
        control_name(name, draw): (generator.permutation(n), len(members))
        for name, members in sets.items()
        for draw in range(draws)
    }
    controls = {name: sorted(order[:size].tolist()) for name, (order, size) in orders.items()}
    return {name: sorted(members) for name, members in sets.items()} | controls


def take_synergy(
    model: nn.Module,
    probe: Probe,
    sets: Mapping[str, Collection[int | str]],
    components: ComponentMap | None = None,
    role_score: str | None = None,
    progress: Progress | None = None,
) -> Synergy:
    """Ablate sets of components of a model, each set together, and leave the model as it was.

    All outputs of a set are replaced by their means over the probe on the unablated model. From the results follows
    ``C_S = score(model) - score(model with S ablated)``, to be held against the C of the components one at a time,
    which a snapshot of the same model has (`dynamics.analysis.synergy_table` does so for a run).

    Cost: one forward pass of the probe for each different set, and one.

    Args:
        model: The model, or a module that holds it.
        probe: The examples.
        sets: Components of each set, by name: indices along the components, or labels such as ``"L0H3"``. An empty
            set is the unablated model. `with_controls` adds random sets of the same sizes.
        components: The components; default: what `find_components` finds.
        role_score: What the roles behind the sets were judged by, to be kept with them: ``"exact_match"``, ``"loss"``,
            or ``None``.
        progress: Called as ``progress(done, total)`` after each scored batch.

    Returns:
        ``joint_loss`` and ``joint_exact_match`` ``(set, example)``, ``membership`` ``(set, component)`` (bool) and
        ``role_score`` ``()``, an index into `SCORES` or -1.

    Raises:
        ComponentError: If the components are not found or do not fit the model.
        MeasurementError: If there is no set, or one names what is no component.
        ProbeError: If the objective does not return one loss and one match per example.
    """
    components = find_components(model) if components is None else components
    components.check(model)
    if not sets:
        raise MeasurementError("sets must name at least one set of components; got none.")
    members = [_indices(components, name, chosen) for name, chosen in sets.items()]
    clean, loss, match = ablate_sets(model, probe, components, members, progress)
    arrays = {
        "joint_loss": loss,
        "joint_exact_match": match,
        "membership": np.array([[index in chosen for index in range(len(components))] for chosen in members]),
        "role_score": _role_score(role_score),
    }
    return Synergy(arrays, components, clean.sizes, tuple(sets))


def blank_synergy(snapshot: Snapshot, sets: Sequence[str]) -> Synergy:
    """Return zeros in the shapes and types that `take_synergy` will give for such snapshots."""
    shape = (len(sets), len(snapshot["loss"]))
    arrays = {
        "joint_loss": np.zeros(shape, snapshot["loss"].dtype),
        "joint_exact_match": np.zeros(shape, bool),
        "membership": np.zeros((len(sets), len(snapshot.components)), bool),
        "role_score": _role_score(None),
    }
    return Synergy(arrays, snapshot.components, snapshot.batch_sizes, tuple(sets))


def ablate_sets(
    model: nn.Module, probe: Probe, components: ComponentMap, sets: Sequence[Collection[int]], progress: Progress | None
) -> tuple[CleanRun, np.ndarray, np.ndarray]:
    """Return the unablated run, and losses and exact matches ``(sets, examples)`` with each set ablated."""
    total = (1 + count_passes(sets)) * len(probe)
    score = bind(model, components, probe, Ticks(progress, total))
    with held_still(model):
        clean = clean_run(score, components)
        loss, match = joint_ablation(score, components, clean, sets)
    return clean, to_numpy(loss), to_numpy(match)


def _indices(components: ComponentMap, name: str, chosen: Collection[int | str]) -> frozenset[int]:
    labels = components.labels
    places: dict[int | str, int] = {label: index for index, label in enumerate(labels)}
    places.update((index, index) for index in range(len(labels)))
    # A lone label would fall apart into its letters.
    members = [chosen] if isinstance(chosen, str) else list(chosen)
    if unknown := [member for member in members if member not in places]:
        raise MeasurementError(
            f"the set {name!r} must hold indices from 0 to {len(labels) - 1} or labels from {labels[0]} to "
            f"{labels[-1]}; got {', '.join(map(repr, unknown))}."
        )
    return frozenset(places[member] for member in members)


def _role_score(name: str | None) -> np.ndarray:
    if name is not None and name not in SCORES:
        raise MeasurementError(f"role_score must be None or one of {', '.join(SCORES)}; got {name!r}.")
    return np.array(-1 if name is None else SCORES.index(name), np.int8)
