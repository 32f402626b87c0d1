import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import spearmanr

from dynamics.analysis import rank_gap
from dynamics.errors import AnalysisError

# Few distinct values, so that ties are common.
PAIRS = st.integers(3, 25).flatmap(lambda n: st.tuples(*[arrays(float, n, elements=st.integers(-8, 8).map(float))] * 2))


def ranks(values):
    """Rank from 1 by counting: those below, and half of the others that are equal."""
    return np.array([sum(v < x for v in values) + (sum(v == x for v in values) + 1) / 2 for x in values])


def varied(pair):
    assume(all(len(set(side)) > 1 for side in pair))
    return pair


def test_closed_form():
    gap = rank_gap([0.1, 0.4, 0.2, 0.3], [5.0, -1.0, 0.0, 0.0])
    assert gap.rank_gradient.tolist() == [1, 4, 2, 3]
    assert gap.rank_causal.tolist() == [4, 1, 2.5, 2.5]
    assert gap.delta.tolist() == [-3, 3, -0.5, 0.5]
    # Pearson of the ranks: -4.5 / sqrt(5 * 4.5)
    assert gap.rho == pytest.approx(-4.5 / np.sqrt(22.5), abs=1e-15)
    assert gap.reason is None


@given(PAIRS)
def test_ranks_count_and_delta_sums_to_zero(pair):
    gap = rank_gap(*pair)
    np.testing.assert_array_equal(gap.rank_gradient, ranks(pair[0]))
    np.testing.assert_array_equal(gap.rank_causal, ranks(pair[1]))
    np.testing.assert_array_equal(gap.delta, gap.rank_gradient - gap.rank_causal)
    assert gap.delta.sum() == 0


@given(PAIRS)
def test_rho_is_pearson_of_ranks_and_scipys_spearman(pair):
    gradient, causal = varied(pair)
    gap = rank_gap(gradient, causal)
    centred = [ranks(side) - ranks(side).mean() for side in (gradient, causal)]
    by_hand = (centred[0] @ centred[1]) / np.sqrt((centred[0] @ centred[0]) * (centred[1] @ centred[1]))
    assert gap.rho == pytest.approx(by_hand, abs=1e-12)
    scipys = spearmanr(gradient, causal)
    assert (gap.rho, gap.p_value) == (scipys.statistic, scipys.pvalue)


@given(PAIRS)
def test_invariant_under_monotone_maps(pair):
    gradient, causal = varied(pair)
    gap, mapped = rank_gap(gradient, causal), rank_gap(np.exp(gradient), causal**3 + 2 * causal - 7)
    assert mapped.rho == gap.rho
    np.testing.assert_array_equal(mapped.delta, gap.delta)


@given(PAIRS)
def test_swapping_and_reversing_the_sides_changes_signs(pair):
    gradient, causal = varied(pair)
    gap, swapped, reversed_ = rank_gap(gradient, causal), rank_gap(causal, gradient), rank_gap(gradient, -causal)
    np.testing.assert_array_equal(swapped.delta, -gap.delta)
    assert swapped.rho == pytest.approx(gap.rho, abs=1e-12)
    assert reversed_.rho == pytest.approx(-gap.rho, abs=1e-12)


def test_constant_side_leaves_delta_but_no_rho():
    gap = rank_gap([0.3, 0.1, 0.2], [0.0, 0.0, 0.0])
    assert np.isnan([gap.rho, gap.p_value]).all()
    assert gap.delta.tolist() == [1, -1, 0]
    assert gap.reason == "causal importance is the same for all components (0)"


def test_both_sides_constant():
    gap = rank_gap([0.25, 0.25], [1, 1])
    assert gap.delta.tolist() == [0, 0]
    assert gap.reason == (
        "gradient magnitude is the same for all components (0.25); causal importance is the same for all components (1)"
    )


def test_not_finite_side_leaves_nothing():
    gap = rank_gap([np.nan, 1.0, np.inf], [1.0, 2.0, 3.0])
    assert np.isnan([gap.rho, gap.p_value, *gap.delta, *gap.rank_gradient, *gap.rank_causal]).all()
    assert gap.reason == "2 of 3 values of gradient magnitude are not finite"
    both = rank_gap([np.nan, 1.0], [-np.inf, 1.0])
    assert both.reason == (
        "1 of 2 values of gradient magnitude are not finite; 1 of 2 values of causal importance are not finite"
    )


def test_two_components_have_a_rho_but_no_p_value():
    gap = rank_gap([1.0, 2.0], [4.0, 3.0])
    assert gap.rho == pytest.approx(-1.0)
    assert np.isnan(gap.p_value)
    assert gap.reason is None


@pytest.mark.parametrize(
    ("gradient", "causal", "message"),
    [
        (
            [1.0, 2.0],
            [1.0, 2.0, 3.0],
            "gradient and causal must both be (component,), of the same length; got (2,) and (3,).",
        ),
        (
            [[1.0, 2.0]],
            [[1.0, 2.0]],
            "gradient and causal must both be (component,), of the same length; got (1, 2) and (1, 2).",
        ),
        ([1.0], [1.0], "ranks can be compared from 2 components on; got 1."),
        ([], [], "ranks can be compared from 2 components on; got 0."),
    ],
)
def test_wrong_shapes(gradient, causal, message):
    with pytest.raises(AnalysisError) as error:
        rank_gap(gradient, causal)
    assert str(error.value) == message
