from __future__ import annotations

import math

import pytest

from dynamics import open_run, take_snapshot
from dynamics.analysis import rho_table
from dynamics.callbacks.gap_summary import gap_summary
from tests.callbacks.trainings import small_data, small_module, tracked


@pytest.mark.parametrize("baselines", [("mean", "zero"), ("zero", "mean")])
def test_it_is_what_the_analysis_says_of_the_first_baseline(tmp_path, baselines):
    module = small_module()
    tracked(tmp_path, module, baselines=baselines, max_steps=10, schedule=10)
    summary = gap_summary(take_snapshot(module, small_data().probe(), baselines=baselines))
    with open_run(tmp_path / "run.h5") as run:
        by_match, by_loss = (
            rho_table(run, baseline=baselines[0], score=score).iloc[-1] for score in ("exact_match", "loss")
        )
        other = rho_table(run, baseline=baselines[1], score="loss").iloc[-1]
    assert summary["rho_loss"] == by_loss["rho"] != other["rho"]
    assert summary["chance"] == pytest.approx(by_match["chance"])
    if by_match["reason"] is None:
        assert (summary["rho"], summary["heroes"], summary["bloats"]) == (
            by_match["rho"],
            by_match["heroes"],
            by_match["bloats"],
        )
    else:
        assert all(math.isnan(summary[name]) for name in ("rho", "heroes", "bloats"))


def test_without_what_it_needs_there_is_nothing_to_say():
    snapshot = take_snapshot(small_module(), small_data().probe(), measurements=("gradient_norm",))
    assert gap_summary(snapshot) == {}
