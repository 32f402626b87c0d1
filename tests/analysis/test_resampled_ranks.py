"""Kept ranks are those of the means over resampled batches, whoever asks first."""

import numpy as np
import pytest
from scipy.stats import rankdata

from dynamics.analysis import Resampling
from dynamics.analysis.resampled_ranks import ResampledRanks

SIZES = np.array([3.0, 1, 2, 2])


@pytest.fixture
def sums():
    rng = np.random.default_rng(0)
    values = rng.integers(-2, 3, (2, 20, 4)).astype(float)
    values[:, 1] = values[:, 0]
    return values


def expected(sums, row, resampling):
    counts = resampling.counts(4)
    means = np.array([[(count * of).sum() / (count * SIZES).sum() for of in sums[row]] for count in counts])
    return means, rankdata(np.round(means, 12), axis=-1) - 10.5


@pytest.mark.parametrize("asked_before", [False, True])
def test_ranks_are_those_of_the_means(sums, asked_before):
    ranked, resampling = ResampledRanks(sums, SIZES), Resampling(resamples=30)
    for row in (1, 0):
        means, ranks = expected(sums, row, resampling)
        assert ranked.means(row, resampling) == pytest.approx(means, abs=1e-12)
        given = ranked.means(row, resampling) if asked_before else None
        for _ in range(2):
            assert ranked.ranks(row, resampling, given).tolist() == ranks.tolist()
    assert ranked.batches == 4


def test_other_resamples_have_other_ranks(sums):
    ranked = ResampledRanks(sums, SIZES)
    for resampling in (Resampling(resamples=5), Resampling(resamples=7), Resampling(resamples=5, seed=1)):
        assert ranked.ranks(0, resampling).tolist() == expected(sums, 0, resampling)[1].tolist()


def test_ranks_of_many_components_do_not_overflow():
    n = 40_000
    ranked = ResampledRanks(np.arange(float(n)).reshape(1, n, 1), np.ones(1))
    resampling = Resampling(resamples=1)
    assert ranked.ranks(0, resampling)[0, [0, -1]].tolist() == [-(n - 1) / 2, (n - 1) / 2]
    assert ranked.ranks(0, resampling)[0, [0, -1]].tolist() == [-(n - 1) / 2, (n - 1) / 2]
