import numpy as np
import pytest
import torch
from hypothesis import given

from dynamics import find_components, take_snapshot
from dynamics.measurements.interventions import replaced
from tests.cases import AND_PAIR, DEAD_AND_CRITICAL, REDUNDANT, Channels, channels_map, channels_probe
from tests.oracles.decoder import DecoderOracle
from tests.oracles.measurements import ablated_scores, mean_outputs
from tests.strategies import decoder, probe, scenes

CASES = pytest.mark.parametrize(
    "case", [DEAD_AND_CRITICAL, REDUNDANT, AND_PAIR], ids=["dead and critical", "redundant", "and"]
)


def ablate(model, probe, **options):
    return take_snapshot(model, probe, measurements="ablation", **options)


def accuracy_drop(snapshot, baseline):
    """Return the causal importance C of each component, by exact match."""
    row = snapshot["ablation_exact_match"][snapshot.baselines.index(baseline)]
    return snapshot["exact_match"].mean() - row.mean(-1)


@given(scenes())
def test_it_equals_replacing_each_output_by_hand(scene):
    model, probe = scene
    snapshot, oracle = ablate(model, probe), DecoderOracle(model)
    for b, baseline in enumerate(("mean", "zero")):
        for c, label in enumerate(oracle.labels):
            loss, match = ablated_scores(oracle, probe.batches, baseline, [label])
            np.testing.assert_allclose(snapshot["ablation_loss"][b, c], loss, rtol=1e-9, atol=1e-12)
            assert snapshot["ablation_exact_match"][b, c].tolist() == match
    assert snapshot.components.labels == tuple(oracle.labels)
    assert snapshot.baselines == ("mean", "zero")


@given(scenes(max_layers=1))
def test_several_components_are_replaced_together(scene):
    model, probe = scene
    oracle, components = DecoderOracle(model), find_components(model)
    means = mean_outputs(oracle, probe.batches)
    expected, _ = ablated_scores(oracle, probe.batches, "mean", oracle.labels)
    with replaced(model, components, [means[label] for label in components.labels]), torch.no_grad():
        loss = torch.cat([probe.objective(model, batch)[0] for batch in probe.batches])
    np.testing.assert_allclose(loss.numpy(), expected, rtol=1e-9, atol=1e-12)


@CASES
@pytest.mark.parametrize("baseline", ["mean", "zero"])
def test_planted_heads_cost_what_the_closed_form_says(case, baseline):
    snapshot = ablate(case.model(), case.probe(), baselines=[baseline])
    np.testing.assert_allclose(snapshot["loss"], case.loss(), rtol=1e-12)
    assert snapshot["exact_match"].all()
    for head in range(4):
        np.testing.assert_allclose(snapshot["ablation_loss"][0, head], case.loss([head], baseline), rtol=1e-12)
        assert (snapshot["ablation_exact_match"][0, head] == case.exact_match([head], baseline)).all()


@CASES
@pytest.mark.parametrize("baseline", ["mean", "zero"])
def test_planted_pairs_cost_what_the_closed_form_says(case, baseline):
    model, probe = case.model(), case.probe()
    components = find_components(model)
    values = [torch.tensor([head.bias if baseline == "mean" else 0.0]) for head in case.heads[:2]]
    with replaced(model, components[:2], values), torch.no_grad():
        scores = [probe.objective(model, batch) for batch in probe.batches]
    np.testing.assert_allclose(torch.cat([loss for loss, _ in scores]), case.loss([0, 1], baseline), rtol=1e-12)
    assert (torch.cat([match for _, match in scores]).numpy() == case.exact_match([0, 1], baseline)).all()


def test_a_critical_head_has_importance_one_and_a_dead_head_none():
    snapshot = ablate(DEAD_AND_CRITICAL.model(), DEAD_AND_CRITICAL.probe())
    assert accuracy_drop(snapshot, "mean").tolist() == [1, 0, 0, 0, 0]
    assert (snapshot["ablation_loss"][:, 1] == snapshot["loss"]).all()


def test_redundant_heads_matter_only_together_and_an_and_pair_as_much_alone():
    assert accuracy_drop(ablate(REDUNDANT.model(), REDUNDANT.probe()), "mean").tolist() == [0] * 5
    assert not REDUNDANT.exact_match([0, 1]).any()
    assert accuracy_drop(ablate(AND_PAIR.model(), AND_PAIR.probe()), "mean").tolist() == [1, 1, 0, 0, 0]


@pytest.mark.parametrize("positions", ["none", "rotary"])
def test_mean_ablation_of_a_constant_component_changes_nothing(positions):
    model = decoder(positions=positions)
    with torch.no_grad():
        model.blocks[1].mlp.output.weight.zero_()
        # Powers of two, so that the mean over the positions is exact.
        model.blocks[1].mlp.output.bias.copy_(torch.tensor([0.5, -2.0, 0.25, 1.0, 4.0, -0.125, 8.0, 0.0]))
    snapshot = ablate(model, probe(model))
    mlp = snapshot.components.labels.index("L1MLP")
    assert (snapshot["ablation_loss"][0, mlp] == snapshot["loss"]).all()
    assert (snapshot["ablation_exact_match"][0, mlp] == snapshot["exact_match"]).all()
    assert (np.abs(snapshot["ablation_loss"][1, mlp] - snapshot["loss"]) > 1e-6).all()


def test_a_module_with_a_component_map_of_its_own_and_batches_that_are_tuples():
    snapshot = ablate(Channels(), channels_probe(), components=channels_map())
    sums, counts, answers = np.array([3.0, -1.0, 4.0, 4.0]), np.array([2, 2, 2, 3]), np.array([11.5, 4.0, 14.0, 10.0])
    mean_x = 10 / 9
    output = np.stack([2.0 * sums, -0.5 * sums, 0.25 * sums + 3.0 * counts])
    mean = np.stack([2.0 * mean_x * counts, -0.5 * mean_x * counts, (0.25 * mean_x + 3.0) * counts])
    total = output.sum(0)
    np.testing.assert_array_equal(snapshot["loss"], (total - answers) ** 2 / 2)
    for b, constant in enumerate((mean, np.zeros_like(mean))):
        error = total - output + constant - answers
        np.testing.assert_allclose(snapshot["ablation_loss"][b], error**2 / 2, rtol=1e-13)
        assert (snapshot["ablation_exact_match"][b] == (np.abs(error) < 1)).all()


def test_the_baselines_come_in_the_order_they_were_asked_for():
    model = decoder()
    both, turned = ablate(model, probe(model)), ablate(model, probe(model), baselines=("zero", "mean", "zero"))
    assert turned.baselines == ("zero", "mean")
    np.testing.assert_array_equal(turned["ablation_loss"], both["ablation_loss"][::-1])
