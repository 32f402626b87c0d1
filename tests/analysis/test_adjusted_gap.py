import itertools

import numpy as np
import pytest
from scipy.stats import rankdata

from dynamics import open_run
from dynamics.analysis import Resampling, adjusted_count_table, adjusted_gap_table, gap_table, rho_table
from dynamics.analysis.adjusted_gap import adjusted_counts_of, adjusted_gaps_of, less_layer_mean
from tests.analysis.planted import gaussian_sums, sums_of
from tests.analysis.runs import components, random_arrays, random_run, write_run


def test_it_takes_off_the_mean_rank_of_the_layer(tmp_path):
    random_run(tmp_path / "run.h5")
    with open_run(tmp_path / "run.h5") as run:
        table = adjusted_gap_table(run, "zero", "loss", threshold=2, resamples=50)
        gaps = gap_table(run, "zero", "loss", threshold=2)
    assert list(table) == [
        "step", "component", "layer", "kind", "delta", "layer_delta", "adjusted", "adjusted_low", "adjusted_high",
        "role", "adjusted_role",
    ]  # fmt: skip
    for column in ("step", "component", "layer", "kind", "delta", "role"):
        assert table[column].tolist() == gaps[column].tolist()
    layers = gaps.groupby(["step", "layer"])
    means = {key: rows["rank_gradient"].mean() - rows["rank_causal"].mean() for key, rows in layers}
    for row in table.itertuples():
        assert row.layer_delta == pytest.approx(means[row.step, row.layer])
        assert row.adjusted == pytest.approx(row.delta - means[row.step, row.layer])
        assert row.adjusted_low <= row.adjusted <= row.adjusted_high
        assert row.adjusted_role == ("hero" if row.adjusted <= -2 else "bloat" if row.adjusted >= 2 else "aligned")
    assert table.groupby(["step", "layer"])["adjusted"].sum().to_numpy() == pytest.approx(np.zeros(8), abs=1e-8)


def test_intervals_equal_a_loop_over_resamples():
    rng = np.random.default_rng(0)
    listed = components(2, 3)
    sums = gaussian_sums(rng, *rng.normal(size=(2, 8)), n_batches=6, noise=0.5, listed=listed)
    resampling = Resampling(level=0.8, resamples=60)
    table = adjusted_gaps_of(sums, resampling)
    rows = []
    for counts in resampling.counts(6):
        gradient = (sums.gradient_norm[0] * counts).sum(1) / 6
        causal = (sums.gains[0] * counts).sum(1) / (sums.sizes * counts).sum()
        delta = rankdata(gradient) - rankdata(causal)
        rows.append(np.concatenate([part - part.mean() for part in (delta[:4], delta[4:])]))
    low, high = np.quantile(rows, [0.1, 0.9], axis=0)
    bias = np.mean(rows, axis=0) - table["adjusted"]
    assert table["adjusted_low"].to_numpy() == pytest.approx(np.maximum(low - 2 * bias.clip(0), -7), abs=1e-6)
    assert table["adjusted_high"].to_numpy() == pytest.approx(np.minimum(high - 2 * bias.clip(None, 0), 7), abs=1e-6)


def test_roles_that_are_depth_alone_go():
    """The gradient falls with depth, causes rise with it, and within a layer both have the same order."""
    listed = components(4, 4)
    layer = np.array([component.layer for component in listed])
    order = np.tile([0, 1, 2, 3, 4], 4)
    gradient, causal = -10.0 * layer + order, 10.0 * layer + order
    sums = sums_of([gradient[:, None]], [causal[:, None]], [1], listed)
    table = adjusted_counts_of(sums, Resampling(resamples=50), 6).set_index("role")
    assert table["count"].tolist() == [5, 5]
    assert table["left"].tolist() == table["kept"].tolist() == [0, 0]
    gaps = adjusted_gaps_of(sums, Resampling(resamples=50), 6)
    assert gaps["adjusted"].tolist() == [0] * 20
    assert gaps["role"].value_counts().to_dict() == {"aligned": 10, "bloat": 5, "hero": 5}


def test_chance_is_the_mean_over_every_order_within_layers():
    rng = np.random.default_rng(3)
    listed = components(2, 2)
    sums = sums_of(*rng.normal(size=(2, 1, 6, 1)), [1], listed)
    table = adjusted_counts_of(sums, Resampling(resamples=4000), 1.5).set_index("role")
    gap, layers = sums.gap(0), np.array([0, 0, 0, 1, 1, 1])
    gradient, causal = less_layer_mean(gap.rank_gradient, layers), less_layer_mean(gap.rank_causal, layers)
    counts = [
        ((gradient - causal[[*one, *(3 + i for i in two)]]) >= 1.5 - 1e-9).sum()
        for one, two in itertools.product(itertools.permutations(range(3)), repeat=2)
    ]
    row = table.loc["bloat"]
    assert row["chance"] == pytest.approx(np.mean(counts))
    assert (row["low"], row["high"]) == pytest.approx(tuple(np.quantile(counts, [0.025, 0.975])), abs=0.5)
    at_least, at_most = np.mean(np.array(counts) >= row["left"]), np.mean(np.array(counts) <= row["left"])
    assert row["p_value"] == pytest.approx(min(1, 2 * min(at_least, at_most)), abs=0.05)


def test_a_gap_of_exactly_the_threshold_is_a_role_whatever_the_rounding():
    """Means over layers of 3: 7/3 - 1/3 is not 2 in floating point."""
    values = np.array([7.0, 0, 0, 1, 1, 1])
    found = less_layer_mean(values, np.array([0, 0, 0, 1, 1, 1]))
    assert found.tolist() == [round(7 - 7 / 3, 9), round(-7 / 3, 9), round(-7 / 3, 9), 0, 0, 0]


def test_counts_are_those_of_the_tables(tmp_path):
    random_run(tmp_path / "run.h5")
    with open_run(tmp_path / "run.h5") as run:
        counts = adjusted_count_table(run, score="loss", permutations=20).set_index(["step", "role"])
        gaps = adjusted_gap_table(run, score="loss", resamples=5)
        rho = rho_table(run, score="loss")
    assert list(counts) == ["count", "left", "kept", "chance", "low", "high", "p_value"]
    for row in rho.itertuples():
        rows = gaps[gaps["step"] == row.step]
        for role, number in (("hero", row.heroes), ("bloat", row.bloats)):
            found = counts.loc[(row.step, role)]
            assert found["count"] == number
            assert found["left"] == (rows["adjusted_role"] == role).sum()
            assert found["kept"] == ((rows["role"] == role) & (rows["adjusted_role"] == role)).sum()


def test_snapshots_without_rho_and_a_probe_of_one_batch(tmp_path):
    untrained, diverged = (random_arrays(np.random.default_rng(0), 6) for _ in range(2))
    untrained["ablation_loss"][:] = untrained["loss"]
    diverged["loss"][0] = np.nan
    path = write_run(tmp_path / "run.h5", [0, 1], [untrained, diverged], components(2, 2))
    with open_run(path) as run:
        gaps = adjusted_gap_table(run, score="loss", resamples=10)
        counts = adjusted_count_table(run, score="loss", permutations=10)
    assert (gaps[["role", "adjusted_role"]] == "undefined").all(axis=None)
    assert gaps["adjusted_low"].isna().all()
    assert counts[["count", "left", "kept", "chance", "p_value"]].isna().all(axis=None)
    single = adjusted_gaps_of(sums_of(*np.random.default_rng(0).normal(size=(2, 1, 6, 1)), [9]), Resampling())
    assert single["adjusted_low"].isna().all()
    assert single["adjusted"].notna().all()
