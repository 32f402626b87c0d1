import numpy as np
import pytest
import torch
from hypothesis import given

from dynamics import take_faithfulness, take_snapshot
from dynamics.errors import ComponentError, MeasurementError
from dynamics.faithfulness import blank_faithfulness
from dynamics.measurements.ablation import BASELINES
from dynamics.probe import Probe, sequence_objective
from tests.cases import AND_PAIR, DEAD_AND_CRITICAL, WITHOUT_ATTENTION, Channels, channels_map, channels_probe
from tests.oracles.decoder import DecoderOracle
from tests.oracles.measurements import attributions, kept_scores
from tests.strategies import decoder, probe, scenes
from tests.test_snapshot import everything_about, used_model


@given(scenes())
def test_it_keeps_what_the_snapshot_ranks_highest(scene):
    model, probe = scene
    snapshot = take_snapshot(model, probe, measurements="attribution", methods="gradient")
    taken, oracle = take_faithfulness(model, probe, snapshot), DecoderOracle(model)
    assert taken.rankings == ("gradient", "random")
    # Attributions of the oracle itself, unless two are so close that rounding may turn them around.
    mean = attributions(oracle, probe.batches).mean(-1)
    order = sorted(range(len(mean)), key=lambda index: -mean[index])
    if np.diff(np.sort(mean)).min(initial=1) > 1e-12:
        assert taken["ranking_order"][0].tolist() == order
    for row, ranked in enumerate(taken["ranking_order"]):
        by_hand = kept_scores(oracle, probe.batches, [oracle.labels[index] for index in ranked])
        for k, (loss, match) in enumerate(by_hand):
            np.testing.assert_allclose(taken["kept_loss"][row, k], loss, rtol=1e-9, atol=1e-12)
            assert taken["kept_exact_match"][row, k].tolist() == match


def test_what_it_holds_and_what_will_be_held():
    model = decoder()
    fixed = probe(model, sizes=[(3, 4), (2, 2)])
    snapshot = take_snapshot(model, fixed)
    taken = take_faithfulness(model, fixed, snapshot, ["|gim|", "ablation"])
    blank = blank_faithfulness(snapshot, ("|gim|", "ablation"))
    dims = {
        "kept_loss": ("ranking", "kept", "example"),
        "kept_exact_match": ("ranking", "kept", "example"),
        "ranking_score": ("ranking", "component"),
        "ranking_order": ("ranking", "component"),
    }
    for found in (taken, blank):
        assert {name: found.dims(name) for name in found} == dims
        assert found.rankings == ("|gim|", "ablation")
    shapes = {name: (array.shape, array.dtype) for name, array in taken.items()}
    assert shapes == {name: (array.shape, array.dtype) for name, array in blank.items()}
    assert taken["kept_loss"].shape == (2, 7, 5)
    assert repr(taken).startswith("Faithfulness(6 components; kept_loss (2, 7, 5), ")
    # The whole model, and the model without its last component, are in the snapshot too.
    assert (taken["kept_loss"][:, -1] == snapshot["loss"]).all()
    last = taken["ranking_order"][:, -1]
    assert (taken["kept_loss"][:, -2] == snapshot["ablation_loss"][0, last]).all()
    assert (taken["kept_exact_match"][:, -2] == snapshot["ablation_exact_match"][0, last]).all()


def test_a_critical_head_alone_is_the_whole_model():
    for case, needed in ((DEAD_AND_CRITICAL, 1), (AND_PAIR, 2)):
        model, fixed = case.model(), case.probe()
        taken = take_faithfulness(model, fixed, take_snapshot(model, fixed), ("ablation", "gim", "ig"))
        for row in range(3):
            np.testing.assert_allclose(taken["kept_loss"][row, needed:], np.tile(case.loss(), (6 - needed, 1)))
            np.testing.assert_allclose(taken["kept_loss"][row, 0], case.loss([0, 1]))
            assert taken["kept_exact_match"][row].all(-1).tolist() == [k >= needed for k in range(6)]


class StopError(Exception):
    pass


@pytest.mark.parametrize("stop_after", [1, 3, 20, None])
def test_the_model_is_left_as_it_was_even_when_the_objective_fails(stop_after):
    calls, counted = 0, []

    def objective(model, batch):
        nonlocal calls
        torch.rand(3), np.random.rand(3)
        assert not any(module.training for module in model.modules())
        calls += 1
        if stop_after is not None and calls > stop_after:
            raise StopError
        return sequence_objective(model, batch)

    model = used_model()
    plain = probe(model.model)
    snapshot = take_snapshot(model, plain)
    kept = Probe(plain.batches, objective)
    before = everything_about(model)
    if stop_after is None:
        taken = take_faithfulness(model, kept, snapshot, progress=lambda done, total: counted.append((done, total)))
        total = counted[-1][1]
        assert counted == [(done, total) for done in range(1, total + 1)]
        distinct = {frozenset(order[:k]) for order in taken["ranking_order"].tolist() for k in range(6)}
        assert calls == total == 2 * (1 + len(distinct)) <= 2 * (6 * 5 + 2)
    else:
        with pytest.raises(StopError):
            take_faithfulness(model, kept, snapshot)
    assert everything_about(model) == before


def test_a_module_with_a_component_map_of_its_own():
    model, fixed = Channels(), channels_probe()
    snapshot = take_snapshot(model, fixed, channels_map(), WITHOUT_ATTENTION, methods=("gradient", "ig"))
    taken = take_faithfulness(model, fixed, snapshot)
    assert taken.rankings == ("gradient_norm", "gradient", "ig", "ablation", "random")
    answers, counts = np.array([11.5, 4.0, 14.0, 10.0]), np.array([2, 2, 2, 3])
    nothing = (2.0 - 0.5 + 0.25) * 10 / 9 * counts + 3.0 * counts
    np.testing.assert_allclose(taken["kept_loss"][:, 0], np.tile((nothing - answers) ** 2 / 2, (5, 1)))


def test_nan_weights_are_recorded_not_raised():
    model = decoder()
    with torch.no_grad():
        model.blocks[0].mlp.input.weight[0, 0] = torch.nan
    fixed = probe(model)
    taken = take_faithfulness(model, fixed, take_snapshot(model, fixed))
    assert np.isnan(taken["kept_loss"][:, 1:]).any(-1).any(-1).all()
    # Where nothing is known, the components rank in their own order.
    assert taken["ranking_order"][1].tolist() == list(range(6))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_half_precision_comes_back_in_single_precision(dtype):
    model = decoder()
    fixed = probe(model)
    model = model.to(dtype)
    snapshot = take_snapshot(model, fixed)
    taken = take_faithfulness(model, fixed, snapshot)
    blank = blank_faithfulness(snapshot, taken.rankings)
    assert {name: array.dtype for name, array in taken.items()} == {n: a.dtype for n, a in blank.items()}
    assert taken["kept_loss"].dtype == np.float32


def test_what_does_not_fit_is_refused():
    model = decoder()
    fixed = probe(model)
    snapshot = take_snapshot(model, fixed, measurements="ablation", baselines=BASELINES[1:])
    with pytest.raises(MeasurementError) as caught:
        take_faithfulness(model, fixed, snapshot, "ablation")
    assert str(caught.value) == (
        "rankings must be among random, which is what the snapshot's measurements, baselines and methods allow; "
        "got 'ablation'."
    )
    with pytest.raises(MeasurementError) as caught:
        take_faithfulness(model, probe(model, sizes=[(2, 4), (2, 2)]), snapshot)
    assert str(caught.value) == (
        "the snapshot was taken on probe batches of [3, 2] examples, but this probe has [2, 2]; give the probe of the "
        "snapshot."
    )
    with pytest.raises(ComponentError, match=r"^L1H0: the model has no module"):
        take_faithfulness(decoder(n_layers=1), fixed, snapshot)


def test_a_snapshot_of_other_examples_or_another_model_is_an_error():
    model = decoder()
    snapshot = take_snapshot(model, probe(model), methods="gradient")
    for other, fixed in ((model, probe(model, seed=1)), (decoder(seed=1), probe(model))):
        with pytest.raises(MeasurementError) as caught:
            take_faithfulness(other, fixed, snapshot)
        assert str(caught.value) == (
            "the snapshot's losses are not those of this model on this probe; give the model as it was when the "
            "snapshot was taken, and the snapshot's probe."
        )
