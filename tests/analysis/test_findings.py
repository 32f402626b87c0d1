"""Findings hold what the functions return that the tables are named after, from one reading of the file."""

from collections import Counter

import numpy as np
import pandas as pd
import pytest

from dynamics import open_run
from dynamics.analysis import (
    Findings,
    ScoreFindings,
    ablation_agreement_table,
    accuracy_table,
    agreement_uncertainty_table,
    depth_share_table,
    depth_table,
    emergence_by_layer,
    gap_table,
    grokking_report,
    read_timeline,
    read_uncertainty,
    rho_table,
    role_count_table,
    role_episodes,
    role_probability_table,
    stable_role_table,
    synergy_table,
    threshold_table,
    turnover_table,
    uncertainty_table,
)
from dynamics.errors import AnalysisError
from dynamics.store.reader import RunGroup
from tests.analysis.runs import components, random_arrays, random_run, random_synergy, write_run

RESAMPLES = 200
METRICS = [(step, {"train/exact_match": step / 50, "ood/exact_match": step / 80}) for step in range(0, 60, 5)]


@pytest.fixture(params=[("mean", None), ("zero", 1.5)])
def found(request, tmp_path):
    baseline, threshold = request.param
    random_run(tmp_path / "run.h5", n_steps=6, methods=("gradient", "gim"), metrics=METRICS)
    with open_run(tmp_path / "run.h5") as run:
        yield Findings(run, baseline, threshold)


@pytest.mark.parametrize("score", ["exact_match", "loss"])
def test_of_a_score_they_are_what_the_functions_return(found, score):
    run, baseline, threshold, of_score = found.run, found.baseline, found.threshold, found.by[score]
    timeline = read_timeline(run, baseline, score, threshold)
    uncertainty = read_uncertainty(run, baseline, score, threshold, resamples=RESAMPLES)
    np.testing.assert_array_equal(of_score.uncertainty.rho_resamples, uncertainty.rho_resamples)
    likelihood = role_probability_table(run, baseline, score, threshold, resamples=RESAMPLES)
    hero, bloat = (likelihood[name].to_numpy().reshape(timeline.roles.shape) for name in ("p_hero", "p_bloat"))
    episodes = role_episodes(timeline, probability={"hero": hero, "bloat": bloat, "aligned": 1 - hero - bloat})
    counts = role_count_table(run, baseline, score, threshold, permutations=RESAMPLES)
    expected = {
        "role_probability": likelihood,
        "counts": counts,
        "depth": depth_table(run, baseline, score, resamples=RESAMPLES),
        "depth_share": depth_share_table(run, baseline, score, resamples=RESAMPLES),
        "episodes": episodes,
        "emergence": emergence_by_layer(timeline, episodes),
        "turnover": turnover_table(timeline),
        "stability": stable_role_table(timeline),
        "thresholds": threshold_table(timeline),
    }
    for name, table in expected.items():
        pd.testing.assert_frame_equal(getattr(of_score, name), table, obj=name)
    pd.testing.assert_frame_equal(of_score.timeline.gap_table(), gap_table(run, baseline, score, threshold))
    plain, intervals = (
        rho_table(run, baseline, score, threshold),
        uncertainty_table(run, baseline, score, resamples=200),
    )
    pd.testing.assert_frame_equal(of_score.rho[list(plain)], plain)
    same = ["low", "high", "bias", "defined", "null_low", "null_high", "p_null", "ties", "indistinguishable"]
    pd.testing.assert_frame_equal(of_score.rho[same], intervals[same])


def test_of_a_run_they_are_what_the_functions_return(found):
    run, by_loss = found.run, read_uncertainty(found.run, found.baseline, "loss", found.threshold, resamples=RESAMPLES)
    agreement = agreement_uncertainty_table(run, found.baseline, resamples=RESAMPLES)
    pd.testing.assert_frame_equal(found.agreement, agreement)
    pd.testing.assert_frame_equal(found.ablation_agreement, ablation_agreement_table(run, resamples=RESAMPLES))
    pd.testing.assert_frame_equal(found.accuracy, accuracy_table(run))
    timeline = read_timeline(run, found.baseline, "loss", found.threshold)
    report = grokking_report(run, timeline=timeline, rho_samples=by_loss.rho_resamples.T)
    assert found.grokking.text() == report.text()
    pd.testing.assert_frame_equal(found.grokking.events, report.events)
    assert found.synergy is None


def test_synergy_is_there_where_it_was_recorded(tmp_path):
    rng, listed = np.random.default_rng(0), components(2, 2)
    sets, joint = random_synergy({"bloats": [0, 1], "heroes": [4]}, 6)
    path = write_run(tmp_path / "run.h5", [0], [random_arrays(rng, 6)], listed, sets=sets, joint=[(0, joint)])
    with open_run(path) as run:
        pd.testing.assert_frame_equal(Findings(run).synergy, synergy_table(run))


def test_every_array_of_the_ablations_is_read_once(tmp_path, monkeypatch):
    """They are nearly all of a run file: to read them for each table would be most of the time of a report."""
    random_run(tmp_path / "run.h5", n_steps=4, methods=("gradient",))
    read = Counter()
    rows, item = RunGroup.rows, RunGroup.__getitem__
    monkeypatch.setattr(RunGroup, "rows", lambda self, name: read.update([name]) or rows(self, name))
    monkeypatch.setattr(RunGroup, "__getitem__", lambda self, name: read.update([name]) or item(self, name))
    with open_run(tmp_path / "run.h5") as run:
        found = Findings(run)
        for of_score in found.by.values():
            for name in ("rho", "counts", "depth", "depth_share", "episodes", "emergence", "turnover", "thresholds"):
                getattr(of_score, name)
        _ = found.agreement, found.ablation_agreement, found.grokking
    large = {name: count for name, count in read.items() if name.startswith(("ablation", "attribution"))}
    assert large == {"ablation_exact_match": 1, "ablation_loss": 1, "attribution": 1}


def test_a_run_with_one_baseline_has_no_agreement_of_two(tmp_path, monkeypatch):
    random_run(tmp_path / "run.h5")
    with open_run(tmp_path / "run.h5") as run:
        monkeypatch.setattr(type(run), "baselines", ("mean",))
        assert Findings(run).ablation_agreement is None


def test_an_unknown_score_is_refused(tmp_path):
    random_run(tmp_path / "run.h5")
    with open_run(tmp_path / "run.h5") as run, pytest.raises(AnalysisError) as error:
        ScoreFindings(run, score="accuracy")
    assert str(error.value) == "the score must be one of exact_match, loss; got 'accuracy'."
