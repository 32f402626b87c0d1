import numpy as np
import pandas as pd
import pytest

from dynamics import open_run
from dynamics.analysis import accuracy_table, thin
from tests.analysis.runs import components, random_run, write_run

METRICS = [
    (0, {"train/exact_match": 0.125, "train/loss": 3.0, "ood/exact_match_length_8": 0.5}),
    (4, {"train/exact_match": 0.25, "val_acc": 50.0, "inaccuracy": 0.1, "accuracy_gap": 0.2}),
    (4, {"id/exact_match": 1.0}),
    (8, {"Accuracy_epoch": 0.75, "rho_exact_match_heroes": 3.0}),
]


def series(table):
    return {
        name: list(zip(rows["step"], rows["accuracy"], strict=True))
        for name, rows in table.groupby("series", sort=False)
    }


def test_probe_and_metrics_that_say_accuracy(tmp_path):
    rows = random_run(tmp_path / "run.h5", n_steps=2, metrics=METRICS)
    with open_run(tmp_path / "run.h5") as run:
        table, with_lengths = accuracy_table(run), accuracy_table(run, per_length=True)
    expected = {
        "probe": [(0, rows[0]["exact_match"].mean()), (10, rows[1]["exact_match"].mean())],
        "train/exact_match": [(0, 0.125), (4, 0.25)],
        "val_acc": [(4, 0.5)],
        "id/exact_match": [(4, 1.0)],
        "Accuracy_epoch": [(8, 0.75)],
    }
    assert series(table) == expected
    assert series(with_lengths) == {**expected, "ood/exact_match_length_8": [(0, 0.5)]}


def test_a_run_without_rows(tmp_path):
    path = write_run(tmp_path / "run.h5", [], [], components(1, 1))
    with open_run(path) as run:
        table = accuracy_table(run)
    assert (len(table), list(table)) == (0, ["step", "series", "accuracy"])
    assert len(thin(table)) == 0


def test_thinning_averages_windows():
    steps = np.arange(10)
    long = pd.DataFrame({"step": steps, "series": "train", "accuracy": steps / 10})
    short = pd.DataFrame({"step": [3, 5], "series": "id", "accuracy": [0.0, 1.0]})
    table = thin(pd.concat([long, short], ignore_index=True), most=3)
    # Ten rows in at most three: windows of four, and what is left.
    assert table.to_dict("list") == {
        "step": [3, 7, 9, 3, 5],
        "series": ["train", "train", "train", "id", "id"],
        "accuracy": pytest.approx([0.15, 0.55, 0.85, 0.0, 1.0]),
        "averaged": [4, 4, 2, 1, 1],
    }


def test_what_is_no_share_is_left_out_and_what_is_not_finite_is_skipped(tmp_path):
    metrics = [(0, {"a/acc": 0.5, "b/acc": 0.5}), (4, {"a/acc": float("inf"), "b/acc": 1e30}), (8, {"a/acc": 0.9})]
    random_run(tmp_path / "run.h5", n_steps=2, metrics=metrics)
    with open_run(tmp_path / "run.h5") as run:
        found = series(accuracy_table(run))
    assert found["a/acc"] == [(0, 0.5), (8, 0.9)]
    assert "b/acc" not in found
