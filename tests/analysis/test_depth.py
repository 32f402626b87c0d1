import numpy as np
import pandas as pd
import pytest
from scipy.stats import spearmanr

from dynamics import open_run
from dynamics.analysis import RANK_MEASURES, Resampling, depth_table, uncertainty_table
from dynamics.analysis.depth import depths_of
from tests.analysis.planted import gaussian_sums, sums_of
from tests.analysis.runs import components, random_arrays, random_run, write_run


def test_all_is_the_rho_of_the_uncertainty_table(tmp_path):
    random_run(tmp_path / "run.h5")
    with open_run(tmp_path / "run.h5") as run:
        depth = depth_table(run, "zero", "loss", resamples=100, seed=5)
        sure = uncertainty_table(run, "zero", "loss", resamples=100, seed=5)
    assert list(depth) == [
        "step", "baseline", "score", "measure", "rho", "low", "high", "bias", "null_low", "null_high", "p_value", "n",
        "reason",
    ]  # fmt: skip
    assert depth["measure"].tolist() == [*RANK_MEASURES] * 4
    assert depth["n"].tolist() == [6, 4, 6, 4, 6] * 4
    ours = depth[depth["measure"] == "all"].reset_index(drop=True).rename(columns={"p_value": "p_null"})
    columns = ["step", "baseline", "score", "rho", "low", "high", "bias", "null_low", "null_high", "p_null"]
    pd.testing.assert_frame_equal(ours[columns], sure[columns])


def test_rho_among_heads_is_scipys_and_its_interval_holds_it():
    rng = np.random.default_rng(0)
    listed = components(4, 4)
    sums = gaussian_sums(rng, *rng.normal(size=(2, 20)), noise=0.3, listed=listed)
    table = depths_of(sums, Resampling(resamples=200)).set_index("measure")
    heads = [index for index, component in enumerate(listed) if component.kind == "head"]
    expected = spearmanr(sums.gradient[0, heads], sums.causal[0, heads]).statistic
    assert table.loc["heads", "rho"] == pytest.approx(expected)
    assert (table["low"] < table["rho"]).all()
    assert (table["rho"] < table["high"]).all()
    assert (table["null_low"] < 0).all()
    assert (table["null_high"] > 0).all()


def test_intervals_of_every_measure_cover_what_they_should():
    inside = []
    listed = components(4, 6)
    layer = np.array([component.layer for component in listed])
    for trial in range(120):
        rng = np.random.default_rng(trial)
        gradient, causal = rng.normal(size=(2, 28)) - 0.7 * layer
        truth = depths_of(sums_of([gradient[:, None]], [causal[:, None]], [1], listed), Resampling(resamples=1))
        sums = gaussian_sums(rng, gradient, causal, noise=0.15, listed=listed)
        found = depths_of(sums, Resampling(level=0.9, resamples=200))
        inside.append((found["low"] <= truth["rho"]) & (truth["rho"] <= found["high"]))
    assert np.all(np.mean(inside, axis=0) >= 0.82)
    assert np.all(np.mean(inside, axis=0) <= 0.99)


def test_nulls_are_calibrated_where_depth_and_kind_rule():
    """Layer and kind shift G and C, independent beyond that: measures that leave both out hold their level."""
    small = []
    listed = components(5, 4)
    shift = np.array([component.layer + 3 * (component.kind == "mlp") for component in listed], dtype=float)
    for trial in range(200):
        rng = np.random.default_rng(trial)
        gradient, causal = rng.normal(size=(2, 25)) + shift
        sums = sums_of([gradient[:, None]], [causal[:, None]], [1], listed)
        small.append(depths_of(sums, Resampling(resamples=99, seed=trial))["p_value"].to_numpy() <= 0.1)
    share = dict(zip(RANK_MEASURES, np.mean(small, axis=0), strict=True))
    assert share["all"] > 0.9
    assert share["heads"] > 0.4
    assert share["within layers"] > 0.4
    assert 0.04 <= share["within layers, heads"] <= 0.16
    assert 0.04 <= share["partial"] <= 0.16


def test_why_a_measure_is_undefined(tmp_path):
    """One head and one MLP in each layer: nothing can be ranked among the heads of a layer."""
    random_run(tmp_path / "run.h5", n_steps=1, layers=2, heads=1)
    with open_run(tmp_path / "run.h5") as run:
        reason = depth_table(run, score="loss", resamples=10).set_index("measure")["reason"]
    sides = ("gradient magnitude", "causal importance")
    assert reason["within layers, heads"] == "; ".join(
        f"{side} does not differ among heads of any layer" for side in sides
    )
    assert reason[["all", "heads"]].tolist() == [None, None]
    two = depths_of(sums_of([[[1, 2], [3, 4]]], [[[1, 2], [3, 4]]], [1, 1]), Resampling(resamples=10))
    assert two.set_index("measure")["reason"].to_dict() == {
        "all": None,
        "heads": "ranks can be compared from 2 components on; 1 are heads",
        "within layers": None,
        "within layers, heads": "ranks can be compared from 2 components on; 1 are heads",
        "partial": "; ".join(f"{side} is fully explained by layer and kind" for side in sides),
    }


def test_snapshots_without_a_ranking_and_a_probe_of_one_batch(tmp_path):
    untrained, diverged = (random_arrays(np.random.default_rng(0), 6) for _ in range(2))
    untrained["ablation_loss"][:] = untrained["loss"]
    diverged["loss"][0] = np.nan
    path = write_run(tmp_path / "run.h5", [0, 1], [untrained, diverged], components(2, 2))
    with open_run(path) as run:
        table = depth_table(run, score="loss", resamples=10)
    assert table["reason"][:5].unique().tolist() == ["causal importance is the same for all components (0)"]
    assert table["reason"][5:].unique().tolist() == ["6 of 6 values of causal importance are not finite"]
    assert table[["rho", "low", "high", "p_value"]].isna().all(axis=None)
    single = depths_of(sums_of(*np.random.default_rng(0).normal(size=(2, 1, 6, 1)), [9]), Resampling(resamples=10))
    assert single["rho"].notna().all()
    assert single["low"].isna().all()
    assert single["reason"][0] == "the probe has a single batch; an interval needs at least 2 batches to resample"
