import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dynamics import open_run, open_runs
from dynamics.analysis import accuracy_table, rho_by_accuracy, rho_by_step, rho_table, seed_interval
from dynamics.errors import AnalysisError
from tests.analysis.runs import components, random_arrays, random_run, write_run


@pytest.fixture
def runs(tmp_path):
    """Three runs of 6 components and 4, 5 and 3 snapshots; the last has accuracy 0 and constant C at its first."""
    for seed in range(3):
        rng = np.random.default_rng(seed)
        rows = [random_arrays(rng, 6) for _ in range((4, 5, 3)[seed])]
        if seed == 2:
            rows[0]["exact_match"][:] = False
            rows[0]["ablation_exact_match"][:] = False
        write_run(tmp_path / f"{seed}.h5", [10 * row for row in range(len(rows))], rows, components(2, 2))
    with open_runs(tmp_path / "*.h5") as found:
        yield found


def test_the_interval_is_students():
    values = [0.2, 0.5, 0.4, 0.9]
    found = seed_interval(values)
    low, high = stats.t.interval(0.95, 3, loc=np.mean(values), scale=stats.sem(values))
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))
    assert (found.runs, found.least, found.most) == (4, 0.2, 0.9)
    assert found.sd == pytest.approx(np.std(values, ddof=1))
    assert found.reason is None
    wide = seed_interval(values, 0.99)
    assert wide.low < found.low < found.mean < found.high < wide.high


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=8), st.integers(0, 8))
def test_what_is_undefined_leaves_its_run_out_and_order_does_not_matter(values, place):
    found = seed_interval(values)
    with_gap = seed_interval([*values[:place], math.nan, *values[place:]])
    turned = seed_interval(values[::-1])
    for other in (with_gap, turned):
        assert other.runs == found.runs == len(values)
        assert (other.mean, other.low, other.high) == pytest.approx((found.mean, found.low, found.high), abs=1e-9)
    assert found.low - 1e-9 <= found.mean <= found.high + 1e-9


def test_the_interval_holds_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(0)
    found = [seed_interval(rng.normal(0.3, 0.2, 5)) for _ in range(1000)]
    assert 0.93 < np.mean([interval.low <= 0.3 <= interval.high for interval in found]) < 0.97


def test_one_run_has_no_interval_and_says_so():
    found = seed_interval([0.5, math.nan])
    assert (found.runs, found.mean, found.least, found.most) == (1, 0.5, 0.5, 0.5)
    assert math.isnan(found.low)
    assert math.isnan(found.high)
    assert math.isnan(found.sd)
    assert found.reason == "it is defined in 1 run; an interval needs 2"
    none = seed_interval([math.nan])
    assert (none.runs, none.reason) == (0, "it is defined in none of the runs")
    assert math.isnan(none.mean)
    with pytest.raises(AnalysisError) as caught:
        seed_interval([1.0], confidence=95)
    assert str(caught.value) == "the confidence must lie between 0 and 1; got 95."


@pytest.mark.parametrize("score", ["exact_match", "loss"])
@pytest.mark.parametrize("baseline", ["mean", "zero"])
def test_rho_by_step_is_the_mean_over_the_runs_that_have_the_step(runs, score, baseline):
    table = rho_by_step(runs, baseline, score)
    assert list(table) == ["step", "score", "runs", "mean", "sd", "low", "high", "least", "most", "reason"]
    assert table["step"].tolist() == [0, 10, 20, 30, 40]
    single = [rho_table(run, baseline, score).set_index("step")["rho"] for run in runs]
    for row in table.itertuples():
        values = [rho[row.step] for rho in single if row.step in rho.index]
        expected = seed_interval(values)
        assert (row.runs, row.reason) == (expected.runs, expected.reason)
        np.testing.assert_allclose([row.mean, row.low, row.high], [expected.mean, expected.low, expected.high])
    if score == "exact_match":
        assert table["runs"].tolist() == [2, 3, 3, 2, 1]
    assert table["reason"].tolist()[-1] == "it is defined in 1 run; an interval needs 2"


def test_rho_by_accuracy_takes_the_mean_of_a_run_first(runs):
    bins = (0.0, 0.5, 0.75, 1.0)
    table = rho_by_accuracy(runs, bins, score="loss")
    total = 0
    for low, high, row in zip(bins[:-1], bins[1:], table.itertuples(), strict=True):
        means, snapshots = [], 0
        for run in runs:
            rho = rho_table(run, score="loss").set_index("step")["rho"]
            accuracy = accuracy_table(run).set_index("step")["accuracy"]
            inside = [step for step in rho.index if low <= accuracy[step] < high or accuracy[step] == high == 1]
            snapshots += len(inside)
            means.append(np.mean([rho[step] for step in inside]) if inside else math.nan)
        expected = seed_interval(means)
        assert (row.accuracy_low, row.accuracy_high, row.score, row.snapshots) == (low, high, "loss", snapshots)
        np.testing.assert_allclose([row.mean, row.low, row.high], [expected.mean, expected.low, expected.high])
        assert (row.runs, row.reason) == (expected.runs, expected.reason)
        total += snapshots
    assert total == 12


def test_the_last_bin_holds_its_upper_edge_and_no_bin_what_lies_outside(tmp_path):
    rows = [random_arrays(np.random.default_rng(seed), 6) for seed in range(3)]
    for row, right in zip(rows, (0, 4, 8), strict=True):
        row["exact_match"] = np.arange(8) < right
    write_run(tmp_path / "a.h5", [0, 10, 20], rows, components(2, 2))
    with open_runs(tmp_path / "a.h5") as runs:
        assert rho_by_accuracy(runs, (0, 0.5, 1), score="loss")["snapshots"].tolist() == [1, 2]
        assert rho_by_accuracy(runs, (0.25, 0.5), score="loss")["snapshots"].tolist() == [1]


def test_a_run_that_was_begun_anew_counts_once_at_a_step(tmp_path):
    rows = [random_arrays(np.random.default_rng(seed), 6) for seed in range(2)]
    write_run(tmp_path / "a.h5", [10, 10], rows, components(2, 2))
    with open_runs(tmp_path / "a.h5") as runs:
        table = rho_by_step(runs)
        assert table["runs"].tolist() == [1]
        assert table["mean"].tolist() == [rho_table(runs[0])["rho"].iloc[-1]]


def test_what_does_not_fit_is_refused(tmp_path, runs):
    with pytest.raises(AnalysisError) as caught:
        rho_by_step([])
    assert str(caught.value) == "an analysis of many runs needs at least one run; got none."
    for bins in ((0.5,), (0.0, 0.0, 1.0), (1.0, 0.0)):
        with pytest.raises(AnalysisError) as caught:
            rho_by_accuracy(runs, bins)
        assert str(caught.value) == f"bins must be two or more rising edges; got {list(bins)}."
    random_run(tmp_path / "other.run", layers=1)
    with open_run(tmp_path / "other.run") as other, pytest.raises(AnalysisError) as caught:
        rho_by_step([runs[0], other])
    assert str(caught.value) == (
        f"{tmp_path / 'other.run'} has other components than {tmp_path / '0.h5'}; compare runs of the same components."
    )
