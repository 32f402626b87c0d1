import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dynamics import find_components, take_snapshot, take_synergy
from dynamics.errors import ComponentError, MeasurementError
from dynamics.probe import Probe, sequence_objective
from dynamics.synergy import DRAWS, blank_synergy, set_names, with_controls
from tests.cases import AND_PAIR, REDUNDANT, Channels, channels_map, channels_probe
from tests.oracles.decoder import DecoderOracle
from tests.oracles.measurements import ablated_scores
from tests.strategies import decoder, probe, scenes
from tests.test_snapshot import everything_about, used_model


@given(scenes(), st.data())
def test_it_ablates_each_set_together(scene, data):
    model, probe = scene
    oracle = DecoderOracle(model)
    chosen = data.draw(st.lists(st.sampled_from(oracle.labels), unique=True))
    sets = {"by label": chosen, "by index": [0], "all": range(len(oracle.labels))}
    taken = take_synergy(model, probe, sets)
    assert taken.sets == tuple(sets)
    for row, labels in enumerate((chosen, oracle.labels[:1], oracle.labels)):
        loss, match = ablated_scores(oracle, probe.batches, "mean", labels)
        np.testing.assert_allclose(taken["joint_loss"][row], loss, rtol=1e-9, atol=1e-12)
        assert taken["joint_exact_match"][row].tolist() == match
        assert taken["membership"][row].tolist() == [label in labels for label in oracle.labels]
    assert taken["role_score"] == -1


def test_what_it_holds_and_what_will_be_held():
    model = decoder()
    fixed = probe(model, sizes=[(3, 4), (2, 2)])
    snapshot = take_snapshot(model, fixed, measurements="ablation")
    taken = take_synergy(model, fixed, {"one": [3], "none": []}, role_score="loss")
    blank = blank_synergy(snapshot, ("one", "none"))
    dims = {
        "joint_loss": ("set", "example"),
        "joint_exact_match": ("set", "example"),
        "membership": ("set", "component"),
        "role_score": (),
    }
    for found in (taken, blank):
        assert {name: found.dims(name) for name in found} == dims
        assert found.sets == ("one", "none")
        assert found.batch_sizes == (3, 2)
    shapes = {name: (array.shape, array.dtype) for name, array in taken.items()}
    assert shapes == {name: (array.shape, array.dtype) for name, array in blank.items()}
    assert taken["role_score"] == 1
    # What the snapshot has too is the same to the bit.
    assert (taken["joint_loss"] == [snapshot["ablation_loss"][0, 3], snapshot["loss"]]).all()
    assert (taken["joint_exact_match"] == [snapshot["ablation_exact_match"][0, 3], snapshot["exact_match"]]).all()


@pytest.mark.parametrize(("case", "alone", "together"), [(REDUNDANT, True, False), (AND_PAIR, False, False)])
def test_planted_pairs(case, alone, together):
    sets = {"first": ["L0H0"], "second": ["L0H1"], "both": ["L0H0", "L0H1"], "idle": [2, 3, "L0MLP"]}
    taken = take_synergy(case.model(), case.probe(), sets)
    assert [row.all() for row in taken["joint_exact_match"]] == [alone, alone, together, True]
    assert [row.any() for row in taken["joint_exact_match"]] == [alone, alone, together, True]
    for row, gone in enumerate(([0], [1], [0, 1], [])):
        np.testing.assert_allclose(taken["joint_loss"][row], case.loss(gone), rtol=1e-12)


class StopError(Exception):
    pass


@pytest.mark.parametrize("stop_after", [1, 5, None])
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
    kept = Probe(probe(model.model).batches, objective)
    sets = with_controls({"bloats": [0, 1], "heroes": [5], "none": []}, 6)
    before = everything_about(model)
    if stop_after is None:
        take_synergy(model, kept, sets, progress=lambda done, total: counted.append((done, total)))
        distinct = {tuple(members) for members in sets.values() if members}
        total = len(kept) * (1 + len(distinct))
        assert counted == [(done, total) for done in range(1, total + 1)]
        assert calls == total
    else:
        with pytest.raises(StopError):
            take_synergy(model, kept, sets)
    assert everything_about(model) == before


def test_a_module_with_a_component_map_of_its_own():
    model, fixed = Channels(), channels_probe()
    taken = take_synergy(model, fixed, {"all": [0, 1, 2]}, channels_map())
    answers, counts = np.array([11.5, 4.0, 14.0, 10.0]), np.array([2, 2, 2, 3])
    nothing = (2.0 - 0.5 + 0.25) * 10 / 9 * counts + 3.0 * counts
    np.testing.assert_allclose(taken["joint_loss"][0], (nothing - answers) ** 2 / 2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_half_precision_comes_back_in_single_precision(dtype):
    model = decoder()
    fixed = probe(model)
    model = model.to(dtype)
    taken, blank = (
        take_synergy(model, fixed, {"a": [1]}),
        blank_synergy(take_snapshot(model, fixed, measurements=()), ("a",)),
    )
    assert {name: array.dtype for name, array in taken.items()} == {n: a.dtype for n, a in blank.items()}
    assert taken["joint_loss"].dtype == np.float32


@given(st.integers(1, 12), st.data())
def test_controls_have_the_sizes_of_their_sets(n, data):
    subsets = st.sets(st.sampled_from(range(n)))
    sets = {"bloats": data.draw(subsets), "heroes": data.draw(subsets)}
    found = with_controls(sets, n, draws=3)
    assert tuple(found) == set_names(("bloats", "heroes"), 3)
    assert list(found)[:3] == ["bloats", "heroes", "random_bloats_0"]
    for name, members in found.items():
        of = name.split("_")[1] if name.startswith("random_") else name
        assert len(members) == len(set(members)) == len(sets[of])
        assert set(members) <= set(range(n))
        assert members == sorted(members)
    # A set that grows by one leaves its controls and adds to each.
    smaller = with_controls({"bloats": range(n - 1), "heroes": sets["heroes"]}, n, draws=3)
    larger = with_controls({"bloats": range(n), "heroes": sets["heroes"]}, n, draws=3)
    assert all(set(smaller[name]) <= set(larger[name]) for name in smaller)
    assert found == with_controls(sets, n, draws=3)


def test_controls_differ_and_any_component_may_be_among_them():
    found = with_controls({"bloats": range(5), "heroes": range(5)}, 20)
    controls = {tuple(members) for name, members in found.items() if name.startswith("random_")}
    assert len(controls) == 2 * DRAWS
    assert set().union(*controls) == set(range(20))
    state = np.random.get_state()[1].tolist()
    with_controls({"bloats": range(5)}, 20)
    assert np.random.get_state()[1].tolist() == state


def test_what_does_not_fit_is_refused():
    model = decoder()
    fixed = probe(model)
    for sets, message in (
        ({}, "sets must name at least one set of components; got none."),
        (
            {"heroes": [0, "L9H0", 6]},
            "the set 'heroes' must hold indices from 0 to 5 or labels from L0H0 to L1MLP; got 'L9H0', 6.",
        ),
    ):
        with pytest.raises(MeasurementError) as caught:
            take_synergy(model, fixed, sets)
        assert str(caught.value) == message
    with pytest.raises(MeasurementError) as caught:
        take_synergy(model, fixed, {"a": "L0H0"}, role_score="rank")
    assert str(caught.value) == "role_score must be None or one of exact_match, loss; got 'rank'."
    with pytest.raises(ComponentError, match=r"^L1H0: the model has no module"):
        take_synergy(decoder(n_layers=1), fixed, {"a": [0]}, find_components(model))
