"""Run files from hand-made arrays, without a model."""

from __future__ import annotations

import numpy as np

from dynamics.faithfulness import Faithfulness, blank_faithfulness
from dynamics.measurements.catalogue import MEASUREMENTS
from dynamics.snapshot import Snapshot
from dynamics.store import ComponentInfo, create_run
from dynamics.synergy import Synergy, blank_synergy, set_names, with_controls

SPECS = {spec.name: spec for measurement in MEASUREMENTS.values() for spec in measurement.arrays}
BASELINES = ("mean", "zero")
N_BATCHES, N_EXAMPLES = 3, 8


class Components(tuple):
    """Stands in for a component map: what a run file wants to know of it."""

    @property
    def labels(self):
        return [component.label for component in self]


def components(layers: int, heads: int, prefix: str = "") -> Components:
    return Components(
        ComponentInfo(
            prefix + (f"L{layer}MLP" if head is None else f"L{layer}H{head}"),
            layer,
            "mlp" if head is None else "head",
            head,
        )
        for layer in range(layers)
        for head in (*range(heads), None)
    )


def random_arrays(rng: np.random.Generator, n: int, methods: int = 0) -> dict[str, np.ndarray]:
    """One snapshot's arrays, in the types that measurements have; attributions by so many methods."""
    attribution = {"attribution": rng.normal(0.0, 1.0, (methods, n, N_EXAMPLES)).astype(np.float32)} if methods else {}
    return attribution | {
        "loss": rng.gamma(2.0, 1.0, N_EXAMPLES).astype(np.float32),
        "exact_match": rng.random(N_EXAMPLES) < 0.7,
        "gradient_norm": rng.gamma(2.0, 0.01, (n, N_BATCHES)).astype(np.float32),
        "ablation_loss": rng.gamma(3.0, 1.0, (2, n, N_EXAMPLES)).astype(np.float32),
        "ablation_exact_match": rng.random((2, n, N_EXAMPLES)) < 0.4,
    }


def random_faithfulness(n: int, rankings: int, rows: int, seed: int = 0) -> list[dict[str, np.ndarray]]:
    """Return rows of faithfulness: losses that fall, and matches that come, with more components kept."""
    rng = np.random.default_rng(seed)
    kept = (np.arange(n + 1) / n)[:, None]
    orders = [np.stack([rng.permutation(n) for _ in range(rankings)]) for _ in range(rows)]
    shape = (rankings, n + 1, N_EXAMPLES)
    return [
        {
            "kept_loss": (4 - 3 * kept + 0.1 * rng.normal(size=shape)).astype(np.float32),
            "kept_exact_match": rng.random(shape) < 0.1 + 0.8 * kept,
            "ranking_score": -np.argsort(order, axis=-1).astype(float),
            "ranking_order": order,
        }
        for order in orders
    ]


def random_synergy(members, n, draws=2, role_score=0, seed=0):
    """Return one row of synergy, random but for who is in the sets, and the names of the sets."""
    rng = np.random.default_rng(seed)
    names, sets = set_names(tuple(members), draws), with_controls(members, n, draws)
    return names, {
        "joint_loss": rng.gamma(4.0, 1.0, (len(names), N_EXAMPLES)).astype(np.float32),
        "joint_exact_match": rng.random((len(names), N_EXAMPLES)) < 0.3,
        "membership": np.array([[index in sets[name] for index in range(n)] for name in names]),
        "role_score": np.array(role_score, np.int8),
    }


def write_run(
    path,
    steps,
    rows,
    listed,
    metrics=(),
    metadata=None,
    finished=True,
    methods=("gradient",),
    rankings=(),
    faithful=(),
    sets=(),
    joint=(),
):
    """Write a run of the given snapshots, of ``metrics``, pairs of a step and named values, and of ``faithful``.

    With rankings the run has a group for faithfulness; its rows are pairs of a step and arrays. So it is with sets,
    synergy and ``joint``.
    """

    def snapshot(arrays):
        sizes = (N_EXAMPLES - 2 * (N_BATCHES - 1), *[2] * (N_BATCHES - 1))
        return Snapshot(arrays, SPECS, listed, BASELINES, methods, sizes)

    example = rows[0] if rows else random_arrays(np.random.default_rng(0), len(listed))
    blank = blank_faithfulness(snapshot(example), rankings) if rankings else None
    together = blank_synergy(snapshot(example), sets) if sets else None
    writer = create_run(path, snapshot(example), metadata or {}, faithfulness=blank, synergy=together)
    for step, arrays in zip(steps, rows, strict=False):
        writer.append("snapshots", step, snapshot(arrays))
    for step, arrays in faithful:
        writer.append("faithfulness", step, Faithfulness(arrays, snapshot(example), rankings))
    for step, arrays in joint:
        writer.append("synergy", step, Synergy(arrays, listed, snapshot(example).batch_sizes, sets))
    for step, values in metrics:
        writer.append_metrics(step, values)
    writer.close(finished)
    return path


def random_run(path, n_steps=4, layers=2, heads=2, seed=0, every=10, prefix="", methods=(), **options):
    """Write a run of random snapshots, and return the arrays of each."""
    listed = components(layers, heads, prefix)
    rng = np.random.default_rng(seed)
    rows = [random_arrays(rng, len(listed), len(methods)) for _ in range(n_steps)]
    options |= {"methods": methods} if methods else {}
    write_run(path, [every * row for row in range(n_steps)], rows, listed, **options)
    return rows
