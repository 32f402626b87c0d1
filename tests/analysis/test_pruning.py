import math

import numpy as np
import pytest

from dynamics import open_runs
from dynamics.analysis import (
    accuracy_table,
    chance_share,
    experiment_tables,
    gap_table,
    pruning_by_run,
    pruning_table,
    rho_table,
    role_frequency,
    roles_by_layer,
    seed_interval,
    synergy_table,
)
from tests.analysis.runs import random_run, random_synergy

WINDOW = (0.5, 0.9)


def make(folder, seeds, synergy=True):
    for seed in seeds:
        options = {}
        if synergy:
            rows = [
                random_synergy({"bloats": [seed % 6, 5], "heroes": [2]}, 6, seed=step, role_score=step == 20)
                for step in (10, 20, 30)
            ]
            options = {"sets": rows[0][0], "joint": list(zip((10, 20, 30), (row for _, row in rows), strict=True))}
        folder.mkdir(exist_ok=True)
        random_run(folder / f"{seed}.h5", n_steps=4 + seed, seed=seed, **options)
    return folder / "*.h5"


@pytest.fixture
def runs(tmp_path):
    with open_runs(make(tmp_path / "runs", range(3))) as found:
        yield found


def inside(run):
    accuracy = accuracy_table(run).set_index("step")["accuracy"]
    return [step for step in run.steps.tolist() if WINDOW[0] <= accuracy[step] <= WINDOW[1]]


@pytest.mark.parametrize("score", ["exact_match", "loss"])
def test_what_is_lost_is_what_a_loop_averages(runs, score):
    table = pruning_by_run(runs, WINDOW, score).set_index(["run", "role", "ablated"])
    assert len(table) == 3 * 4
    for run in runs:
        gaps, joint = gap_table(run, score=score), synergy_table(run)
        for role, name in (("hero", "heroes"), ("bloat", "bloats")):
            means = []
            for step in inside(run):
                chosen = gaps[(gaps["step"] == step) & (gaps["role"] == role)]["causal"]
                if len(chosen):
                    means.append(sum(chosen) / len(chosen))
            row = table.loc[(str(run.path), role, "one at a time")]
            assert row["snapshots"] == len(means)
            assert row["lost"] == row["single"] == pytest.approx(np.mean(means))
            costs = [
                (r.joint, r.mean)
                for r in joint[(joint["set"] == name) & (joint["score"] == score)].itertuples()
                if r.step in inside(run) and r.step in ((20,) if score == "loss" else (10, 30))
            ]
            row = table.loc[(str(run.path), role, "together")]
            assert row["snapshots"] == len(costs)
            expected = np.mean(costs, axis=0) if costs else [math.nan, math.nan]
            np.testing.assert_allclose([row["lost"], row["single"]], expected)
    summary = pruning_table(runs, WINDOW, score).set_index(["role", "ablated"])
    for (role, ablated), row in summary.iterrows():
        part = table.xs((role, ablated), level=("role", "ablated"))
        expected = seed_interval(part["lost"])
        assert (row["runs"], row["reason"]) == (expected.runs, expected.reason)
        np.testing.assert_allclose([row["mean"], row["low"]], [expected.mean, expected.low])
        single = part["single"].dropna().mean()
        if ablated == "together" and single > 0:
            assert row["ratio_to_mean"] == pytest.approx(part["lost"].dropna().mean() / single)
        else:
            assert math.isnan(row["ratio_to_mean"])
    assert (table["snapshots"] > 0).any()


def test_without_synergy_nothing_is_known_of_pruning_together(tmp_path):
    with open_runs(make(tmp_path / "plain", range(2), synergy=False)) as runs:
        table = pruning_table(runs, WINDOW).set_index(["role", "ablated"])
    for role in ("hero", "bloat"):
        assert table.loc[(role, "together"), "reason"] == "it is defined in none of the runs"
        assert table.loc[(role, "one at a time"), "reason"] is None


def test_the_summary_of_experiments(tmp_path, runs):
    with open_runs(make(tmp_path / "other", [7])) as other:
        tables = experiment_tables({"sorting": runs, "reversal": other}, WINDOW)
        layers, components = roles_by_layer(other, WINDOW), role_frequency(runs, WINDOW)
    summary = tables.summary.set_index("experiment")
    assert list(summary.index) == ["sorting", "reversal"]
    row = summary.loc["sorting"]
    rhos, heroes, bloats = [], [], []
    for run in runs:
        table = rho_table(run).set_index("step").loc[inside(run)]
        rhos.append(table["rho"].mean())
        heroes.append(table["heroes"].mean())
        bloats.append(table["bloats"].mean())
    expected = seed_interval(rhos)
    assert (row["runs"], row["of"], row["snapshots"]) == (3, 3, sum(len(inside(run)) for run in runs))
    np.testing.assert_allclose(
        row[["rho", "rho_sd", "rho_low", "rho_high", "rho_least", "rho_most"]].tolist(),
        [expected.mean, expected.sd, expected.low, expected.high, expected.least, expected.most],
    )
    assert row["heroes"] == pytest.approx(np.mean(heroes))
    assert row["bloats"] == pytest.approx(np.mean(bloats))
    assert row["chance"] == pytest.approx(6 * chance_share(6, 2))
    pruned = pruning_table(runs, WINDOW).set_index(["role", "ablated"])
    for role in ("hero", "bloat"):
        for name, way in (("alone", "one at a time"), ("together", "together")):
            np.testing.assert_array_equal(row[f"{role}_{name}"], pruned.loc[(role, way), "mean"])
            np.testing.assert_array_equal(row[f"{role}_{name}_sd"], pruned.loc[(role, way), "sd"])
    assert row["bloat_ratio_to_mean"] == pruned.loc[("bloat", "together"), "ratio_to_mean"]
    # One seed: a mean, but no spread.
    assert summary.loc["reversal", "runs"] == 1
    assert np.isnan(summary.loc["reversal", ["rho_sd", "rho_low", "rho_high", "hero_alone_sd"]].astype(float)).all()
    of = tables.layers[tables.layers["experiment"] == "reversal"].drop(columns="experiment").reset_index(drop=True)
    assert of.equals(layers)
    of = tables.components[tables.components["experiment"] == "sorting"].drop(columns="experiment")
    assert of.reset_index(drop=True).equals(components)
    assert tables.layers.columns[0] == tables.components.columns[0] == "experiment"
