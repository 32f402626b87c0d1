import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamics.analysis import chance_share, classify_roles, default_threshold, rank_gap
from dynamics.errors import AnalysisError


def test_thresholds_belong_to_the_roles():
    delta = [-6.0, -5.5, 0.0, 5.5, 6.0, np.nan]
    assert classify_roles(delta, threshold=6).tolist() == [
        "hero", "aligned", "aligned", "aligned", "bloat", "undefined",
    ]  # fmt: skip


def test_default_threshold_follows_the_last_axis():
    delta = np.array([[-6.0] + [0.0] * 18 + [6.0]] * 3)
    assert (classify_roles(delta) == classify_roles(delta, 6)).all()
    assert (classify_roles(delta)[:, 0] == "hero").all()


@pytest.mark.parametrize(("n", "threshold"), [(20, 6), (10, 3), (160, 48), (6, 2), (2, 1), (1, 1)])
def test_default_threshold(n, threshold):
    assert default_threshold(n) == threshold


def test_chance_of_the_paper():
    assert chance_share(20, 6) == 0.2625


@pytest.mark.parametrize("n", range(1, 13))
def test_chance_counts_pairs_of_ranks(n):
    for threshold in range(1, n + 3):
        pairs = list(itertools.product(range(1, n + 1), repeat=2))
        share = sum(g - c >= threshold for g, c in pairs) / len(pairs)
        assert chance_share(n, threshold) == pytest.approx(share, abs=1e-15)


@pytest.mark.parametrize("n", range(2, 7))
def test_chance_is_the_mean_over_all_rankings(n):
    """Not only pairs of ranks: whole permutations, through the functions that find heroes and bloats."""
    for threshold in range(1, n):
        roles = [
            classify_roles(rank_gap(range(n), ranking).delta, threshold) for ranking in itertools.permutations(range(n))
        ]
        for role in ("hero", "bloat"):
            assert (np.array(roles) == role).mean() == pytest.approx(chance_share(n, threshold), abs=1e-12)


@given(st.integers(1, 40), st.floats(0.01, 45))
def test_gaps_without_ties_are_whole(n, threshold):
    assert chance_share(n, threshold) == chance_share(n, np.ceil(threshold))


@pytest.mark.parametrize("threshold", [0, -2, float("nan"), float("inf")])
def test_threshold_must_be_positive(threshold):
    message = f"the threshold of a role must be a positive number of ranks; got {threshold}."
    with pytest.raises(AnalysisError) as error:
        classify_roles([1.0, -1.0], threshold)
    assert str(error.value) == message
    with pytest.raises(AnalysisError) as error:
        chance_share(20, threshold)
    assert str(error.value) == message


def test_chance_needs_components():
    with pytest.raises(AnalysisError) as error:
        chance_share(0, 6)
    assert str(error.value) == "the number of components must be at least 1; got 0."
