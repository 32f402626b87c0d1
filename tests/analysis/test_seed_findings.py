import pandas as pd
import pytest

from dynamics import open_runs
from dynamics.analysis import (
    SeedFindings,
    accuracy_table,
    pruning_by_run,
    pruning_table,
    rho_by_accuracy,
    rho_by_run,
    rho_by_step,
    rho_table,
    role_frequency,
    roles_by_layer,
)
from dynamics.errors import AnalysisError
from tests.analysis.test_pruning import WINDOW, make


@pytest.fixture
def runs(tmp_path):
    with open_runs(make(tmp_path / "runs", range(3))) as found:
        yield found


@pytest.mark.parametrize("baseline", ["mean", "zero"])
@pytest.mark.parametrize("score", ["exact_match", "loss"])
def test_every_table_is_that_of_its_function(runs, score, baseline):
    found = SeedFindings(runs, WINDOW, baseline, threshold=2).by[score]
    options = {"window": WINDOW, "score": score, "threshold": 2}
    expected = {
        "rho_by_run": rho_by_run(runs, baseline, score),
        "rho_by_step": rho_by_step(runs, baseline, score),
        "rho_by_accuracy": rho_by_accuracy(runs, baseline=baseline, score=score),
        "role_frequency": role_frequency(runs, baseline=baseline, **options),
        "roles_by_layer": roles_by_layer(runs, baseline=baseline, **options),
        # Joint ablation is to the mean.
        "pruning_by_run": pruning_by_run(runs, **options),
        "pruning": pruning_table(runs, **options),
    }
    for name, table in expected.items():
        pd.testing.assert_frame_equal(getattr(found, name), table)
    assert found.missing is None


def test_rho_by_run_is_that_of_each_run_beside_its_accuracy(runs):
    table = rho_by_run(runs, "zero", "loss")
    assert list(table) == ["run", "step", "accuracy", "score", "rho", "reason"]
    parts = [
        rho_table(run, "zero", "loss")
        .merge(accuracy_table(run), on="step")[["step", "accuracy", "score", "rho", "reason"]]
        .assign(run=str(run.path))
        for run in runs
    ]
    expected = pd.concat(parts, ignore_index=True)[list(table)]
    pd.testing.assert_frame_equal(table, expected, check_dtype=False)


def test_what_a_window_lacks_is_said_and_the_rest_is_there(runs):
    found = SeedFindings(runs, (0.0, 0.01)).by["loss"]
    assert found.missing == (
        "none of 3 runs has a snapshot with a rho by loss and an accuracy from 0 to 0.01; choose a wider window."
    )
    with pytest.raises(AnalysisError) as caught:
        found.role_frequency  # noqa: B018
    assert str(caught.value) == found.missing
    assert len(found.rho_by_step) == 6


def test_an_unknown_window_is_refused_at_once(runs):
    with pytest.raises(AnalysisError) as caught:
        SeedFindings(runs, "late")
    assert str(caught.value) == "the window must be one of paper, all, or two shares such as (0.2, 0.75); got 'late'."
