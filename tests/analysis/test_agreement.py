import numpy as np
import pytest
from scipy.stats import spearmanr

from dynamics import open_run
from dynamics.analysis import agreement_table, recorded_measures, rho_table
from dynamics.errors import AnalysisError
from tests.analysis.runs import components, random_arrays, random_run, write_run

METHODS = ("gradient", "gim", "ig")
MEASURES = ["gradient_norm", "|gradient|", "gradient", "|gim|", "gim", "|ig|", "ig"]


@pytest.mark.parametrize("baseline", ["mean", "zero"])
@pytest.mark.parametrize("score", ["exact_match", "loss"])
def test_it_equals_a_naive_loop(tmp_path, baseline, score):
    rows = random_run(tmp_path / "run.h5", layers=3, methods=METHODS)
    with open_run(tmp_path / "run.h5") as run:
        table = agreement_table(run, baseline, score)
    assert list(table) == ["step", "score", "measure", "rho", "p_value", "reason"]
    assert table["measure"].unique().tolist() == MEASURES
    assert (table["score"] == score).all()
    found = table.set_index(["step", "measure"])["rho"]
    sign = {"exact_match": 1, "loss": -1}[score]
    for step, row in enumerate(rows):
        ablated = row[f"ablation_{score}"][["mean", "zero"].index(baseline)].astype(float)
        causal = [sign * (np.mean(row[score].astype(float)) - np.mean(values)) for values in ablated]
        causal = np.round(causal, 12)
        assert found[10 * step, "gradient_norm"] == pytest.approx(spearmanr(row["gradient_norm"].mean(-1), causal)[0])
        for m, method in enumerate(METHODS):
            mean = np.array([np.mean(values.astype(float)) for values in row["attribution"][m]])
            assert found[10 * step, method] == pytest.approx(spearmanr(mean, causal)[0])
            assert found[10 * step, f"|{method}|"] == pytest.approx(spearmanr(abs(mean), causal)[0])


def test_gradient_magnitude_gives_the_rho_of_the_gap(tmp_path):
    random_run(tmp_path / "run.h5", methods=METHODS)
    with open_run(tmp_path / "run.h5") as run:
        table, gaps = agreement_table(run, score="loss"), rho_table(run, score="loss")
    ours = table[table["measure"] == "gradient_norm"]
    assert ours["rho"].tolist() == gaps["rho"].tolist()
    assert ours["p_value"].tolist() == gaps["p_value"].tolist()


def test_a_sign_counts_and_its_absence_too(tmp_path):
    listed = components(2, 2)
    arrays = random_arrays(np.random.default_rng(0), 6, 1)
    gained = np.array([0.0, 1.0, 2.0, 3.0, 4.0, 5.0])
    arrays["loss"][:] = 1.0
    arrays["ablation_loss"][0] = 1.0 + gained[:, None]
    arrays["attribution"][0] = -gained[:, None]
    path = write_run(tmp_path / "run.h5", [0], [arrays], listed)
    with open_run(path) as run:
        rho = agreement_table(run, score="loss").set_index("measure")["rho"]
    assert rho["gradient"] == pytest.approx(-1)
    assert rho["|gradient|"] == pytest.approx(1)


def test_the_mean_over_examples_comes_before_the_absolute_value(tmp_path):
    arrays = random_arrays(np.random.default_rng(0), 2, 1)
    arrays["attribution"][0] = [[3.0, -3.0] * 4, [1.0, 0.0] * 4]
    path = write_run(tmp_path / "run.h5", [0], [arrays], components(1, 1))
    with open_run(path) as run:
        assert recorded_measures(run)["|gradient|"].tolist() == [[0.0, 0.5]]


def test_why_a_rho_is_missing_is_said_by_name(tmp_path):
    arrays = random_arrays(np.random.default_rng(0), 6, 2)
    arrays["attribution"][0] = 0.25
    arrays["attribution"][1, 3] = np.nan
    path = write_run(tmp_path / "run.h5", [0], [arrays], components(2, 2), methods=("gradient", "gim"))
    with open_run(path) as run:
        reason = agreement_table(run, score="loss").set_index("measure")["reason"]
    assert reason["gradient_norm"] is None
    assert reason["|gradient|"] == "|gradient| is the same for all components (0.25)"
    assert reason["gim"] == "1 of 6 values of gim are not finite"


def test_a_run_without_attributions_has_gradient_magnitude_alone(tmp_path):
    random_run(tmp_path / "run.h5")
    with open_run(tmp_path / "run.h5") as run:
        assert agreement_table(run)["measure"].unique().tolist() == ["gradient_norm"]
        with pytest.raises(AnalysisError) as caught:
            agreement_table(run, "median")
    assert str(caught.value).endswith("holds no ablations to the baseline 'median'; choose among mean, zero.")
