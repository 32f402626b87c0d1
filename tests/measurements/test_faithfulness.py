import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dynamics import find_components
from dynamics.errors import MeasurementError
from dynamics.measurements.clean import clean_run
from dynamics.measurements.faithfulness import count_passes, kept_scores
from dynamics.measurements.scorer import Scorer
from tests.cases import AND_PAIR, DEAD_AND_CRITICAL, REDUNDANT
from tests.oracles.decoder import DecoderOracle
from tests.oracles.measurements import kept_scores as explicit_scores
from tests.strategies import decoder, probe, scenes

CASES = pytest.mark.parametrize(
    "case", [DEAD_AND_CRITICAL, REDUNDANT, AND_PAIR], ids=["dead and critical", "redundant", "and"]
)


def keep(model, probe, orders, ticks=None):
    score = Scorer(model, model, probe, lambda: ticks.append(1) if ticks is not None else None)
    components = find_components(model)
    clean = clean_run(score, components)
    if ticks is not None:
        ticks.clear()
    return [scores.numpy() for scores in kept_scores(score, components, clean, orders)]


@given(scenes(), st.data())
def test_it_equals_replacing_all_others_by_hand(scene, data):
    model, probe = scene
    oracle = DecoderOracle(model)
    n = len(oracle.labels)
    orders = [data.draw(st.permutations(range(n))) for _ in range(2)]
    loss, match = keep(model, probe, orders)
    assert loss.shape == match.shape == (2, n + 1, sum(len(batch["labels"]) for batch in probe.batches))
    for row, order in enumerate(orders):
        by_hand = explicit_scores(oracle, probe.batches, [oracle.labels[index] for index in order])
        for k, (expected_loss, expected_match) in enumerate(by_hand):
            np.testing.assert_allclose(loss[row, k], expected_loss, rtol=1e-9, atol=1e-12)
            assert match[row, k].tolist() == expected_match


@CASES
@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [2, 0, 4, 1, 3]])
def test_planted_heads_score_what_the_closed_form_says(case, order):
    [loss], [match] = keep(case.model(), case.probe(), [order])
    for k in range(6):
        gone = [head for head in order[k:] if head < 4]
        np.testing.assert_allclose(loss[k], case.loss(gone), rtol=1e-12)
        assert (match[k] == case.exact_match(gone)).all()


def test_with_all_kept_it_is_the_unablated_model_to_the_bit():
    model = decoder()
    fixed = probe(model)
    loss, match = keep(model, fixed, [[3, 1, 0, 5, 4, 2]])
    with torch.no_grad():
        scores = [fixed.objective(model, batch) for batch in fixed.batches]
    assert (loss[0, -1] == torch.cat([loss for loss, _ in scores]).numpy()).all()
    assert (match[0, -1] == torch.cat([match for _, match in scores]).numpy()).all()


def test_a_set_that_several_orders_keep_is_run_once():
    model, ticks = decoder(), []
    fixed = probe(model)
    # Of the second only {1} is new, of the third nothing, of the fourth {5}, {4, 5} and so on.
    orders = [[0, 1, 2, 3, 4, 5], [1, 0, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0]]
    loss, _ = keep(model, fixed, orders, ticks)
    assert count_passes(orders) == 6 + 1 + 0 + 5
    assert len(ticks) == 12 * len(fixed)
    assert (loss[0] == loss[2]).all()
    assert (loss[0, 2:] == loss[1, 2:]).all()
    assert (loss[:, 0] == loss[0, 0]).all()
    assert (loss[0, 1] != loss[1, 1]).any()


def test_the_model_keeps_no_hooks():
    model = decoder()
    keep(model, probe(model), [[0, 1, 2, 3, 4, 5]])
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("order", [[0, 1], [0, 1, 2, 3, 4, 4], [0, 1, 2, 3, 4, 6]])
def test_an_order_names_each_component_once(order):
    model = decoder()
    with pytest.raises(MeasurementError) as caught:
        keep(model, probe(model), [order])
    assert str(caught.value) == f"an order must name each of the 6 components once; got {order}."
