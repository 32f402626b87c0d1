import itertools

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm, rankdata, spearmanr

from dynamics import open_run
from dynamics.analysis import (
    Resampling,
    gap_table,
    read_uncertainty,
    rho_table,
    role_probability_table,
    uncertainty_table,
)
from dynamics.analysis.uncertainty import resample_snapshot, tied_share, uncertainty_of
from dynamics.errors import AnalysisError
from tests.analysis.planted import gaussian_sums, sums_of
from tests.analysis.runs import components, random_arrays, random_run, write_run

NO_INTERVAL = "the probe has a single batch; an interval needs at least 2 batches to resample"


def test_it_equals_brute_force_over_every_resample_and_every_permutation(tmp_path):
    """Three batches have 27 resamples, four components 24 orders: drawn all, nothing is left to chance."""
    rng = np.random.default_rng(1)
    sizes = np.array([2, 1, 3])
    norms = [rng.gamma(2, 1, 4) for _ in sizes]
    gains = [rng.integers(-1, 2, (4, size)) for size in sizes]
    sums = sums_of([np.stack(norms, 1)], [np.stack([g.sum(1) for g in gains], 1)], sizes)
    draws = list(itertools.product(range(3), repeat=3))
    counts = np.array([np.bincount(draw, minlength=3) for draw in draws], dtype=float)
    orders = np.array(list(itertools.permutations(range(4))))

    class All(Resampling):
        def counts(self, n_batches):
            return counts

    found = resample_snapshot(sums, 0, 1.5, All(level=0.8, resamples=27), orders)

    gaps, causes, rhos = [], [], []
    for draw in draws:
        gradient = np.mean([norms[batch] for batch in draw], axis=0)
        causal = np.concatenate([gains[batch] for batch in draw], axis=1).mean(1)
        causes.append(causal)
        causal = np.round(causal, 12)
        if np.ptp(causal):
            gaps.append(rankdata(gradient) - rankdata(causal))
            rhos.append(spearmanr(gradient, causal).statistic)
    assert len(rhos) == np.isfinite(found.rho_resamples).sum() > 20
    assert found.rho_resamples[np.isfinite(found.rho_resamples)] == pytest.approx(rhos)
    assert found.hero == pytest.approx(np.mean(np.array(gaps) <= -1.5, axis=0))
    assert found.bloat == pytest.approx(np.mean(np.array(gaps) >= 1.5, axis=0))
    assert found.causal == pytest.approx(np.quantile(causes, [0.1, 0.9], axis=0))
    low, high = np.quantile(rhos, [0.1, 0.9])
    bias = np.mean(rhos) - found.gap.rho
    assert found.rho == pytest.approx((max(-1, min(low, low - 2 * bias)), min(1, max(high, high - 2 * bias)), bias))
    null = [spearmanr(sums.gradient[0], sums.causal[0][order]).statistic for order in map(list, orders)]
    as_high = (1 + sum(value >= found.gap.rho - 1e-9 for value in null)) / 25
    as_low = (1 + sum(value <= found.gap.rho + 1e-9 for value in null)) / 25
    assert found.null == pytest.approx((*np.quantile(null, [0.1, 0.9]), min(1, 2 * min(as_high, as_low))))


@pytest.mark.parametrize(
    ("n", "noise", "correlation", "common"),
    [(20, 0.1, 0.6, 0.6), (20, 0.2, -0.3, 0.6), (20, 0.1, 0.6, 0), (60, 0.2, 0.6, 0)],
)
def test_intervals_cover_what_they_should(n, noise, correlation, common):
    """Rho, Delta and C of an endless probe lie within their 90 % intervals about 9 times in 10."""
    trials, resampling = 150, Resampling(level=0.9, resamples=200)
    inside, gaps, causes = [], [], []
    for trial in range(trials):
        rng = np.random.default_rng([n, trial])
        gradient, other = rng.normal(size=(2, n))
        causal = correlation * gradient + np.sqrt(1 - correlation**2) * other
        found = uncertainty_of(gaussian_sums(rng, gradient, causal, 40, noise, common), resampling).snapshots[0]
        inside.append(found.rho[0] <= spearmanr(gradient, causal).statistic <= found.rho[1])
        delta = rankdata(gradient) - rankdata(causal)
        gaps.append((found.delta[0] <= delta) & (delta <= found.delta[1]))
        causes.append((found.causal[0] <= causal) & (causal <= found.causal[1]))
    # One standard error of a share of 150 is 2.4 points.
    assert 0.83 <= np.mean(inside) <= 0.98
    assert 0.86 <= np.mean(gaps) <= 0.98
    assert 0.86 <= np.mean(causes) <= 0.91


def test_plain_percentiles_would_miss_rho():
    """Why the interval is widened: with many components the noise in ranks outweighs that of the probe."""
    missed = 0
    for trial in range(40):
        rng = np.random.default_rng(trial)
        gradient, other = rng.normal(size=(2, 160))
        causal = 0.6 * gradient + 0.8 * other
        sums = gaussian_sums(rng, gradient, causal, noise=0.3, common=0)
        resamples = uncertainty_of(sums, Resampling(resamples=200)).snapshots[0].rho_resamples
        low, high = np.quantile(resamples, [0.025, 0.975])
        missed += not low <= spearmanr(gradient, causal).statistic <= high
    assert missed > 20


def test_reflected_and_bias_corrected_intervals_would_miss_where_noise_is_small():
    """Why it is widened rather than shifted: ranks that barely move make the bias itself a matter of luck."""
    missed, trials = np.zeros(3), 100
    for trial in range(trials):
        rng = np.random.default_rng(trial)
        gradient, other = rng.normal(size=(2, 20))
        causal = 0.6 * gradient + 0.8 * other
        sums = gaussian_sums(rng, gradient, causal, noise=0.05, common=0)
        found = uncertainty_of(sums, Resampling(resamples=200)).snapshots[0]
        resamples, rho = found.rho_resamples, found.gap.rho
        low, high = np.quantile(resamples, [0.025, 0.975])
        below = np.mean(resamples < rho) + np.mean(resamples == rho) / 2
        corrected = norm.cdf(2 * norm.ppf(np.clip(below, 0.01, 0.99)) + norm.ppf([0.025, 0.975]))
        intervals = (found.rho[:2], (2 * rho - high, 2 * rho - low), np.quantile(resamples, corrected))
        truth = spearmanr(gradient, causal).statistic
        missed += [not left - 1e-9 <= truth <= right + 1e-9 for left, right in intervals]
    ours, reflected, bias_corrected = missed / trials
    assert ours <= 0.08
    assert min(reflected, bias_corrected) > 0.1


def test_the_null_is_calibrated():
    """Of independent G and C, about 1 in 10 have a p-value below 0.1, and a band of 90 % holds 9 in 10."""
    small, inside = [], []
    for trial in range(400):
        gradient, causal = np.random.default_rng(trial).normal(size=(2, 1, 12, 1))
        sums = sums_of(gradient, causal, [1])
        found = uncertainty_of(sums, Resampling(level=0.9, resamples=199, seed=trial)).snapshots[0]
        small.append(found.null[2] <= 0.1)
        inside.append(found.null[0] <= found.gap.rho <= found.null[1])
    assert 0.06 <= np.mean(small) <= 0.14
    assert 0.86 <= np.mean(inside) <= 0.94


def test_tables_agree_with_the_timeline_and_the_seed_decides(tmp_path):
    random_run(tmp_path / "run.h5")
    with open_run(tmp_path / "run.h5") as run:
        table = uncertainty_table(run, "zero", "loss", resamples=50)
        roles = role_probability_table(run, "zero", "loss", resamples=50)
        rho, gaps = rho_table(run, "zero", "loss"), gap_table(run, "zero", "loss")
        again, other = (uncertainty_table(run, "zero", "loss", resamples=50, seed=seed) for seed in (0, 1))
        narrow = uncertainty_table(run, "zero", "loss", level=0.5, resamples=50)
    assert list(table) == [
        "step", "baseline", "score", "rho", "low", "high", "bias", "defined", "null_low", "null_high", "p_null", "ties",
        "indistinguishable", "reason",
    ]  # fmt: skip
    assert list(roles) == [
        "step", "component", "layer", "kind", "delta", "delta_low", "delta_high", "p_hero", "p_bloat", "causal",
        "causal_low", "causal_high", "distinguishable",
    ]  # fmt: skip
    assert table["rho"].tolist() == rho["rho"].tolist()
    for column in ("step", "component", "layer", "kind", "delta", "causal"):
        assert roles[column].tolist() == gaps[column].tolist()
    assert (table["low"] <= table["rho"]).all()
    assert (table["rho"] <= table["high"]).all()
    assert (narrow["high"] - narrow["low"] < table["high"] - table["low"]).all()
    pd.testing.assert_frame_equal(table, again)
    assert (table["low"] != other["low"]).any()
    share = 1 - roles.groupby("step")["distinguishable"].mean().to_numpy(dtype=float)
    assert table["indistinguishable"].tolist() == pytest.approx(share)
    assert table["reason"].tolist() == [None] * 4


def test_relabelling_components_relabels_the_findings():
    rng = np.random.default_rng(0)
    sums = gaussian_sums(rng, *rng.normal(size=(2, 9)), noise=0.3)
    order = rng.permutation(9)
    turned = sums_of(sums.gradient_norm[:, order], sums.gains[:, order], sums.sizes)
    one, other = (uncertainty_of(s, Resampling(resamples=100)).snapshots[0] for s in (sums, turned))
    assert other.rho == pytest.approx(one.rho)
    assert other.hero == pytest.approx(one.hero[order])
    assert other.delta == pytest.approx(one.delta[:, order])
    assert other.causal == pytest.approx(one.causal[:, order])


def test_units_do_not_matter():
    rng = np.random.default_rng(0)
    sums = gaussian_sums(rng, *rng.normal(size=(2, 9)), noise=0.3)
    scaled = sums_of(sums.gradient_norm * 1024, sums.gains / 8 + sums.sizes, sums.sizes)
    one, other = (uncertainty_of(s, Resampling(resamples=100)).snapshots[0] for s in (sums, scaled))
    assert other.rho == pytest.approx(one.rho)
    assert other.bloat == pytest.approx(one.bloat)
    assert other.causal == pytest.approx(one.causal / 8 + 1)


def test_the_same_batches_are_drawn_at_every_step():
    rng = np.random.default_rng(0)
    sums = gaussian_sums(rng, *rng.normal(size=(2, 9)), noise=0.3)
    twice = sums_of(np.repeat(sums.gradient_norm, 2, 0), np.repeat(sums.gains, 2, 0), sums.sizes)
    found = uncertainty_of(twice, Resampling(resamples=100)).rho_resamples
    assert found.shape == (2, 100)
    assert (found[0] == found[1]).all()


def test_a_noise_floor_and_a_clear_effect(tmp_path):
    """An effect on every example stands out, help or harm; one of both signs does not, and none at all neither."""
    arrays = random_arrays(np.random.default_rng(0), 4)
    arrays["loss"][:] = 1
    arrays["ablation_loss"][0] = [[2.0] * 8, [1.5, 0.5] * 4, [1.0] * 8, [0.5] * 8]
    path = write_run(tmp_path / "run.h5", [0], [arrays], components(1, 3))
    with open_run(path) as run:
        table = role_probability_table(run, score="loss")
    assert table["distinguishable"].tolist() == [True, False, False, True]
    assert table[["causal_low", "causal_high"]].to_numpy().tolist() == [[1, 1], [0, 0], [0, 0], [-0.5, -0.5]]


def test_ties_are_a_share_of_components():
    assert tied_share(np.array([[1.0, 2, 1, 3, 1], [1, 2, 3, 4, 5], [0, 0, 0, 0, 0]])) == pytest.approx([0.6, 0, 1])
    assert np.isnan(tied_share(np.array([1.0, np.nan, 1])))


def test_snapshots_without_a_ranking(tmp_path):
    """While accuracy is 0 all C are 0, and known to be; a diverged model tells nothing."""
    rng = np.random.default_rng(1)
    untrained, trained, diverged = (random_arrays(rng, 6) for _ in range(3))
    untrained["exact_match"][:] = untrained["ablation_exact_match"][:] = False
    diverged["gradient_norm"][2] = np.nan
    path = write_run(tmp_path / "run.h5", [0, 5, 9], [untrained, trained, diverged], components(2, 2))
    with open_run(path) as run:
        found = read_uncertainty(run, resamples=50)
    table, roles = found.uncertainty_table(), found.role_probability_table()
    assert table["reason"].tolist() == [
        "causal importance is the same for all components (0)",
        None,
        "1 of 6 values of gradient magnitude are not finite",
    ]
    for column in ("rho", "low", "high", "bias", "null_low", "null_high", "p_null"):
        assert table[column].isna().tolist() == [True, False, True]
    assert table["ties"][0] == table["indistinguishable"][0] == 1
    assert table["defined"].tolist() == [0, pytest.approx(1, abs=0.1), 0]
    assert np.isnan(table["indistinguishable"][2])
    assert roles["p_hero"].isna().tolist() == [True] * 6 + [False] * 6 + [True] * 6
    assert roles["delta"].isna().tolist() == [False] * 12 + [True] * 6
    assert roles["distinguishable"][:6].tolist() == [False] * 6
    assert roles["distinguishable"][12:].isna().all()


def test_resamples_without_a_ranking_are_left_out():
    """Only one batch holds matches: without it all C are 0."""
    gains = np.zeros((1, 4, 3))
    gains[0, :, 0] = [0, 1, 2, 3]
    sums = sums_of(np.arange(12.0).reshape(1, 4, 3), gains, [3, 3, 3])
    found = uncertainty_of(sums, Resampling(resamples=500))
    table = found.uncertainty_table()
    assert table.loc[0, ["rho", "low", "high"]].tolist() == pytest.approx([1, 1, 1])
    # (2/3)^3 of the resamples miss the batch.
    assert table["defined"][0] == pytest.approx(19 / 27, abs=0.05)
    assert found.snapshots[0].hero.tolist() == [0] * 4
    assert found.role_probability_table()["causal_low"].tolist() == [0] * 4


def test_a_single_batch_has_no_interval_but_a_null():
    rng = np.random.default_rng(0)
    found = uncertainty_of(sums_of(*rng.normal(size=(2, 1, 8, 1)), [32]), Resampling(resamples=50))
    table, roles = found.uncertainty_table(), found.role_probability_table()
    assert table["reason"].tolist() == [NO_INTERVAL]
    assert table[["low", "high", "bias"]].isna().all(axis=None)
    assert table[["rho", "null_low", "null_high", "p_null", "ties"]].notna().all(axis=None)
    assert roles[["delta_low", "p_hero", "p_bloat", "causal_low", "distinguishable"]].isna().all(axis=None)
    assert roles["delta"].notna().all()


def test_two_components():
    found = uncertainty_of(sums_of([[[1, 2], [3, 4]]], [[[1, 2], [3, 4]]], [1, 1]), Resampling(resamples=50))
    row = found.uncertainty_table().loc[0]
    assert (row["rho"], row["low"], row["high"]) == pytest.approx((1, 1, 1))
    # Either order is as likely.
    assert row["p_null"] > 0.8
    assert found.role_probability_table()["p_bloat"].tolist() == [0, 0]


def test_a_threshold_out_of_range():
    with pytest.raises(AnalysisError) as caught:
        uncertainty_of(sums_of([[[1], [3]]], [[[1], [3]]], [1]), Resampling(), 0)
    assert str(caught.value) == "the threshold of a role must be a positive number of ranks; got 0."
