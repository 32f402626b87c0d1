import numpy as np
import pytest
from scipy.stats import spearmanr

from dynamics import open_run
from dynamics.analysis import (
    Resampling,
    ablation_agreement_table,
    agreement_table,
    agreement_uncertainty_table,
    uncertainty_table,
)
from dynamics.errors import AnalysisError
from tests.analysis.runs import components, random_arrays, random_run, write_run

METHODS = ("gradient", "gim")
MEASURES = ["gradient_norm", "|gradient|", "gradient", "|gim|", "gim"]
COLUMNS = ["rho", "low", "high", "bias", "null_low", "null_high", "p_value"]
PARTS = (slice(0, 4), slice(4, 6), slice(6, 8))


def test_rho_is_that_of_the_plain_table_for_every_baseline_and_score(tmp_path):
    random_run(tmp_path / "run.h5", methods=METHODS)
    with open_run(tmp_path / "run.h5") as run:
        table = agreement_uncertainty_table(run, resamples=20)
        assert list(table) == ["step", "baseline", "score", "measure", *COLUMNS, "reason"]
        assert len(table) == 2 * 2 * 5 * 4
        for (baseline, score), rows in table.groupby(["baseline", "score"]):
            plain = agreement_table(run, baseline, score)
            assert rows["measure"].tolist() == plain["measure"].tolist()
            assert rows["step"].tolist() == plain["step"].tolist()
            assert rows["rho"].tolist() == plain["rho"].tolist()
            alone = agreement_uncertainty_table(run, baseline, score, resamples=20)
            assert rows[COLUMNS].to_numpy().tolist() == alone[COLUMNS].to_numpy().tolist()
    assert table["measure"].unique().tolist() == MEASURES
    assert table["reason"].tolist() == [None] * 80


def test_of_gradient_magnitude_it_is_the_uncertainty_of_the_gap(tmp_path):
    random_run(tmp_path / "run.h5")
    with open_run(tmp_path / "run.h5") as run:
        ours = agreement_uncertainty_table(run, "zero", "loss", resamples=50, seed=2)
        gaps = uncertainty_table(run, "zero", "loss", resamples=50, seed=2)
    for column in COLUMNS[:-1]:
        assert ours[column].tolist() == pytest.approx(gaps[column].tolist(), abs=1e-12)
    assert ours["p_value"].tolist() == gaps["p_null"].tolist()


def test_intervals_equal_a_loop_over_resamples(tmp_path):
    """Attributions and causes from the examples of the same batches, absolute values after the mean."""
    (arrays,) = random_run(tmp_path / "run.h5", n_steps=1, methods=METHODS)
    with open_run(tmp_path / "run.h5") as run:
        table = agreement_uncertainty_table(run, "zero", "loss", level=0.8, resamples=40).set_index("measure")
    signed, sizes = [], []
    for counts in Resampling(resamples=40).counts(3):
        drawn = np.concatenate(
            [np.arange(8)[part] for part, n in zip(PARTS, counts, strict=True) for _ in range(int(n))]
        )
        causal = (arrays["ablation_loss"][1][:, drawn].astype(float) - arrays["loss"][drawn]).mean(1)
        mean = arrays["attribution"][1][:, drawn].astype(float).mean(1)
        signed.append(spearmanr(mean, causal).statistic)
        sizes.append(spearmanr(np.abs(mean), causal).statistic)
    for measure, values in (("gim", signed), ("|gim|", sizes)):
        row = table.loc[measure]
        low, high = np.quantile(values, [0.1, 0.9])
        bias = np.mean(values) - row["rho"]
        assert row["bias"] == pytest.approx(bias)
        assert row["low"] == pytest.approx(max(-1, min(low, low - 2 * bias)))
        assert row["high"] == pytest.approx(min(1, max(high, high - 2 * bias)))


def test_mean_and_zero_ablation_are_compared(tmp_path):
    rows = random_run(tmp_path / "run.h5", layers=4)
    rows[0]["ablation_loss"][1] = rows[0]["ablation_loss"][0]
    with open_run(write_run(tmp_path / "same.h5", [0], rows[:1], components(4, 2))) as run:
        same = ablation_agreement_table(run, "loss", resamples=50)
    assert same[["rho", "low", "high"]].to_numpy().tolist() == [pytest.approx([1, 1, 1])]
    assert same["p_value"][0] < 0.05
    with open_run(tmp_path / "run.h5") as run:
        table = ablation_agreement_table(run, resamples=50)
    assert list(table) == ["step", "score", *COLUMNS, "reason"]
    assert table["score"].tolist() == ["exact_match"] * 4 + ["loss"] * 4
    for row in table[table["score"] == "loss"].itertuples():
        if row.step:
            arrays = rows[row.step // 10]
            means = (arrays["ablation_loss"].astype(float) - arrays["loss"]).mean(-1)
            assert row.rho == pytest.approx(spearmanr(*means).statistic)
            assert row.low <= row.rho <= row.high


def test_why_a_number_is_missing(tmp_path):
    arrays = random_arrays(np.random.default_rng(0), 6, 2)
    arrays["attribution"][0] = 0.25
    arrays["attribution"][1, 3] = np.nan
    arrays["exact_match"][:] = arrays["ablation_exact_match"][:] = False
    path = write_run(tmp_path / "run.h5", [0], [arrays], components(2, 2), methods=METHODS)
    with open_run(path) as run:
        reason = agreement_uncertainty_table(run, "mean", "loss", resamples=10).set_index("measure")["reason"]
        ablations = ablation_agreement_table(run, "exact_match", resamples=10)
    assert reason["gradient_norm"] is None
    assert reason["|gradient|"] == "|gradient| is the same for all components (0.25)"
    assert reason["gim"] == "1 of 6 values of gim are not finite"
    assert ablations["reason"].tolist() == [
        "causal importance by mean ablation is the same for all components (0); "
        "causal importance by zero ablation is the same for all components (0)"
    ]


def test_arguments_out_of_range(tmp_path):
    random_run(tmp_path / "run.h5")
    with open_run(tmp_path / "run.h5") as run:
        with pytest.raises(AnalysisError) as caught:
            agreement_uncertainty_table(run, "median")
        assert str(caught.value).endswith("holds no ablations to the baseline 'median'; choose among mean, zero.")
        with pytest.raises(AnalysisError) as caught:
            ablation_agreement_table(run, "accuracy")
        assert str(caught.value) == "the score must be one of exact_match, loss; got 'accuracy'."
