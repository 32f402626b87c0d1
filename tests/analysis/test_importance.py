import numpy as np
import pytest

from dynamics import open_run
from dynamics.analysis import causal_importance, gradient_magnitude
from dynamics.analysis.importance import recorded_importance
from dynamics.errors import AnalysisError
from tests.analysis.runs import components, random_arrays, random_run, write_run


def test_gradient_magnitude_is_a_mean_of_norms():
    assert gradient_magnitude(np.array([[1.0, 3.0], [0.0, 0.5]], np.float32)).tolist() == [2.0, 0.25]


def test_needed_components_are_positive():
    clean = np.array([True, True, True, False])
    ablated = np.array([[False, False, True, False], [True] * 4, clean])
    assert causal_importance(clean, ablated, "exact_match").tolist() == [0.5, -0.25, 0.0]
    loss = np.array([1.0, 2.0], np.float32)
    worse_better_same = np.array([[2.0, 4.0], [0.5, 1.5], [1.0, 2.0]], np.float32)
    assert causal_importance(loss, worse_better_same, "loss").tolist() == [1.5, -0.5, 0.0]


def test_an_ablation_without_effect_is_exactly_zero():
    """Sums of losses depend on their order in memory; differences example by example do not."""
    rng = np.random.default_rng(0)
    loss = rng.gamma(2.0, 1.0, 10_007).astype(np.float32)
    ablated = np.asfortranarray(np.tile(loss, (5, 1)))
    assert not causal_importance(loss, ablated, "loss").any()


@pytest.mark.parametrize("baseline", ["mean", "zero"])
def test_recorded_values_equal_naive_loops(tmp_path, baseline):
    rows = random_run(tmp_path / "run.h5")
    with open_run(tmp_path / "run.h5") as run:
        gradient, accuracy_lost = recorded_importance(run, baseline, "exact_match")
        _, loss_gained = recorded_importance(run, baseline, "loss")
    b = ["mean", "zero"].index(baseline)
    for step, row in enumerate(rows):
        for i in range(6):
            norms = [float(x) for x in row["gradient_norm"][i]]
            assert gradient[step, i] == pytest.approx(sum(norms) / len(norms), rel=1e-12)
            right = [bool(x) for x in row["exact_match"]]
            right_ablated = [bool(x) for x in row["ablation_exact_match"][b, i]]
            assert accuracy_lost[step, i] == pytest.approx((sum(right) - sum(right_ablated)) / len(right), abs=1e-12)
            losses = [float(x) for x in row["loss"]]
            losses_ablated = [float(x) for x in row["ablation_loss"][b, i]]
            gained = sum(losses_ablated) / len(losses) - sum(losses) / len(losses)
            assert loss_gained[step, i] == pytest.approx(gained, rel=1e-9)


def test_missing_array_is_named(tmp_path):
    listed = components(1, 1)
    arrays = random_arrays(np.random.default_rng(0), 2)
    only = {name: arrays[name] for name in ("loss", "exact_match", "gradient_norm")}
    path = write_run(tmp_path / "run.h5", [0], [only], listed)
    with open_run(path) as run, pytest.raises(AnalysisError) as error:
        recorded_importance(run, "mean", "loss")
    assert str(error.value) == (
        f"{path} has no 'ablation_loss', which this analysis needs; it holds exact_match, gradient_norm, loss. "
        "Track again with measurements=\"all\", or with 'ablation' among them."
    )


def test_unknown_baseline_and_score(tmp_path):
    random_run(tmp_path / "run.h5")
    with open_run(tmp_path / "run.h5") as run:
        with pytest.raises(AnalysisError) as error:
            recorded_importance(run, "median", "loss")
        assert str(error.value) == (f"{run.path} holds no ablations to the baseline 'median'; choose among mean, zero.")
        with pytest.raises(AnalysisError) as error:
            recorded_importance(run, "mean", "accuracy")
        assert str(error.value) == "the score must be one of exact_match, loss; got 'accuracy'."
