import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dynamics import find_components
from dynamics.errors import MeasurementError
from dynamics.measurements.clean import clean_run
from dynamics.measurements.joint_ablation import count_passes, joint_ablation
from dynamics.measurements.scorer import Scorer
from tests.cases import AND_PAIR, DEAD_AND_CRITICAL, REDUNDANT
from tests.oracles.decoder import DecoderOracle
from tests.oracles.measurements import ablated_scores
from tests.strategies import decoder, probe, scenes


def ablate(model, probe, sets, ticks=None):
    score = Scorer(model, model, probe, lambda: ticks.append(1) if ticks is not None else None)
    components = find_components(model)
    clean = clean_run(score, components)
    if ticks is not None:
        ticks.clear()
    return [scores.numpy() for scores in joint_ablation(score, components, clean, sets)]


@given(scenes(), st.data())
def test_it_equals_replacing_the_set_by_hand(scene, data):
    model, probe = scene
    oracle = DecoderOracle(model)
    sets = data.draw(st.lists(st.sets(st.sampled_from(range(len(oracle.labels)))), min_size=1, max_size=3))
    loss, match = ablate(model, probe, sets)
    for row, members in enumerate(sets):
        by_hand = ablated_scores(oracle, probe.batches, "mean", [oracle.labels[index] for index in members])
        np.testing.assert_allclose(loss[row], by_hand[0], rtol=1e-9, atol=1e-12)
        assert match[row].tolist() == by_hand[1]


@pytest.mark.parametrize("case", [DEAD_AND_CRITICAL, REDUNDANT, AND_PAIR], ids=["critical", "redundant", "and"])
def test_planted_heads_score_what_the_closed_form_says(case):
    sets = [(), (0,), (1,), (0, 1), (1, 0, 3), (0, 1, 2, 3, 4)]
    loss, match = ablate(case.model(), case.probe(), sets)
    for row, members in enumerate(sets):
        gone = [head for head in members if head < 4]
        np.testing.assert_allclose(loss[row], case.loss(gone), rtol=1e-12)
        assert (match[row] == case.exact_match(gone)).all()


def test_the_empty_set_is_the_unablated_model_to_the_bit_and_is_not_run():
    model, ticks = decoder(), []
    fixed = probe(model)
    loss, match = ablate(model, fixed, [[], [2]], ticks)
    with torch.no_grad():
        scores = [fixed.objective(model, batch) for batch in fixed.batches]
    assert (loss[0] == torch.cat([loss for loss, _ in scores]).numpy()).all()
    assert (match[0] == torch.cat([match for _, match in scores]).numpy()).all()
    assert (loss[1] != loss[0]).any()
    assert len(ticks) == len(fixed)


def test_a_set_that_comes_twice_is_run_once():
    model, ticks = decoder(), []
    fixed = probe(model)
    sets = [(0, 1), (), (1, 0), (1, 0, 0), (1,)]
    loss, _ = ablate(model, fixed, sets, ticks)
    assert count_passes(sets) == 2
    assert len(ticks) == 2 * len(fixed)
    assert (loss[0] == loss[2]).all()
    assert (loss[0] == loss[3]).all()
    assert (loss[0] != loss[4]).any()
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_set_holds_components():
    model = decoder()
    with pytest.raises(MeasurementError) as caught:
        ablate(model, probe(model), [(0,), (1, 6, -1)])
    assert str(caught.value) == "a set must hold indices from 0 to 5, one of a component each; got [-1, 6]."
