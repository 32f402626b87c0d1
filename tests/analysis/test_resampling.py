import itertools

import numpy as np
import pytest
from scipy.stats import rankdata

from dynamics.analysis import Resampling
from dynamics.analysis.resampling import resampled_means, two_sided_p, upper_p
from dynamics.errors import AnalysisError


def test_counts_draw_as_many_batches_as_there_are():
    counts = Resampling(resamples=4000).counts(5)
    assert counts.shape == (4000, 5)
    assert (counts.sum(1) == 5).all()
    assert counts.mean(0) == pytest.approx(np.ones(5), abs=0.06)
    # Of a multinomial: 5 x 1/5 x 4/5.
    assert counts.var(0) == pytest.approx(np.full(5, 0.8), abs=0.08)


def test_equal_seeds_give_equal_draws_and_leave_other_generators_alone():
    state = np.random.get_state()[1].tolist()
    one, again, other = (Resampling(resamples=20, seed=seed) for seed in (3, 3, 4))
    groups = np.array([0, 0, 1, 1, 1])
    assert (one.counts(6) == again.counts(6)).all()
    assert (one.permutations(groups) == again.permutations(groups)).all()
    assert (one.counts(6) != other.counts(6)).any()
    assert (one.permutations(groups, 1) != one.permutations(groups, 2)).any()
    assert np.random.get_state()[1].tolist() == state


def test_permutations_stay_in_their_group_and_are_uniform():
    groups = np.array([7, 2, 7, 2, 7])
    found = Resampling(resamples=6000).permutations(groups)
    assert (groups[found] == groups).all()
    assert (np.sort(found, axis=1) == np.arange(5)).all()
    orders, often = np.unique(found, axis=0, return_counts=True)
    # 3! orders of the one group times 2! of the other.
    assert len(orders) == 12
    assert often.min() > 400


def test_means_of_resampled_batches_equal_a_loop_over_examples():
    rng = np.random.default_rng(0)
    sizes = np.array([3, 1, 4])
    examples = [rng.normal(size=(2, size)) for size in sizes]
    sums = np.stack([values.sum(1) for values in examples], axis=1)
    draws = list(itertools.product(range(3), repeat=3))
    counts = np.array([np.bincount(draw, minlength=3) for draw in draws], dtype=float)
    found = resampled_means(counts, sums, sizes)
    for draw, row in zip(draws, found, strict=True):
        assert row == pytest.approx(np.concatenate([examples[batch] for batch in draw], axis=1).mean(1))


@pytest.mark.parametrize("n", [5, 20, 33, 160])
def test_equal_components_stay_equal_to_the_bit(n):
    rng = np.random.default_rng(0)
    sums = np.tile(rng.normal(size=50), (n, 1))
    sums[::3] = rng.normal(size=50)
    means = resampled_means(Resampling(resamples=50).counts(50), sums, np.full(50, 32.0))
    for column in range(n):
        assert (means[:, column] == means[:, 0 if column % 3 == 0 else 1]).all()


def test_percentiles():
    values = np.arange(101.0)[:, None] * [1, -1]
    low, high = Resampling(level=0.9).interval(values)
    assert low == pytest.approx([5, -95])
    assert high == pytest.approx([95, -5])
    low, high = Resampling().interval(np.empty((0, 2)))
    assert np.isnan([low, high]).all()


def test_an_interval_is_extended_by_twice_the_bias_on_the_side_that_noise_took():
    values = np.linspace(0.2, 0.4, 101)
    resampling = Resampling(level=0.9)
    # Mean of the resamples: 0.3.
    for estimate, low, high, bias in [(0.3, 0.21, 0.39, 0), (0.35, 0.21, 0.49, -0.05), (0.2, 0.01, 0.39, 0.1)]:
        assert resampling.widened_interval(values, estimate, 1) == pytest.approx((low, high, bias))
    assert resampling.widened_interval(values, 0.9, 1)[1] == 1
    assert np.isnan(resampling.widened_interval(np.empty(0), 0.9, 1)).all()


def test_p_values_count_what_was_found_among_the_null():
    null = np.array([-2.0, -1, 0, 1, 2, 3, 4, 5, 6])
    assert upper_p(null, 5.0) == pytest.approx(0.3)
    assert two_sided_p(null, 5.0) == pytest.approx(0.6)
    assert two_sided_p(null, -9.0) == pytest.approx(0.2)
    assert two_sided_p(null, 2.0) == 1
    # Rounding is no difference.
    assert upper_p(null, 5.0 + 1e-13) == pytest.approx(0.3)


def test_p_values_are_exact_where_every_permutation_is_drawn():
    first, second = np.array([1.0, 2, 3, 4]), np.array([2.0, 1, 3, 4])
    every = np.array(list(itertools.permutations(second)))
    null = (every - 2.5) @ (first - 2.5) / 5
    observed = np.corrcoef(rankdata(first), rankdata(second))[0, 1]
    # 4 of the 24 orders agree as well or better: the order itself, and the three that swap one pair of neighbours.
    assert (null >= observed - 1e-9).sum() == 4
    assert upper_p(null, observed) == pytest.approx(5 / 25)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"level": 95}, "the level of an interval must lie between 0 and 1, such as 0.95; got 95."),
        ({"level": 0.0}, "the level of an interval must lie between 0 and 1, such as 0.95; got 0.0."),
        ({"resamples": 0}, "the number of resamples must be at least 1; got 0."),
    ],
)
def test_settings_out_of_range(settings, message):
    with pytest.raises(AnalysisError) as caught:
        Resampling(**settings)
    assert str(caught.value) == message


def test_intervals_of_columns_are_those_of_each_column_without_what_is_not_finite():
    rng = np.random.default_rng(0)
    values = rng.normal(0.2, 0.5, (40, 5))
    values[rng.random((40, 5)) < 0.3] = np.nan
    values[:, 0] = rng.normal(size=40)
    values[:, 3] = np.nan
    estimates, resampling = rng.normal(size=5), Resampling(level=0.8)
    found = np.array(resampling.widened_intervals(values, estimates, 1))
    for column in range(5):
        own = values[np.isfinite(values[:, column]), column]
        expected = np.array(resampling.widened_interval(own, estimates[column], 1), dtype=float)
        assert found[:, column] == pytest.approx(expected, abs=1e-15, nan_ok=True)
    assert np.isnan(found[:, 3]).all()


def test_sums_of_zeros_of_either_sign_have_equal_means():
    sums = np.array([[0.0, -0.0, 1.0], [-0.0, 0.0, 1.0], [0.1, 0.2, 0.3]])
    means = resampled_means(Resampling(resamples=10).counts(3), sums, np.array([1.0, 2, 3]))
    assert (means[:, 0] == means[:, 1]).all()
