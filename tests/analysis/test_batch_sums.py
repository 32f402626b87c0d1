import numpy as np
import pytest

from dynamics import open_run
from dynamics.analysis import read_batch_sums
from dynamics.analysis.importance import recorded_importance
from dynamics.errors import AnalysisError
from tests.analysis.runs import components, random_run, write_run


@pytest.mark.parametrize("baseline", ["mean", "zero"])
@pytest.mark.parametrize("score", ["exact_match", "loss"])
def test_sums_equal_a_loop_and_means_are_those_of_the_timeline(tmp_path, baseline, score):
    rows = random_run(tmp_path / "run.h5")
    with open_run(tmp_path / "run.h5") as run:
        sums = read_batch_sums(run, baseline, score)
        gradient, causal = recorded_importance(run, baseline, score)
    assert (sums.gradient == gradient).all()
    assert (sums.causal == causal).all()
    # Batches of 4, 2 and 2 examples.
    assert sums.sizes.tolist() == [4, 2, 2]
    sign = {"exact_match": 1, "loss": -1}[score]
    for row, arrays in enumerate(rows):
        assert (sums.gradient_norm[row] == arrays["gradient_norm"]).all()
        ablated = arrays[f"ablation_{score}"][["mean", "zero"].index(baseline)].astype(float)
        for batch, part in enumerate([slice(0, 4), slice(4, 6), slice(6, 8)]):
            for i in range(6):
                expected = sum(sign * (arrays[score][part].astype(float) - ablated[i, part]))
                assert sums.gains[row, i, batch] == pytest.approx(expected, abs=1e-12)


def test_a_resample_takes_gradient_and_cause_from_the_same_batches(tmp_path):
    random_run(tmp_path / "run.h5", n_steps=1)
    with open_run(tmp_path / "run.h5") as run:
        sums = read_batch_sums(run, score="loss")
    gradient, causal = sums.resample(0, np.array([[1.0, 1, 1], [0, 3, 0], [2, 0, 1]]))
    assert gradient[0] == pytest.approx(sums.gradient[0])
    assert causal[0] == pytest.approx(sums.causal[0])
    assert gradient[1] == pytest.approx(sums.gradient_norm[0, :, 1])
    assert causal[1] == pytest.approx(sums.gains[0, :, 1] / 2)
    # The larger batch has more examples, and so more weight, but not more of a say in G, a mean over batches.
    assert gradient[2] == pytest.approx((2 * sums.gradient_norm[0, :, 0] + sums.gradient_norm[0, :, 2]) / 3)
    assert causal[2] == pytest.approx((2 * sums.gains[0, :, 0] + sums.gains[0, :, 2]) / 10)


def test_a_run_without_snapshots_or_without_the_baseline(tmp_path):
    path = write_run(tmp_path / "empty.h5", [], [], components(1, 1), finished=False)
    with open_run(path) as run, pytest.raises(AnalysisError) as caught:
        read_batch_sums(run)
    assert str(caught.value) == f"{path} has no snapshots yet; try again once the training has taken its first."
    random_run(tmp_path / "run.h5")
    with open_run(tmp_path / "run.h5") as run, pytest.raises(AnalysisError) as caught:
        read_batch_sums(run, "median")
    assert str(caught.value) == (
        f"{tmp_path / 'run.h5'} holds no ablations to the baseline 'median'; choose among mean, zero."
    )


def test_examples_out_of_order_are_refused(tmp_path, monkeypatch):
    random_run(tmp_path / "run.h5")
    with open_run(tmp_path / "run.h5") as run:
        labels = run.snapshots.labels
        mixed = np.array([0, 1, 0, 0, 0, 1, 2, 2])
        monkeypatch.setattr(run.snapshots, "labels", lambda axis: mixed if axis == "example_batch" else labels(axis))
        with pytest.raises(AnalysisError) as caught:
            read_batch_sums(run)
    assert str(caught.value) == (
        f"{tmp_path / 'run.h5'} must list its examples batch by batch, at least one for each of 3 batches, to be "
        "resampled; its 'example_batch' is [0, 1, 0, 0, 0, 1, 2, 2]."
    )
