"""Attention self-repair, against the oracle and closed forms."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dynamics import find_components, take_snapshot
from dynamics.components import Component, ComponentMap, Site, WeightSlice
from dynamics.errors import MeasurementError
from dynamics.measurements import gim_attention
from dynamics.measurements.self_repair import removal_effects
from dynamics.model import SequenceModule
from dynamics.probe import Probe
from tests.cases import DEAD_AND_CRITICAL, Majority, Planted, channels_map
from tests.oracles import self_repair as oracle
from tests.oracles.decoder import DecoderOracle
from tests.strategies import decoder, probe, scenes

NAMES = ("self_repair_rows", "self_repair_interaction")


def measure(model, fixed, components=None, threshold=0.01):
    snapshot = take_snapshot(model, fixed, components, "self_repair", self_repair_threshold=threshold)
    return tuple(snapshot[name] for name in NAMES)


def assert_same(found, expected, rtol=1e-10, atol=1e-12):
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_allclose(found[1], expected[1], rtol=rtol, atol=atol)


# --- against the oracle ----------------------------------------------------------------------------------------------


@given(scenes(), st.sampled_from([0.0, 0.001, 0.01, 0.05]))
@settings(max_examples=15, deadline=None)
def test_it_equals_removing_scores_one_row_at_a_time(scene, threshold):
    model, fixed = scene
    assert_same(
        measure(model, fixed, threshold=threshold),
        oracle.self_repair(DecoderOracle(model), fixed.batches, threshold),
    )


def test_two_layers_of_several_heads_with_many_rows_that_count():
    model = decoder(seed=2, n_heads=3, d_model=12)
    fixed = probe(model, sizes=((3, 7), (2, 8)))
    expected = oracle.self_repair(DecoderOracle(model), fixed.batches, 0.01)
    # The comparison would be empty without rows that count, and rows that do not; and without both signs.
    assert np.nansum(expected[0]) > 40
    assert np.nanmax(expected[0]) < 8
    assert np.nanmin(expected[1]) < -0.01 < 0.01 < np.nanmax(expected[1])
    assert_same(measure(model, fixed), expected)
    assert np.isnan(measure(model, fixed)[0][[3, 7]]).all()


def test_the_slopes_are_those_of_the_model():
    """The oracle's gradient, by autograd, is what central differences of the whole model say."""
    model = decoder(seed=1, scale=0.9)
    fixed = probe(model, sizes=((1, 4),))
    explicit = DecoderOracle(model)
    ids, labels = fixed.batches[0]["input_ids"][0], fixed.batches[0]["labels"][0]
    explicit.run(ids)
    for label in ("L0H1", "L1H0"):
        rows, gradients = list(explicit.rows[label]), []
        for t in range(4):
            gradients.append(
                torch.tensor(
                    [
                        oracle.slope_by_differences(explicit, ids, labels, label, t, direction)
                        for direction in torch.eye(4, dtype=torch.float64)
                    ],
                    dtype=torch.float64,
                )
            )
        count, mean = oracle.of_rows(rows, gradients, 0.001)
        found = measure(model, fixed, threshold=0.001)
        index = explicit.labels.index(label)
        assert count > 0
        assert found[0][index, 0] == count
        np.testing.assert_allclose(found[1][index, 0], mean, rtol=1e-6)


# --- closed forms ----------------------------------------------------------------------------------------------------


@given(st.floats(-3, 30), st.floats(-4, 4), st.integers(1, 9))
def test_the_toy_gives_its_closed_forms(a, c, m):
    scores = torch.tensor([0.0, a, a] + [0.0] * (m - 1), dtype=torch.float64)
    values = torch.tensor([0.0, c, c] + [0.0] * (m - 1), dtype=torch.float64)
    # With a below 0, others are the largest, and their removal is another question.
    one, two, both = removal_effects(scores.softmax(-1), values)
    e = math.exp(a)
    if a > 1e-3:
        expected = c * m * e / ((2 * e + m) * (e + m)), 2 * c * e / (2 * e + m)
        np.testing.assert_allclose([one, two, both], [expected[0], expected[0], expected[1]], rtol=1e-9, atol=1e-300)
    general = [oracle.output(scores, values[:, None])]
    # Scores that differ by less than the weights can show count as equal.
    order = sorted(range(len(scores)), key=lambda j: (-scores.softmax(-1)[j], j))[:2]
    general += [oracle.output(scores, values[:, None], removed) for removed in (order[:1], order[1:], order)]
    np.testing.assert_allclose([one, two, both], [(general[0] - g).item() for g in general[1:]], atol=1e-12)


@pytest.mark.parametrize(("a", "one", "both"), [(4.0, 0.0595, 0.932), (8.0, 1.34e-3, 0.9987)])
def test_the_toy_in_numbers(a, one, both):
    scores = torch.tensor([a, a] + [0.0] * 8, dtype=torch.float64)
    first, second, together = removal_effects(scores.softmax(-1), torch.tensor([1.0, 1.0] + [0.0] * 8).double())
    assert (round(first.item(), 4 if a == 4 else 5), round(together.item(), 3 if a == 4 else 4)) == (one, both)
    assert first == second


def test_two_positions_that_hold_all_but_a_rounding_error_are_removed_exactly():
    """1 - p1 - p2 has no correct digit here; the others' weights have all of theirs."""
    scores = torch.tensor([80.0, 80.0, 0.0, 1.0], dtype=torch.float64)
    slopes = torch.tensor([1.0, 2.0, 3.0, 5.0], dtype=torch.float64)
    _, _, both = removal_effects(scores.softmax(-1), slopes)
    assert both.item() == pytest.approx(1.5 - (3 + 5 * math.e) / (1 + math.e), rel=1e-14)


@pytest.mark.parametrize("others", [[], [-2000.0], [-torch.inf] * 3])
def test_with_nothing_left_the_row_is_zero(others):
    scores = torch.tensor([1.0, 0.0, *others], dtype=torch.float64)
    slopes = torch.tensor([2.0, 3.0] + [7.0] * len(others), dtype=torch.float64)
    p = math.e / (math.e + 1)
    one, two, both = removal_effects(scores.softmax(-1), slopes)
    assert [x.item() for x in (one, two, both)] == pytest.approx([p * (2 - 3), (1 - p) * (3 - 2), 2 * p + 3 * (1 - p)])


class Toy(nn.Module):
    """One head whose scores and values are its input; the last query alone is read: ``y = sum p v``."""

    def __init__(self, how="fused"):
        super().__init__()
        self.how, self.weight, self.out = how, nn.Parameter(torch.eye(3, dtype=torch.float64)), nn.Identity()

    def attend(self, q, k, v):
        if self.how == "fused":
            return F.scaled_dot_product_attention(q, k, v, scale=1.0)
        pattern = (q @ k.mT).softmax(-1)
        if self.how == "sink":
            pattern = torch.cat([q @ k.mT, torch.zeros_like(q)], -1).softmax(-1)[..., :-1]
        if self.how == "dropping":
            pattern = F.dropout(pattern, 0.5, training=True)
        z = pattern @ v
        if self.how == "in place":
            z *= 2.0
        return z * 2.0 if self.how == "gated" else z

    def forward(self, x):
        q, k, v = (x @ self.weight)[..., None, :].transpose(1, 2).split(1, -1)
        if self.how == "random":
            z = F.scaled_dot_product_attention(q, k, v, scale=1.0, dropout_p=0.5)
        else:
            z = self.attend(q, k, v)
        return self.out(z[:, 0])[:, -1, 0]


def toy_map(start=0, stop=1):
    block = WeightSlice("weight")
    return ComponentMap([Component(0, "head", 0, Site("out", "input", start, stop), (block,), (block,))])


def toy_probe(a=4.0, c=1.0, m=8):
    scores = torch.tensor([a, a] + [0.0] * m, dtype=torch.float64)
    values = torch.tensor([c, c] + [0.0] * m, dtype=torch.float64)
    x = torch.stack([torch.ones_like(scores), scores, values], -1)[None]
    return Probe([x, torch.cat([x, x])], lambda model, x: (-model(x), model.weight[0, 0].expand(len(x)) > 0))


@given(st.floats(0.5, 12), st.floats(0.2, 4), st.integers(1, 9), st.sampled_from(["fused", "eager"]))
@settings(deadline=None)
def test_a_planted_head_gives_the_closed_form(a, c, m, how):
    rows, interaction = measure(Toy(how), toy_probe(a, c, m), toy_map())
    e = math.exp(a)
    expected = 2 * c * e / (2 * e + m) - 2 * c * m * e / ((2 * e + m) * (e + m))
    np.testing.assert_array_equal(rows, [[1, 1, 1]])
    np.testing.assert_allclose(interaction, [[expected] * 3], rtol=1e-9)


def test_a_row_counts_when_two_positions_contribute_more_than_the_threshold():
    e = math.exp(4.0)
    share = e / (2 * e + 8)
    for c, threshold, rows in (
        (1.0, share * 0.99, 1),
        (1.0, share * 1.01, 0),
        (2.0, share * 1.99, 1),
        (-1.0, 0.0, 0),  # against the answer
    ):
        found = measure(Toy(), toy_probe(c=c), toy_map(), threshold)
        np.testing.assert_array_equal(found[0], [[rows] * 3])
        assert np.isnan(found[1]).all() == (rows == 0)


def test_heads_that_read_alike_positions_repair_and_the_dead_do_not():
    """In the planted majority vote attention is uniform, and only the last position's row is read."""
    rows, _ = measure(DEAD_AND_CRITICAL.model(), Majority.probe())
    # Head 0 carries the answer; two of three, and four of six, positions speak for it.
    np.testing.assert_array_equal(rows[:4], [[1] * 4, [0] * 4, [0] * 4, [0] * 4])
    one = Majority((Planted(gain=1.5),) + (Planted(out=0.0),) * 3, threshold=0.3)
    assert_same(
        measure(one.model(), Majority.probe()),
        oracle.self_repair(DecoderOracle(one.model()), Majority.probe().batches, 0.01),
    )


# --- what must not matter --------------------------------------------------------------------------------------------


def test_blocks_of_queries_give_what_all_at_once_give(monkeypatch):
    model = decoder(seed=1, scale=0.9)
    fixed = probe(model, sizes=((3, 7),))
    expected = measure(model, fixed)
    monkeypatch.setitem(gim_attention._SCORES_AT_ONCE, "cpu", 3 * 2 * 7 * 2)
    assert_same(measure(model, fixed), expected)


def test_frozen_weights_a_wrapper_and_part_of_the_components_change_nothing():
    model = decoder(seed=1, scale=0.9)
    fixed = probe(model)
    expected = measure(model, fixed)
    wrapped = SequenceModule(model).requires_grad_(False)
    assert_same(measure(wrapped, fixed), expected)
    some = ComponentMap([find_components(wrapped)[i] for i in (4, 2, 1)], root="model")
    assert_same(measure(wrapped, fixed, some), [array[[4, 2, 1]] for array in expected])


def test_a_map_without_heads_holds_nan():
    model = decoder()
    mlps = ComponentMap([c for c in find_components(model) if c.kind == "mlp"])
    for array in measure(model, probe(model), mlps):
        assert array.shape == (2, 5)
        assert np.isnan(array).all()


# --- what cannot be measured -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["gated", "in place"])
def test_a_gated_head_is_an_error(how):
    with pytest.raises(MeasurementError) as caught:
        measure(Toy(how), toy_probe(), toy_map())
    assert str(caught.value) == (
        "L0H0: the input of 'out' from 0 on was expected to be what the attention in the model itself made (softmax "
        "weights times values, 1 entries a head, one head after the other), and is not: is it gated, reordered, or "
        "another layer's? Name that output in the component map, or leave self_repair out of measurements=(...)."
    )


def test_weights_changed_after_the_softmax_are_an_error():
    with pytest.raises(MeasurementError) as caught:
        measure(Toy("sink"), toy_probe(), toy_map())
    e = math.exp(4.0)
    assert str(caught.value) == (
        "L0H0: the weights of the attention in the model itself were expected to sum to 1 in every row; got "
        f"{1 - 1 / (2 * e + 9):.4g}. Where something is done to them after the softmax (a sink, dropout, a mask, a "
        "difference), self-repair is not defined; leave self_repair out of measurements=(...)."
    )
    with pytest.raises(MeasurementError, match="expected to sum to 1 in every row"):
        measure(Toy("dropping"), toy_probe(), toy_map())


def test_fused_attention_that_drops_at_random_is_an_error():
    with pytest.raises(MeasurementError) as caught:
        measure(Toy("random"), toy_probe(), toy_map())
    assert str(caught.value) == (
        "L0H0: the attention in the model itself drops weights at random (dropout_p=0.5) in evaluation mode, so its "
        "self-repair cannot be measured; leave self_repair out of measurements=(...)."
    )


def test_heads_that_are_no_attention_are_an_error():
    class NoAttention(Toy):
        def attend(self, q, k, v):
            return (q @ k.mT).sigmoid() @ v

    for measurements in ("all", "self_repair"):
        with pytest.raises(MeasurementError) as caught:
            take_snapshot(NoAttention("own"), toy_probe(), toy_map(), measurements, methods="gradient")
        assert str(caught.value) == (
            "L0H0: no attention was seen to run in the model (looked for scaled_dot_product_attention, a softmax "
            "between two products of activations, nn.MultiheadAttention), so the self-repair of a head cannot be "
            "measured; leave self_repair out of measurements=(...)."
        )


def test_a_reordered_or_wrong_head_is_an_error():
    model = decoder()
    components = list(find_components(model))
    site = components[3].site
    components[0] = Component(0, "head", 0, Site(site.module, "input", 4, 8), *[components[0].value_out] * 2)
    found = measure(model, probe(model), ComponentMap(components))
    np.testing.assert_array_equal(found[0][0], found[0][4])  # a map may call a head what it likes
    components[0] = Component(0, "head", 0, Site("blocks.0.mlp", "output", 0, 4), *[components[0].value_out] * 2)
    with pytest.raises(MeasurementError) as caught:
        measure(model, probe(model), ComponentMap(components))
    assert str(caught.value) == (
        "L0H0: the output of 'blocks.0.mlp' from 0 on was expected to be what the attention in 'blocks.0.attention' "
        "made (softmax weights times values, 4 entries a head, one head after the other), and is not: is it gated, "
        "reordered, or another layer's? Name that output in the component map, or leave self_repair out of "
        "measurements=(...)."
    )


@pytest.mark.parametrize("threshold", [-0.1, float("nan"), float("inf"), "0.1", None, True])
def test_the_threshold_is_a_number_of_nats(threshold):
    with pytest.raises(MeasurementError) as caught:
        measure(decoder(), probe(decoder()), threshold=threshold)
    assert str(caught.value) == f"self_repair_threshold must be a number of nats, 0 or more; got {threshold!r}."


def test_the_function_itself_wants_a_head():
    from dynamics.measurements.scorer import Scorer
    from dynamics.measurements.self_repair import self_repair

    model = decoder()
    score = Scorer(model, model, probe(model), lambda: None)
    with pytest.raises(MeasurementError) as caught:
        self_repair(score, ComponentMap(channels_map()[2:]))
    assert str(caught.value) == (
        "self_repair needs attention heads, and the component map holds none of them; leave self_repair out of "
        "measurements=(...)."
    )
