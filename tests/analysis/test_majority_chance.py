import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from dynamics import open_run, open_runs
from dynamics.analysis import chance_share, classify_roles, majority_roles, read_timeline, role_frequency
from dynamics.analysis.majority_chance import at_least, majority_chance
from tests.analysis.runs import random_run
from tests.analysis.test_role_frequency import planted


@pytest.mark.parametrize("score", ["exact_match", "loss"])
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_it_is_the_share_of_all_pairs_of_components(tmp_path, score, steps):
    random_run(tmp_path / "run.h5", n_steps=6, layers=2, heads=3)
    with open_run(tmp_path / "run.h5") as run:
        timeline = read_timeline(run, score=score, threshold=2)
    inside = np.arange(6) < steps
    n, counts = 8, {"hero": 0, "bloat": 0}
    for i in range(n):
        for j in range(n):
            delta = [gap.rank_gradient[i] - gap.rank_causal[j] for gap in timeline.gaps[:steps]]
            role = majority_roles(classify_roles(delta, 2)[:, None])[0]
            if role in counts:
                counts[role] += 1
    assert majority_chance(timeline, inside) == {role: count / n**2 for role, count in counts.items()}
    assert min(counts.values()) > 0


def test_one_snapshot_without_ties_gives_the_closed_form(tmp_path):
    planted(tmp_path / "run.h5", [6, 1, 4, 3, 2, 5], [1, 2, 3, 4, 5, 6], layers=3)
    with open_run(tmp_path / "run.h5") as run:
        timeline = read_timeline(run, score="loss", threshold=3)
    found = majority_chance(timeline, np.array([True]))
    assert found == {"hero": pytest.approx(chance_share(6, 3)), "bloat": pytest.approx(chance_share(6, 3))}


@given(st.lists(st.floats(0, 1), max_size=6))
def test_at_least_is_the_sum_over_all_outcomes(chances):
    expected = np.zeros(len(chances) + 1)
    for outcome in np.ndindex(*[2] * len(chances)):
        weight = np.prod([p if happens else 1 - p for p, happens in zip(chances, outcome, strict=True)])
        expected[: sum(outcome) + 1] += weight
    np.testing.assert_allclose(at_least(chances), expected, atol=1e-12)


def test_events_of_one_probability_are_binomial():
    np.testing.assert_allclose(at_least([0.2] * 9), binom.sf(np.arange(10) - 1, 9, 0.2), rtol=1e-12)


def test_the_table_says_how_surprising_each_count_is(tmp_path):
    """Two runs in one order, one in the other: L0H0 is a bloat in 2 of 3, in each by luck with the closed form."""
    orders = [([4, 3, 2, 1], [1, 2, 3, 4])] * 2 + [([1, 2, 3, 4], [1, 2, 3, 4])]
    for seed, (gradient, causal) in enumerate(orders):
        planted(tmp_path / f"{seed}.h5", gradient, causal, steps=3)
    with open_runs(tmp_path / "*.h5") as runs:
        table = role_frequency(runs, score="loss", threshold=2).set_index("component")
    p = chance_share(4, 2)
    assert table["bloats"].tolist() == [2, 0, 0, 0]  # delta: 3, 1, -1, -3
    assert table["heroes"].tolist() == [0, 0, 0, 2]
    assert table["bloat_chance"].tolist() == pytest.approx([p] * 4)
    surprise = 3 * p**2 * (1 - p) + p**3
    assert table["bloat_p_value"].tolist() == pytest.approx([surprise, 1, 1, 1])
    assert table["hero_p_value"].tolist() == pytest.approx([1, 1, 1, surprise])
