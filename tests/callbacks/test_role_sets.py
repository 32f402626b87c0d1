import numpy as np
import pytest

from dynamics import Snapshot
from dynamics.callbacks.role_sets import role_sets
from tests.analysis.runs import SPECS, components


def snapshot(gradient, by_match, by_loss, baselines=("zero", "mean")):
    """A snapshot of 4 examples with such gradients and such C under mean ablation; by zero ablation C is reversed."""
    n = len(gradient)
    match = np.tile(np.arange(4) < 3, (n, 1))
    for row, lost in enumerate(by_match):
        match[row, :lost] = False
    loss = 1.0 + np.tile(np.array(by_loss, dtype=float)[:, None], (1, 4))
    place = [baselines.index("mean"), baselines.index("zero")]
    arrays = {
        "loss": np.ones(4),
        "exact_match": np.arange(4) < 3,
        "gradient_norm": np.array(gradient, dtype=float)[:, None],
        "ablation_loss": np.stack([loss, loss[::-1]])[place],
        "ablation_exact_match": np.stack([match, match[::-1]])[place],
    }
    return Snapshot(arrays, SPECS, components(1, n - 1), baselines, (), (4,))


def test_roles_are_judged_by_accuracy_under_mean_ablation():
    # Of 4 components the threshold is 1 rank; by loss the roles would be the other way round.
    sets, score = role_sets(snapshot([1, 2, 3, 4], [3, 1, 2, 0], [0, 1, 2, 3]))
    assert score == "exact_match"
    # Delta: 1 - 4, 2 - 2, 3 - 3, 4 - 1.
    assert sets == {"bloats": [3], "heroes": [0]}


def test_by_the_loss_where_rho_is_undefined_by_accuracy():
    sets, score = role_sets(snapshot([1, 2, 3, 4], [0, 0, 0, 0], [9, 1, 2, 0], ("mean", "zero")))
    assert score == "loss"
    assert sets == {"bloats": [3], "heroes": [0]}


@pytest.mark.parametrize(
    ("gradient", "by_match", "by_loss"),
    [([1, 2, 3], [1, 1, 1], [2, 2, 2]), ([1, 1, 1], [1, 2, 3], [1, 2, 3]), ([1, np.nan, 2], [1, 2, 3], [1, 2, 3])],
    ids=["one cause", "one gradient", "nan"],
)
def test_without_rho_there_are_no_roles(gradient, by_match, by_loss):
    assert role_sets(snapshot(gradient, by_match, by_loss)) == ({"bloats": [], "heroes": []}, None)


def test_a_lone_component_has_no_role():
    assert role_sets(snapshot([1], [1], [1])) == ({"bloats": [], "heroes": []}, None)
