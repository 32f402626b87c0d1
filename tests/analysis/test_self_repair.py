import numpy as np
import pytest

from dynamics import open_run
from dynamics.analysis import self_repair_by_layer, self_repair_table
from dynamics.errors import AnalysisError
from tests.analysis.runs import N_EXAMPLES, components, random_arrays, write_run


def recorded(seed, listed, empty=()):
    """One snapshot with whole numbers of rows; some heads have none in any example."""
    rng = np.random.default_rng(seed)
    arrays = random_arrays(rng, len(listed))
    rows = rng.integers(0, 4, (len(listed), N_EXAMPLES)).astype(np.float32)
    means = rng.normal(0.0, 1.0, rows.shape).astype(np.float32)
    for index, component in enumerate(listed):
        rows[index] = np.nan if component.kind == "mlp" else 0 if index in empty else rows[index]
    arrays["self_repair_rows"] = rows
    arrays["self_repair_interaction"] = np.where(rows > 0, means, np.nan).astype(np.float32)
    return arrays


def test_it_equals_a_naive_loop_over_rows(tmp_path):
    listed = components(2, 2)
    snapshots = [recorded(seed, listed, empty=(1,)) for seed in range(3)]
    path = write_run(tmp_path / "run.h5", [0, 5, 10], snapshots, listed)
    with open_run(path) as run:
        table = self_repair_table(run)
    assert table["component"].tolist() == ["L0H0", "L0H1", "L1H0", "L1H1"] * 3
    assert table["layer"].tolist() == [0, 0, 1, 1] * 3
    found = table.set_index(["step", "component"])
    for step, arrays in zip((0, 5, 10), snapshots, strict=True):
        for index, component in enumerate(listed):
            if component.kind == "head":
                single = [
                    float(mean)
                    for count, mean in zip(
                        arrays["self_repair_rows"][index], arrays["self_repair_interaction"][index], strict=True
                    )
                    for _ in range(int(count))
                ]
                row = found.loc[step, component.label]
                assert row["rows"] == pytest.approx(len(single) / N_EXAMPLES)
                expected = sum(single) / len(single) if single else np.nan
                assert row["interaction"] == pytest.approx(expected, nan_ok=True)


def test_layers_sum_rows_and_weigh_interactions_by_them(tmp_path):
    listed = components(2, 2)
    arrays = recorded(0, listed, empty=(3, 4))
    arrays["self_repair_rows"][0], arrays["self_repair_rows"][1] = 1, 3
    arrays["self_repair_interaction"][0], arrays["self_repair_interaction"][1] = 2.0, -2.0
    path = write_run(tmp_path / "run.h5", [0], [arrays], listed)
    with open_run(path) as run:
        layers = self_repair_by_layer(run)
    assert layers[["step", "layer"]].values.tolist() == [[0, 0], [0, 1]]
    assert layers["rows"].tolist() == [4.0, 0.0]
    assert layers["interaction"][0] == pytest.approx((1 * 2.0 - 3 * 2.0) / 4)
    assert np.isnan(layers["interaction"][1])


def test_a_model_that_diverged_stays_unknown(tmp_path):
    listed = components(1, 2)
    arrays = recorded(0, listed)
    arrays["self_repair_rows"][:], arrays["self_repair_interaction"][:] = np.nan, np.nan
    path = write_run(tmp_path / "run.h5", [0], [arrays], listed)
    with open_run(path) as run:
        tables = self_repair_table(run), self_repair_by_layer(run)
    assert all(table[["rows", "interaction"]].isna().all(axis=None) for table in tables)


def test_a_run_without_it_is_an_error(tmp_path):
    listed = components(1, 1)
    path = write_run(tmp_path / "run.h5", [0], [random_arrays(np.random.default_rng(0), 2)], listed)
    with open_run(path) as run, pytest.raises(AnalysisError) as caught:
        self_repair_table(run)
    assert str(caught.value) == (
        f"{path} has no 'self_repair_rows', which this analysis needs; it holds ablation_exact_match, ablation_loss, "
        "exact_match, gradient_norm, loss. "
        "Track again with measurements=\"all\", or with 'self_repair' among them."
    )
