from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import rankdata

from dynamics import open_runs
from dynamics.analysis import accuracy_table, chance_share, gap_table, majority_roles, role_frequency, roles_by_layer
from dynamics.analysis.many_runs import read_windows, seed_interval
from dynamics.analysis.role_frequency import layer_rows
from dynamics.errors import AnalysisError
from tests.analysis.runs import N_BATCHES, N_EXAMPLES, components, random_arrays, random_run, write_run

WINDOW = (0.5, 0.9)
ROLES = ("hero", "bloat", "aligned", "undefined")


@pytest.fixture
def runs(tmp_path):
    for seed in range(4):
        random_run(tmp_path / f"{seed}.h5", n_steps=3 + seed, seed=seed)
    with open_runs(tmp_path / "*.h5") as found:
        yield found


def naive(run, window=WINDOW, **options):
    """Return the roles of the snapshots in the window: one list of rows of `gap_table` by component for each."""
    accuracy = accuracy_table(run).set_index("step")["accuracy"]
    table = gap_table(run, **options)
    inside = [step for step in run.steps if window[0] <= accuracy[step] <= window[1]]
    return [table[table["step"] == step]["role"].tolist() for step in inside]


@given(arrays("<U9", st.tuples(st.integers(1, 5), st.integers(1, 4)), elements=st.sampled_from(ROLES)))
def test_a_majority_is_more_than_half(roles):
    for found, column in zip(majority_roles(roles), roles.T.tolist(), strict=True):
        often = [role for role in ROLES[:3] if column.count(role) > len(column) / 2]
        assert [found] == (often or ["mixed"])


@pytest.mark.parametrize("score", ["exact_match", "loss"])
def test_the_frequency_is_what_a_loop_counts(runs, score):
    table = role_frequency(runs, WINDOW, score=score)
    assert table["component"].tolist() == [component.label for component in runs.components]
    assert table["head"].isna().tolist() == [component.kind == "mlp" for component in runs.components]
    majorities = []
    for run in runs:
        rows = naive(run, score=score)
        if rows:
            majorities.append(majority_roles(np.array(rows)).tolist())
    columns = {"heroes": "hero", "bloats": "bloat", "aligned": "aligned", "mixed": "mixed"}
    for place, row in table.iterrows():
        counts = {name: [roles[place] for roles in majorities].count(role) for name, role in columns.items()}
        assert row[list(columns)].to_dict() == counts
        assert sum(counts.values()) == row["runs"] == len(majorities)
        assert row["hero_share"] == counts["heroes"] / len(majorities)
        assert row["bloat_share"] == counts["bloats"] / len(majorities)
        assert row["chance"] == chance_share(6, 2)
    # Random ranks make some of each, or the test is about nothing.
    assert (table[list(columns)].sum() > 0).all()


def test_the_layers_are_what_a_loop_counts(runs):
    table = roles_by_layer(runs, WINDOW, permutations=50)
    assert table[["role", "layer"]].apply(tuple, axis=1).tolist() == [*product(("hero", "bloat"), (0, 1))]
    for row in table.itertuples():
        numbers = []
        for run in runs:
            per_snapshot = [
                sum(role == row.role and c.layer == row.layer for role, c in zip(roles, run.components, strict=True))
                for roles in naive(run)
            ]
            if per_snapshot:
                numbers.append(np.mean(per_snapshot))
        expected = seed_interval(numbers)
        np.testing.assert_allclose(
            [row.mean, row.low, row.high, row.least, row.most],
            [expected.mean, expected.low, expected.high, expected.least, expected.most],
        )
        assert (row.components, row.runs) == (3, expected.runs)
        assert row.share == pytest.approx(row.mean / 3)
        assert row.chance == pytest.approx(3 * chance_share(6, 2))
        assert 2 / 51 <= row.p_value <= 1


def planted(path, gradient, causal, steps=1, layers=2, heads=1, accuracy=0.5):
    """Write a run in which every snapshot has these G and these C by loss, and half of the examples right."""
    n = len(gradient)
    row = random_arrays(np.random.default_rng(0), n)
    row["loss"] = np.ones(N_EXAMPLES)
    row["exact_match"] = np.arange(N_EXAMPLES) < accuracy * N_EXAMPLES
    row["gradient_norm"] = np.tile(np.array(gradient, float)[:, None], (1, N_BATCHES))
    row["ablation_loss"] = np.tile(1 + np.array(causal, float)[:, None], (2, 1, N_EXAMPLES))
    return write_run(path, list(range(steps)), [row] * steps, components(layers, heads))


@pytest.mark.parametrize(
    ("gradient", "causal"),
    [([4, 3, 2, 1], [1, 2, 3, 4]), ([4, 3, 2, 1], [1, 1, 1, 2]), ([1, 4, 2, 2], [1, 3, 2, 4])],
    ids=["inverted", "ties", "mixed"],
)
@pytest.mark.parametrize("steps", [1, 3])
def test_the_p_value_is_that_of_all_permutations(tmp_path, gradient, causal, steps):
    planted(tmp_path / "a.h5", gradient, causal, steps)
    with open_runs(tmp_path / "a.h5") as runs:
        found = read_windows(runs, score="loss", threshold=2)
        table = layer_rows(found, "loss", 0.95, permutations=20_000)
    g, c = rankdata(gradient), rankdata(causal)
    every = np.array([g[list(p)] - c[list(q)] for p in permutations(range(4)) for q in permutations(range(4))])
    for row in table.itertuples():
        part = slice(2 * row.layer, 2 * row.layer + 2)
        sign = -1 if row.role == "hero" else 1
        null = (sign * every[:, part] >= 2).sum(1)
        observed = (sign * (g - c)[part] >= 2).sum()
        exact = min(1, 2 * min((null >= observed).mean(), (null <= observed).mean()))
        assert row.p_value == pytest.approx(exact, abs=0.03)
        if len(set(gradient)) == len(set(causal)) == 4:
            # Without ties the closed form is the mean over all permutations.
            assert row.chance == pytest.approx(null.mean())


def test_many_runs_that_agree_are_beyond_chance_and_snapshots_of_one_are_not(tmp_path):
    for seed in range(5):
        planted(tmp_path / f"{seed}.h5", [6, 5, 4, 3, 2, 1], [1, 2, 3, 4, 5, 6], 4, 3)
    with open_runs(tmp_path / "*.h5") as runs:
        together = roles_by_layer(runs, score="loss").set_index(["role", "layer"])
        alone = roles_by_layer(runs[:1], score="loss").set_index(["role", "layer"])
    assert together.loc[("bloat", 0), ["mean", "low", "high"]].tolist() == [2, 2, 2]
    assert together.loc[("bloat", 0), "p_value"] < 0.005
    assert together.loc[("hero", 2), "p_value"] < 0.005
    assert together.loc[("hero", 1), "p_value"] > 0.05
    # 4 snapshots that are all alike are one piece of evidence.
    assert alone.loc[("bloat", 0), "p_value"] > 0.1
    assert alone.loc[("bloat", 0), "reason"] == "it is defined in 1 run; an interval needs 2"


def test_independent_ranks_are_found_out_no_more_often_than_the_p_value_says(tmp_path):
    rng = np.random.default_rng(1)
    values = []
    for trial in range(40):
        paths = [
            planted(tmp_path / f"{trial}-{seed}.h5", rng.permutation(8), rng.permutation(8), 1, 4) for seed in range(3)
        ]
        with open_runs(paths) as runs:
            values.append(roles_by_layer(runs, score="loss", permutations=300)["p_value"].tolist())
    # Few counts are possible, and with them few p-values; twice the smaller tail is large rather than small.
    assert np.mean(np.array(values) <= 0.05) < 0.06
    assert np.mean(np.array(values) <= 0.5) > 0.1


def test_a_snapshot_without_rho_does_not_count(tmp_path):
    planted(tmp_path / "a.h5", [4, 3, 2, 1], [1, 2, 3, 4])
    planted(tmp_path / "b.h5", [4, 3, 2, 1], [2, 2, 2, 2])
    with open_runs(tmp_path / "*.h5") as runs:
        assert (role_frequency(runs, score="loss")["runs"] == 1).all()
        assert (roles_by_layer(runs, score="loss")["runs"] == 1).all()


def test_the_seed_decides(runs):
    first, again, other = (roles_by_layer(runs, WINDOW, permutations=200, seed=seed) for seed in (0, 0, 1))
    assert first.equals(again)
    assert not first["p_value"].equals(other["p_value"])


def test_what_does_not_fit_is_refused(runs):
    for call in (role_frequency, roles_by_layer):
        with pytest.raises(AnalysisError) as caught:
            call(runs, (0.0, 0.01))
        assert str(caught.value) == (
            "none of 4 runs has a snapshot with a rho by exact_match and an accuracy from 0 to 0.01; choose a wider "
            "window."
        )
        with pytest.raises(AnalysisError) as caught:
            call(runs, (20, 75))
        assert str(caught.value) == "a window needs 0 <= low <= high <= 1; got (20, 75)."
    with pytest.raises(AnalysisError) as caught:
        roles_by_layer(runs, WINDOW, permutations=0)
    assert str(caught.value) == "a p-value needs at least one permutation; got 0."
