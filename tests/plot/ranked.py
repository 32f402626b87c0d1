"""Runs whose ranks are known, and what a picture of them shows."""

from __future__ import annotations

import re

import numpy as np

from tests.analysis.runs import N_BATCHES, N_EXAMPLES, components, random_arrays, write_run

N = 6
"""Components of two layers of two heads and an MLP; tau is 2."""


def snapshot(gradient, causal, correct=4):
    """Return one snapshot's arrays with these G and C by loss; of 8 examples so many are right, and none if ablated."""
    n = len(gradient)
    arrays = random_arrays(np.random.default_rng(0), n)
    arrays["gradient_norm"] = np.tile(np.array(gradient, np.float32)[:, None], N_BATCHES)
    arrays["loss"] = np.ones(N_EXAMPLES, np.float32)
    arrays["ablation_loss"] = np.broadcast_to(1 + np.array(causal, np.float32)[:, None], (2, n, N_EXAMPLES)).copy()
    arrays["exact_match"] = np.arange(N_EXAMPLES) < correct
    arrays["ablation_exact_match"] = np.zeros((2, n, N_EXAMPLES), bool)
    return arrays


def ranked_run(path, rows, steps=None, layers=2, heads=2):
    """Write a run of pairs of G and C, or of snapshots, in place of the one that is there."""
    path.unlink(missing_ok=True)
    made = [row if isinstance(row, dict) else snapshot(*row) for row in rows]
    return write_run(path, steps or [10 * row for row in range(len(rows))], made, components(layers, heads))


def texts(svg):
    """Return all texts of a picture."""
    return re.findall(r">([^<>]+)</t(?:ext|span)>", svg)


def points(svg, **wanted):
    """Return where the visible points with such attributes are, ``(x, y)`` in pixels of their panel."""
    found = re.findall(r'<path transform="translate\(([-\d.]+),([-\d.]+)\)"([^>]*)>', svg)
    return [
        (float(x), float(y))
        for x, y, rest in found
        if all(f' {name}="{value}"' in rest for name, value in wanted.items()) and 'opacity="0"' not in rest
    ]
