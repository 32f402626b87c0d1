import numpy as np
import pytest
from scipy.stats import rankdata, spearmanr

from dynamics.analysis.rank_measures import RANK_MEASURES, indicator_basis, rank_measures
from dynamics.analysis.ranks import correlate
from tests.analysis.runs import Components, components

LISTED = components(3, 4)
UNEVEN = Components((*components(2, 3), *components(3, 1)[4:]))


def correlations(gradient, causal, listed):
    return {m.name: float(correlate(m.residuals(gradient), m.residuals(causal))) for m in rank_measures(listed)}


@pytest.mark.parametrize("listed", [LISTED, UNEVEN])
@pytest.mark.parametrize("tied", [False, True])
def test_every_measure_equals_its_definition(listed, tied):
    rng = np.random.default_rng(len(listed))
    gradient, causal = rng.normal(size=(2, len(listed)))
    if tied:
        gradient, causal = np.round(gradient), np.round(causal)
    layer = np.array([c.layer for c in listed])
    heads = np.array([c.kind == "head" for c in listed])
    found = correlations(gradient, causal, listed)
    assert tuple(found) == RANK_MEASURES
    assert found["all"] == pytest.approx(spearmanr(gradient, causal).statistic)
    assert found["heads"] == pytest.approx(spearmanr(gradient[heads], causal[heads]).statistic)

    def pooled(chosen):
        sides = []
        for values in (gradient, causal):
            parts = [rankdata(values[chosen & (layer == one)]) for one in np.unique(layer)]
            sides.append(np.concatenate([part - part.mean() for part in parts]))
        return np.corrcoef(*sides)[0, 1]

    assert found["within layers"] == pytest.approx(pooled(np.ones(len(listed), dtype=bool)))
    assert found["within layers, heads"] == pytest.approx(pooled(heads))

    # Partial correlation by ordinary least squares on written-out indicators.
    design = np.column_stack([np.ones(len(listed)), *[layer == one for one in np.unique(layer)[1:]], heads]).astype(
        float
    )
    rest = []
    for values in (gradient, causal):
        ranked = rankdata(values)
        rest.append(ranked - design @ np.linalg.lstsq(design, ranked, rcond=None)[0])
    assert found["partial"] == pytest.approx(np.corrcoef(*rest)[0, 1])


def test_depth_alone_makes_a_rho_that_the_others_do_not_see():
    """Both fall with depth and are noise within a layer: rho over all is high, within layers it is not."""
    rng = np.random.default_rng(0)
    listed = components(8, 9)
    depth = np.array([c.layer for c in listed], dtype=float)
    gradient, causal = -depth + rng.normal(size=(2, 80))
    found = correlations(gradient, causal, listed)
    assert found["all"] > 0.7
    assert all(abs(found[name]) < 0.25 for name in ("within layers", "within layers, heads", "partial"))


def test_kind_alone_is_gone_among_heads_and_in_the_partial_rho():
    rng = np.random.default_rng(0)
    listed = components(20, 1)
    mlp = np.array([c.kind == "mlp" for c in listed], dtype=float)
    gradient, causal = 50 * mlp + rng.normal(size=(2, 40))
    found = correlations(gradient, causal, listed)
    assert found["within layers"] == pytest.approx(1)
    assert found["all"] > 0.6
    assert abs(found["heads"]) < 0.4
    assert abs(found["partial"]) < 0.35


def test_monotone_maps_and_relabelling_change_nothing():
    rng = np.random.default_rng(0)
    gradient, causal = rng.normal(size=(2, 15))
    found = correlations(gradient, causal, LISTED)
    assert correlations(np.exp(gradient), causal**3, LISTED) == pytest.approx(found)
    order = rng.permutation(15)
    turned = Components(LISTED[index] for index in order)
    assert correlations(gradient[order], causal[order], turned) == pytest.approx(found)


def test_the_null_exchanges_what_a_measure_leaves_free():
    swaps = {m.name: m.exchangeable.tolist() for m in rank_measures(components(2, 2))}
    assert swaps["all"] == [0] * 6
    assert swaps["heads"] == [0] * 4
    assert swaps["within layers"] == [0, 0, 0, 1, 1, 1]
    assert swaps["within layers, heads"] == [0, 0, 1, 1]
    assert swaps["partial"] == [0, 0, 1, 2, 2, 3]


def test_a_basis_spans_its_indicators_and_no_more():
    basis = indicator_basis([np.array([0, 0, 1, 1, 2, 2]), np.array(["a", "b"] * 3)])
    # Three layers and two kinds, of which one is redundant.
    assert basis.shape == (6, 4)
    assert basis.T @ basis == pytest.approx(np.eye(4))
    assert basis @ (basis.T @ np.ones(6)) == pytest.approx(np.ones(6))
