"""A run file that grows under the eyes of a test."""

from __future__ import annotations

import numpy as np

from dynamics.snapshot import Snapshot
from dynamics.store import create_run
from tests.analysis.runs import BASELINES, N_BATCHES, N_EXAMPLES, SPECS, components, random_arrays


class Training:
    """Writes a run: ``append`` adds a snapshot, ``log`` a metric, ``finish`` closes the file."""

    def __init__(self, path, seed=0, metadata=None, without=()):
        self._rng, self._without = np.random.default_rng(seed), without
        self._listed = components(2, 2)
        self._writer = create_run(path, self._snapshot(), metadata or {}, overwrite=True)

    def append(self, step):
        self._writer.append("snapshots", step, self._snapshot())

    def log(self, step):
        self._writer.append_metrics(step, {"train/exact_match": 0.5})

    def finish(self, finished=True):
        self._writer.close(finished)

    def _snapshot(self):
        arrays = random_arrays(self._rng, len(self._listed))
        for name in self._without:
            del arrays[name]
        sizes = (N_EXAMPLES - 2 * (N_BATCHES - 1), *[2] * (N_BATCHES - 1))
        return Snapshot(arrays, SPECS, self._listed, BASELINES, ("gradient",), sizes)
