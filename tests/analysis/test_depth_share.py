import numpy as np
import pytest

from dynamics import open_run
from dynamics.analysis import Resampling, depth_share_table
from dynamics.analysis.depth_share import FACTORS, depth_shares_of
from tests.analysis.planted import gaussian_sums, sums_of
from tests.analysis.runs import components, random_run

LISTED = components(4, 4)
LAYER = np.array([component.layer for component in LISTED])
MLP = np.array([component.kind == "mlp" for component in LISTED], dtype=float)


def shares(gradient, causal, listed=LISTED, **settings):
    sums = sums_of([np.asarray(gradient, dtype=float)[:, None]], [np.asarray(causal)[:, None]], [1], listed)
    return depth_shares_of(sums, Resampling(**settings)).set_index("factor")


def test_it_is_the_r_squared_of_a_regression_on_indicators():
    rng = np.random.default_rng(0)
    gradient, causal = rng.normal(size=(2, 20)) - LAYER
    delta = sums_of([gradient[:, None]], [causal[:, None]], [1], LISTED).gap(0).delta
    layers = [one == LAYER for one in range(4)]
    found = shares(gradient, causal, resamples=100)
    assert found.index.tolist() == list(FACTORS)
    for factor, columns in (("layer", layers), ("kind", [MLP == 0, MLP == 1]), ("layer and kind", [*layers, MLP == 1])):
        design = np.column_stack(columns).astype(float)
        rest = delta - design @ np.linalg.lstsq(design, delta, rcond=None)[0]
        assert found.loc[factor, "share"] == pytest.approx(1 - (rest @ rest) / (delta @ delta))
    assert found["chance"].tolist() == pytest.approx([3 / 19, 1 / 19, 4 / 19])
    assert found["adjusted_share"].tolist() == pytest.approx((found["share"] - found["chance"]) / (1 - found["chance"]))


def test_chance_is_the_mean_over_permutations():
    """``(k - 1) / (n - 1)``: the mean of R squared over random orders, exactly."""
    rng = np.random.default_rng(0)
    drawn = [shares(*rng.normal(size=(2, 20)), resamples=1)["share"] for _ in range(600)]
    assert np.mean(drawn, axis=0) == pytest.approx([3 / 19, 1 / 19, 4 / 19], abs=0.015)


def test_the_p_value_is_calibrated():
    small = []
    for trial in range(600):
        gradient, causal = np.random.default_rng(trial).normal(size=(2, 20))
        small.append(shares(gradient, causal, resamples=99, seed=trial)["p_value"] <= 0.1)
    assert np.mean(small, axis=0) == pytest.approx([0.1] * 3, abs=0.035)


def test_gaps_that_are_depth_or_kind_alone_are_explained():
    order = np.tile([0.0, 1, 2, 3, 4], 4)
    depth = shares(-10 * LAYER + order, 10 * LAYER + order, resamples=200)
    assert depth["share"].tolist() == pytest.approx([1, 0, 1])
    assert depth["p_value"].tolist() == pytest.approx([1 / 201, 1, 1 / 201])
    # All MLPs have the largest gradients and matter least; among heads both orders are the same.
    rank = np.arange(20.0)
    kind = shares(100 * MLP + rank, -100 * MLP + rank, resamples=200)
    assert kind.loc["kind", "share"] == pytest.approx(1)
    assert kind.loc["layer", "share"] < 0.05


def test_an_interval_holds_the_share(tmp_path):
    rng = np.random.default_rng(0)
    gradient, causal = rng.normal(size=(2, 20)) - LAYER
    found = depth_shares_of(gaussian_sums(rng, gradient, causal, listed=LISTED), Resampling(resamples=200))
    assert ((found["low"] >= 0) & (found["low"] < found["share"]) & (found["share"] < found["high"])).all()
    assert (found["high"] <= 1).all()
    random_run(tmp_path / "run.h5")
    with open_run(tmp_path / "run.h5") as run:
        table = depth_share_table(run, "zero", "loss", resamples=20)
    assert list(table) == [
        "step", "factor", "share", "low", "high", "chance", "chance_high", "adjusted_share", "p_value", "reason",
    ]  # fmt: skip
    assert table["step"].tolist() == np.repeat([0, 10, 20, 30], 3).tolist()
    assert table["reason"].tolist() == [None] * 12


def test_why_it_is_undefined():
    numbers = ["share", "low", "high", "chance", "adjusted_share", "p_value"]
    same = shares(np.arange(20.0), np.arange(20.0), resamples=10)
    assert same["reason"].tolist() == ["every gap is 0: nothing is to be explained"] * 3
    assert same[numbers].isna().all(axis=None)
    constant = shares(np.arange(20.0), np.zeros(20), resamples=10)
    assert constant["reason"].tolist() == ["causal importance is the same for all components (0)"] * 3
    single = shares(np.arange(20.0), np.arange(20.0)[::-1], resamples=10)
    assert (
        single["reason"].tolist()
        == ["the probe has a single batch; an interval needs at least 2 batches to resample"] * 3
    )
    assert single["share"].notna().all()
    assert single["low"].isna().all()
    two = shares([1.0, 2.0], [2.0, 1.0], components(1, 1), resamples=10)
    assert two["share"].tolist() == pytest.approx([0, 1, 1])
    assert two["adjusted_share"].isna().tolist() == [False, True, True]
