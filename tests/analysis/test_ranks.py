import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from scipy.stats import rankdata, spearmanr

from dynamics.analysis.ranks import (
    centred_ranks,
    centred_ranks_within,
    correlate,
    correlate_permuted,
    ranks,
    rho_and_gaps,
)

few = st.sampled_from([-2.0, -0.5, 0.0, 1e-12, 0.5, 3.0])
tables = arrays(float, array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=7), elements=few)
pairs = arrays(float, st.tuples(st.just(2), st.integers(1, 4), st.integers(2, 8)), elements=few)


@given(tables)
def test_ranks_are_scipys(values):
    assert ranks(values).tolist() == rankdata(values, axis=-1).tolist()


def test_ranks_without_ties_are_scipys():
    values = np.random.default_rng(0).normal(size=(5, 40))
    assert ranks(values).tolist() == rankdata(values, axis=-1).tolist()


@pytest.mark.parametrize("n", [1, 2, 15, 16, 17, 40])
def test_centred_ranks_are_scipys_less_their_mean_for_few_and_for_many(n):
    values = np.random.default_rng(n).integers(0, 1 + n // 2, (6, n)).astype(float)
    assert centred_ranks(values).tolist() == (rankdata(values, axis=-1) - (n + 1) / 2).tolist()


@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 2**32 - 1))
def test_layers_of_one_size_that_stand_in_order_are_ranked_like_any_groups(layers, size, seed):
    rng = np.random.default_rng(seed)
    values, groups = rng.integers(0, 4, (3, layers * size)).astype(float), np.repeat(np.arange(layers), size)
    order = rng.permutation(layers * size)
    found = centred_ranks_within(values, groups)
    assert centred_ranks_within(values[:, order], groups[order]).tolist() == found[:, order].tolist()


@given(pairs)
def test_permuted_correlations_are_those_of_permuted_values(pair):
    first, second = centred_ranks(pair[:, 0])
    orders = np.random.default_rng(0).permuted(np.tile(np.arange(len(first)), (5, 1)), axis=1)
    expected = correlate(first, second[orders])
    assert correlate_permuted(first, second, orders) == pytest.approx(expected, abs=1e-12, nan_ok=True)


@given(
    arrays(float, st.tuples(st.integers(1, 3), st.just(7)), elements=few),
    st.lists(st.integers(0, 3), min_size=7, max_size=7),
)
def test_ranks_within_groups_equal_a_loop(values, groups):
    groups = np.array(groups)
    found = centred_ranks_within(values, groups)
    for row, of_row in zip(values, found, strict=True):
        for group in set(groups.tolist()):
            expected = rankdata(row[groups == group])
            assert of_row[groups == group].tolist() == (expected - expected.mean()).tolist()


@given(pairs)
def test_rho_is_scipys_and_undefined_where_a_side_is_constant(pair):
    rho, delta = rho_and_gaps(*pair)
    defined = [bool(np.ptp(a) and np.ptp(b)) for a, b in zip(*pair, strict=True)]
    assert np.isfinite(rho).tolist() == defined
    assert len(delta) == sum(defined)
    rows = iter(delta)
    for a, b, found in zip(*pair, rho, strict=True):
        if np.isfinite(found):
            assert found == pytest.approx(spearmanr(a, b).statistic, abs=1e-12)
            assert next(rows).tolist() == (rankdata(a) - rankdata(b)).tolist()


@given(pairs)
def test_a_monotone_map_of_either_side_changes_no_rho(pair):
    rho, _ = rho_and_gaps(*pair)
    mapped, _ = rho_and_gaps(np.sign(pair[0]) * np.sqrt(np.abs(pair[0])), 7 * pair[1] - 2)
    # A map may join what differs by next to nothing: these here keep the values apart.
    assert mapped == pytest.approx(rho, nan_ok=True)


def test_correlations_never_leave_their_range():
    values = centred_ranks(np.random.default_rng(1).normal(size=(200, 13)))
    assert (correlate(values, values) <= 1).all()
    assert (correlate(values, -values) >= -1).all()
