import numpy as np
import pandas as pd
import pytest

from dynamics import open_run
from dynamics.analysis import attribution_table, mean_attribution, signed_share
from dynamics.errors import AnalysisError
from tests.analysis.runs import random_run


def test_the_table_is_what_a_loop_over_the_arrays_gives(tmp_path):
    rows = random_run(tmp_path / "run.h5", n_steps=3, methods=("gradient", "gim"))
    expected = []
    with open_run(tmp_path / "run.h5") as run:
        table = attribution_table(run)
        for place, method in enumerate(("gradient", "gim")):
            for step, row in zip((0, 10, 20), rows, strict=True):
                means = [sum(map(float, values)) / len(values) for values in row["attribution"][place]]
                total = sum(abs(mean) for mean in means)
                for component, mean in zip(run.components, means, strict=True):
                    names = (component.label, component.layer, component.kind)
                    expected.append((step, method, *names, mean, mean / total))
    columns = ["step", "method", "component", "layer", "kind", "attribution", "share"]
    pd.testing.assert_frame_equal(table, pd.DataFrame(expected, columns=columns), check_dtype=False, rtol=1e-12)


def test_means_are_kept_by_method(tmp_path):
    rows = random_run(tmp_path / "run.h5", n_steps=2, methods=("gim", "ig"))
    with open_run(tmp_path / "run.h5") as run:
        means = mean_attribution(run)
    assert list(means) == ["gim", "ig"]
    np.testing.assert_allclose(means["ig"][1], rows[1]["attribution"][1].astype(float).mean(-1), rtol=1e-12)


def test_shares_keep_the_sign_and_sum_to_one():
    values = np.array([[2.0, -1.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0], [1.0, np.nan, 2.0, 3.0], [1.0, np.inf, 2.0, 3.0]])
    shares = signed_share(values)
    assert shares[0].tolist() == [0.5, -0.25, 0.0, 0.25]
    assert np.isnan(shares[1:]).all()


def test_a_run_without_attributions_is_refused(tmp_path):
    random_run(tmp_path / "run.h5", n_steps=1)
    with open_run(tmp_path / "run.h5") as run, pytest.raises(AnalysisError) as error:
        attribution_table(run)
    assert str(error.value) == (
        f"{tmp_path / 'run.h5'} has no 'attribution', which this analysis needs; it holds ablation_exact_match, "
        "ablation_loss, exact_match, gradient_norm, loss. Track again with measurements=\"all\", or with 'attribution' "
        "among them."
    )
