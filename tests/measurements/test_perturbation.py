"""Comprehensiveness and sufficiency against the slow way, and on a model whose areas are known."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dynamics import attribute_tokens, perturbation_curves
from dynamics.errors import MeasurementError
from tests.measurements.test_token_attribution import Additive, mean_log_p
from tests.oracles import tokens as oracle
from tests.strategies import batches, decoder


def additive(ids=((0, 1, 3, 2),), **options):
    model = Additive()
    return model, attribute_tokens(model, torch.tensor(ids), 0, other=1, method="gradient", **options)


def message(*args, **options):
    with pytest.raises(MeasurementError) as caught:
        perturbation_curves(*args, **options)
    return str(caught.value)


@given(st.integers(0, 2**16), st.booleans())
@settings(max_examples=6)
def test_the_curves_are_those_of_removing_tokens_one_set_at_a_time(seed, protect):
    model = decoder(seed)
    [batch] = batches(model, seed, [(3, 4)])
    found = attribute_tokens(model, batch, method="gradient", baseline="mean")
    protected = (0, -1) if protect else ()
    curves = perturbation_curves(model, found, protected=protected, batch_size=5)
    for example, (ids, labels) in enumerate(zip(batch["input_ids"], batch["labels"], strict=True)):
        x = model.embed.weight[ids].detach()
        start = model.embed.weight.detach().mean(0).expand_as(x)
        free = [t not in (0, 3) or not protect for t in range(4)]
        without, alone = oracle.curves(
            lambda z, labels=labels: mean_log_p(model, labels)(z).detach(), x, start, found.scores[example], free
        )
        np.testing.assert_allclose(curves.comprehensiveness[example], without, atol=1e-10)
        np.testing.assert_allclose(curves.sufficiency[example], alone, atol=1e-10)
        assert curves.removable[example] == sum(free)
    np.testing.assert_allclose(curves.value, found.value, rtol=1e-12)


@given(st.integers(0, 2**16))
@settings(max_examples=10)
def test_nothing_removed_costs_nothing_and_the_ends_meet(seed):
    model = decoder(seed)
    [batch] = batches(model, seed, [(2, 4)])
    curves = perturbation_curves(model, attribute_tokens(model, batch), random_orders=2)
    for comprehensiveness, sufficiency in (
        (curves.comprehensiveness, curves.sufficiency),
        (curves.random_comprehensiveness, curves.random_sufficiency),
    ):
        np.testing.assert_allclose(comprehensiveness[..., 0], 0, atol=1e-12)
        np.testing.assert_allclose(sufficiency[..., -1], 0, atol=1e-12)
        np.testing.assert_allclose(comprehensiveness[..., -1], sufficiency[..., 0], atol=1e-12)


def test_on_an_additive_model_the_areas_are_sums():
    model, found = additive()
    curves = perturbation_curves(model, found)
    # The effects are 3, -1, 2, 0.5: in order 3, 2, 0.5, -1, together 4.5.
    np.testing.assert_allclose(curves.comprehensiveness, [[0, 3, 5, 5.5, 4.5]], atol=1e-12)
    np.testing.assert_allclose(curves.sufficiency, [[4.5, 1.5, -0.5, -1, 0]], atol=1e-12)
    np.testing.assert_allclose(curves.comprehensiveness_aopc, [18 / 5])
    np.testing.assert_allclose(curves.sufficiency_aopc, [4.5 / 5])
    assert curves.k.tolist() == [[0, 1, 2, 3, 4]]
    assert repr(curves) == "PerturbationCurves(1 examples, 5 points, 5 random orders)"


def test_no_order_beats_the_planted_one():
    model, found = additive()
    best = perturbation_curves(model, found, random_orders=0)
    areas = []
    for order in itertools.permutations(range(4)):
        other = perturbation_curves(model, replace(found, scores=np.array([order], float)), random_orders=0)
        areas.append((other.comprehensiveness_aopc[0], other.sufficiency_aopc[0]))
    comprehensiveness, sufficiency = zip(*areas, strict=True)
    assert best.comprehensiveness_aopc[0] == pytest.approx(max(comprehensiveness))
    assert best.sufficiency_aopc[0] == pytest.approx(min(sufficiency))
    assert sum(c == pytest.approx(max(comprehensiveness)) for c in comprehensiveness) == 1


def test_random_orders_are_drawn_by_their_seed_and_average_out():
    model, found = additive()
    torch.manual_seed(0)
    state = torch.get_rng_state()
    one, same, other = (perturbation_curves(model, found, random_orders=400, seed=s) for s in (1, 1, 2))
    assert torch.equal(state, torch.get_rng_state())
    np.testing.assert_array_equal(one.random_comprehensiveness, same.random_comprehensiveness)
    assert not np.array_equal(one.random_comprehensiveness, other.random_comprehensiveness)
    assert one.random_comprehensiveness.shape == (400, 1, 5)
    # In a random order every token comes at every place equally often: the mean curve is a line.
    np.testing.assert_allclose(one.random_comprehensiveness.mean((0, 1)), np.arange(5) * 4.5 / 4, atol=0.35)
    np.testing.assert_allclose(one.random_comprehensiveness_aopc.mean(), 4.5 / 2, atol=0.25)
    np.testing.assert_allclose(one.random_sufficiency_aopc.mean(), 4.5 / 2, atol=0.25)


def test_padding_is_neither_removed_nor_counted():
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    model, found = additive(((0, 1, 3, 2), (2, 3, 0, 0)), attention_mask=mask)
    # Were padding ranked, these scores would put it first.
    curves = perturbation_curves(model, replace(found, scores=found.scores + 100 * (1 - mask.numpy())))
    assert curves.removable.tolist() == [4, 2]
    assert curves.k.tolist() == [[0, 1, 2, 3, 4], [0, 1, 2, -1, -1]]
    np.testing.assert_allclose(curves.comprehensiveness[1], [0, 2, 2.5, np.nan, np.nan], atol=1e-12)
    np.testing.assert_allclose(curves.comprehensiveness_aopc, [18 / 5, 1.5])
    last = perturbation_curves(model, found, protected=(-1,))
    np.testing.assert_allclose(last.comprehensiveness[1], [0, 0.5, np.nan, np.nan], atol=1e-12)


def test_tied_scores_keep_the_order_of_positions():
    model, found = additive()
    curves = perturbation_curves(model, replace(found, scores=np.zeros((1, 4))))
    np.testing.assert_allclose(curves.comprehensiveness, [[0, 3, 2, 4, 4.5]], atol=1e-12)


def test_protected_tokens_by_mask_and_another_baseline():
    model, found = additive()
    curves = perturbation_curves(model, found, protected=found.input_ids == 0, baseline=1)
    # 2, 0.5 and -1 become -1.
    np.testing.assert_allclose(curves.comprehensiveness, [[0, 3, 4.5, 4.5]], atol=1e-12)


def test_fractions_are_rounded_up():
    model, found = additive()
    curves = perturbation_curves(model, found, fractions=(0.5, 0.01, 0.75))
    assert curves.k.tolist() == [[0, 1, 2, 3]]
    np.testing.assert_allclose(curves.comprehensiveness, [[0, 3, 5, 5.5]], atol=1e-12)


def test_errors_say_what_came_and_what_to_do():
    model, found = additive()
    assert message(model, replace(found, scores=np.zeros((1, 3)))) == (
        "scores must have the shape of input_ids, (1, 4); got (1, 3)."
    )
    assert message(model, replace(found, scores=np.full((1, 4), np.nan))) == (
        "the scores hold NaN or infinity, so they rank nothing."
    )
    assert message(model, found, protected=(0, 1, 2, 3)) == (
        "every token of example 0 is protected, so there is none to remove."
    )
    assert message(model, found, protected=(4,)) == "example 0 has 4 tokens, so it has no position 4 to protect."
    assert message(model, found, protected=np.zeros((1, 3), bool)) == (
        "protected as a bool array must have the shape of input_ids, (1, 4); got (1, 3)."
    )
    assert message(model, found, fractions=()) == "fractions must be numbers above 0, at most 1; got []."
    assert message(model, found, fractions=(1.5,)) == "fractions must be numbers above 0, at most 1; got [1.5]."
