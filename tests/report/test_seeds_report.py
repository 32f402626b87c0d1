"""What a report says of several runs."""

import numpy as np
import pandas as pd
import pytest

from dynamics import open_runs
from dynamics.analysis import (
    experiment_tables,
    pruning_table,
    rho_by_accuracy,
    rho_by_step,
    role_frequency,
    roles_by_layer,
)
from dynamics.report import report_on, seeds_report
from dynamics.report.build import OF_RUNS
from tests.analysis.runs import components, random_run, write_run
from tests.report.test_run_report import planted, said, shown

SEEDS = 6


@pytest.fixture
def seeds(tmp_path):
    for seed in range(SEEDS):
        task = {"datamodule": {"hyperparameters": {"task": "sort" if seed < 4 else "reverse"}}}
        random_run(tmp_path / f"seed-{seed}.h5", n_steps=3, seed=seed, metadata=task)
    with open_runs(tmp_path / "seed-*.h5") as runs:
        yield runs


def report(runs, **options):
    found = seeds_report(runs, runs.names, **options)
    assert [section.name for section in found.sections] == list(OF_RUNS)
    return {section.name: section for section in found.sections}


def frame(section, name):
    return {table.name: table for table in section.tables}[name].frame


def test_its_tables_are_those_of_many_runs(seeds):
    window, score = (0.4, 1), "loss"
    found = report(seeds, window=window, score=score, threshold=1)
    assert {name: section.missing for name, section in found.items()} == dict.fromkeys(OF_RUNS)
    options = {"window": window, "score": score, "threshold": 1}
    same = pd.testing.assert_frame_equal
    same(frame(found["rho_over_runs"], "rho_by_accuracy"), rho_by_accuracy(seeds, score=score))
    by_step = rho_by_step(seeds, score=score).iloc[::-1].reset_index(drop=True)
    same(frame(found["rho_over_runs"], "rho_by_step"), by_step)
    by_layer = roles_by_layer(seeds, **options)
    same(frame(found["roles_by_layer"], "roles_by_layer")[list(by_layer)], by_layer)
    frequency = role_frequency(seeds, **options).set_index("component")
    rows = frame(found["role_frequency"], "role_frequency")
    assert len(rows) == (frequency[["heroes", "bloats"]] > 0).sum().sum()
    for row in rows.to_dict("records"):
        own = frequency.loc[row["component"]]
        plural = {"hero": "heroes", "bloat": "bloats"}[row["role"]]
        assert (row["count"], row["p_value"]) == (own[plural], own[f"{row['role']}_p_value"])
    assert rows["p_value"].is_monotonic_increasing
    summary = frame(found["experiments"], "experiments").set_index(["experiment", "score"])
    assert set(summary.index) == {(task, by) for task in ("sort", "reverse") for by in ("exact_match", "loss")}
    expected = experiment_tables({"sort": seeds[:4]}, **options).summary.iloc[0]
    assert summary.loc[("sort", "loss")].to_dict() == pytest.approx(
        expected.drop(["experiment", "score"]).to_dict(), nan_ok=True
    )
    pruned = pruning_table(seeds[:4], **options).set_index(["role", "ablated"])["mean"]
    lost = frame(found["experiments"], "pruning").set_index(["experiment", "score"])
    assert lost.loc[("sort", "loss"), "hero_alone"] == pruned["hero", "one at a time"]
    assert "These are runs of 2 tasks: what is averaged over them is of no single task." in found["runs"].sentences


@pytest.fixture
def alike(tmp_path):
    """Ten runs in which the first component is a hero and the last a bloat; who else is, is a matter of luck."""
    rng = np.random.default_rng(0)
    for seed in range(10):
        gradient, causal = np.empty((2, 9))
        gradient[1:-1], causal[1:-1] = rng.permuted(np.tile(np.arange(2.0, 9), (2, 1)), axis=1)
        gradient[0], causal[0], gradient[-1], causal[-1] = 1, 9, 9, 1
        path = tmp_path / f"{seed}.h5"
        write_run(path, [0], [planted(gradient, causal / 32)], components(3, 2))
    with open_runs(tmp_path / "*.h5") as runs:
        yield runs


def test_a_role_that_comes_again_in_every_run_is_beyond_chance(alike):
    found = report(alike, score="loss")["role_frequency"]
    first, second = shown(found, "role_frequency")[:2]
    assert {(row["component"], row["role"], row["runs"]) for row in (first, second)} == {
        ("L0H0", "hero", "10 of 10"), ("L2MLP", "bloat", "10 of 10"),
    }  # fmt: skip
    # By luck alone: (9 - 3)(9 - 3 + 1) / (2 x 81) in each run.
    assert first["by chance"] == f"{10 * 6 * 7 / 162:.1f}"
    assert first["p"] == "<0.001"
    assert "Beyond chance, with 18 such p-values taken into account: L0H0 hero in 10 of 10 (p < 0.001)" in said(found)


def test_what_no_run_has_in_the_window_is_said_once(seeds):
    found = report(seeds, window=(0, 0.01))
    assert found["role_frequency"].missing == (
        "None of 6 runs has a snapshot with a rho by exact_match and an accuracy from 0 to 0.01; choose a wider window."
    )
    assert found["roles_by_layer"].missing == (
        "For the same reason as under “Which components have their role again and again?”."
    )
    assert found["runs"].missing is None
    assert found["rho_over_runs"].missing is None


def test_one_file_is_a_run_and_several_are_seeds(seeds):
    paths = [run.path for run in seeds]
    assert report_on([paths[0]]).sections[0].name == "run"
    found = report_on(paths[:2])
    assert (found.title, found.sections[0].name) == ("2 runs: seed-0, seed-1", "runs")
    assert report_on(paths).title == "6 runs: seed-0, seed-1, seed-2, seed-3, seed-4, …"
