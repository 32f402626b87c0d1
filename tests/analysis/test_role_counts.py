import itertools

import numpy as np
import pandas as pd
import pytest

from dynamics import open_run
from dynamics.analysis import Resampling, Timeline, chance_share, layer_table, rank_gap, role_count_table
from dynamics.analysis.role_counts import role_counts_of
from tests.analysis.runs import components, random_arrays, random_run, write_run


def timeline_of(gradient, causal, listed, threshold):
    gap = rank_gap(gradient, causal)
    one = np.array([0]), np.array([gradient]), np.array([causal])
    return Timeline(tuple(listed), "mean", "loss", threshold, *one, (gap,), np.array([["aligned"] * len(listed)]))


def test_without_ties_luck_gives_the_closed_form(tmp_path):
    """The expected counts and the mean of the permutations are (n - tau)(n - tau + 1) / (2 n^2), times components."""
    rng = np.random.default_rng(0)
    listed = components(4, 4)
    for threshold in (1, 4, 6, 8):
        timeline = timeline_of(rng.random(20), rng.random(20), listed, threshold)
        table = role_counts_of(timeline, Resampling(resamples=10))
        assert table["chance"].tolist() == pytest.approx(table["components"] * chance_share(20, threshold))
        whole = table["layer"].isna()
        assert table["chance_given_gradient"][whole].tolist() == pytest.approx([20 * chance_share(20, threshold)] * 2)
    assert chance_share(20, 6) == 0.2625


def test_the_permutations_agree_with_the_expected_counts():
    """Ties or not, the middle of the band is where the expected count is."""
    rng = np.random.default_rng(0)
    timeline = timeline_of(rng.integers(0, 5, 40), rng.integers(0, 6, 40), components(4, 9), 10)
    low, high = (
        role_counts_of(timeline, Resampling(level=level, resamples=4000, seed=1))[["low", "high"]].to_numpy().T
        for level in (0.1, 0.9)
    )
    chance = role_counts_of(timeline, Resampling(resamples=10))["chance"].to_numpy()
    assert (low[0] - 1 <= chance).all()
    assert (chance <= low[1] + 1).all()
    assert (high[0] < chance).all()
    assert (chance < high[1]).all()


def test_expected_counts_equal_an_enumeration():
    gradient, causal = np.array([1.0, 2, 2, 4]), np.array([3.0, 3, 1, 0])
    timeline = timeline_of(gradient, causal, components(2, 1), 1.5)
    table = role_counts_of(timeline, Resampling(resamples=10)).set_index(["layer", "role"])
    gap = timeline.gaps[0]
    given, free = [], []
    for order in map(list, itertools.permutations(range(4))):
        given.append(gap.rank_gradient - gap.rank_causal[order] >= 1.5)
        free += [(gap.rank_gradient[list(o)] - gap.rank_causal[order] >= 1.5) for o in itertools.permutations(range(4))]
    for layer, part in ((0, slice(0, 2)), (1, slice(2, 4))):
        row = table.loc[(layer, "bloat")]
        assert row["chance_given_gradient"] == pytest.approx(np.mean(given, 0)[part].sum())
        assert row["chance"] == pytest.approx(np.mean(free, 0)[part].sum())
        assert row["count"] == (gap.delta[part] >= 1.5).sum()


def test_counts_are_those_of_the_timeline(tmp_path):
    random_run(tmp_path / "run.h5")
    with open_run(tmp_path / "run.h5") as run:
        table = role_count_table(run, score="loss", threshold=2, permutations=20)
        layers = layer_table(run, score="loss", threshold=2)
    assert list(table) == [
        "step", "layer", "role", "components", "count", "chance", "chance_given_gradient", "low", "high", "p_value",
    ]  # fmt: skip
    per_layer = table[table["layer"].notna()].set_index(["step", "layer", "role"])["count"]
    for row in layers.itertuples():
        assert per_layer[row.step, row.layer, "hero"] == row.heroes
        assert per_layer[row.step, row.layer, "bloat"] == row.bloats
    whole = table[table["layer"].isna()].set_index(["step", "role"])["count"]
    assert whole.tolist() == per_layer.groupby(["step", "role"]).sum().reindex(whole.index).tolist()


def test_p_values_are_calibrated():
    small = []
    for trial in range(300):
        rng = np.random.default_rng(trial)
        timeline = timeline_of(rng.random(20), rng.random(20), components(4, 4), 6)
        small.append(role_counts_of(timeline, Resampling(resamples=99, seed=trial))["p_value"] <= 0.1)
    # Counts are few and whole, so the test is on the safe side.
    assert np.mean(small) <= 0.1


def test_many_bloats_in_one_layer_stand_out():
    """All of a layer's gradients are on top and its causes at the bottom: no luck, unless one knows its gradients."""
    gradient = np.arange(20.0)
    causal = np.concatenate([np.arange(5.0, 20), np.arange(5.0)])
    table = role_counts_of(timeline_of(gradient, causal, components(4, 4), 6), Resampling())
    row = table.set_index(["layer", "role"]).loc[(3, "bloat")]
    assert row["count"] == 5
    assert row["p_value"] < 0.01
    assert row["chance_given_gradient"] > 2 * row["chance"]


def test_no_counts_without_rho(tmp_path):
    arrays = random_arrays(np.random.default_rng(0), 6)
    arrays["exact_match"][:] = arrays["ablation_exact_match"][:] = False
    path = write_run(tmp_path / "run.h5", [0], [arrays], components(2, 2))
    with open_run(path) as run:
        table = role_count_table(run, permutations=10)
    assert len(table) == 6
    assert table["components"].tolist() == [6, 3, 3] * 2
    assert table[["count", "chance", "chance_given_gradient", "low", "high", "p_value"]].isna().all(axis=None)
    assert table["layer"].tolist() == [pd.NA, 0, 1] * 2
