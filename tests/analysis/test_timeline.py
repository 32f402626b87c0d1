import numpy as np
import pandas as pd
import pytest

from dynamics import open_run
from dynamics.analysis import gap_table, layer_table, rank_gap, read_timeline, rho_table
from dynamics.errors import AnalysisError
from tests.analysis.runs import components, random_arrays, random_run, write_run


@pytest.fixture
def run(tmp_path):
    random_run(tmp_path / "run.h5", n_steps=4, layers=2, heads=2)
    with open_run(tmp_path / "run.h5") as run:
        yield run


def test_gap_table_equals_naive_loops(run):
    table = gap_table(run, baseline="zero", score="loss", threshold=2)
    assert list(table) == [
        "step", "component", "layer", "kind", "head", "gradient", "causal", "rank_gradient", "rank_causal", "delta",
        "role",
    ]  # fmt: skip
    assert len(table) == 4 * 6
    rows = iter(table.itertuples())
    for s, step in enumerate([0, 10, 20, 30]):
        gradient = [np.mean(run["gradient_norm"][s, i].astype(float)) for i in range(6)]
        causal = [np.mean(run["ablation_loss"][s, 1, i] - run["loss"][s].astype(float)) for i in range(6)]
        gap = rank_gap(gradient, causal)
        for i, label in enumerate(["L0H0", "L0H1", "L0MLP", "L1H0", "L1H1", "L1MLP"]):
            row = next(rows)
            assert (row.step, row.component, row.layer) == (step, label, i // 3)
            assert row.kind == ("mlp" if i % 3 == 2 else "head")
            assert row.head is pd.NA if i % 3 == 2 else row.head == i % 3
            assert row.gradient == pytest.approx(gradient[i], rel=1e-12)
            assert row.causal == pytest.approx(causal[i], rel=1e-6)
            assert (row.rank_gradient, row.rank_causal) == (gap.rank_gradient[i], gap.rank_causal[i])
            assert row.delta == gap.delta[i] == row.rank_gradient - row.rank_causal
            assert row.role == ("hero" if row.delta <= -2 else "bloat" if row.delta >= 2 else "aligned")
    assert set(table["role"]) == {"hero", "bloat", "aligned"}
    assert (table.groupby("step")["delta"].sum() == 0).all()


def test_defaults_are_the_papers(run):
    pd.testing.assert_frame_equal(gap_table(run), gap_table(run, baseline="mean", score="exact_match", threshold=2))


def test_rho_and_layers_agree_with_the_cells(run):
    timeline = read_timeline(run, score="loss", threshold=1)
    cells, rho, layers = timeline.gap_table(), timeline.rho_table(), timeline.layer_table()
    pd.testing.assert_frame_equal(rho, rho_table(run, score="loss", threshold=1))
    pd.testing.assert_frame_equal(layers, layer_table(run, score="loss", threshold=1))
    assert list(rho["step"]) == [0, 10, 20, 30]
    for row in rho.itertuples():
        of_step = cells[cells["step"] == row.step]
        assert row.rho == pytest.approx(of_step["gradient"].corr(of_step["causal"], method="spearman"), abs=1e-12)
        assert (row.heroes, row.bloats) == ((of_step["role"] == "hero").sum(), (of_step["role"] == "bloat").sum())
        # (6 - 1)(6 - 1 + 1) / (2 * 36) = 5/12 of 6 components
        assert (row.score, row.threshold, row.chance) == ("loss", 1, pytest.approx(2.5))
    assert list(zip(layers["step"], layers["layer"], strict=True)) == [
        (step, layer) for step in (0, 10, 20, 30) for layer in (0, 1)
    ]
    for row in layers.itertuples():
        of_layer = cells[(cells["step"] == row.step) & (cells["layer"] == row.layer)]
        assert (row.heroes, row.bloats) == ((of_layer["role"] == "hero").sum(), (of_layer["role"] == "bloat").sum())
        assert (row.components, row.chance) == (3, pytest.approx(1.25))


def test_no_roles_where_rho_is_undefined(tmp_path):
    """While accuracy is 0 all C are equal; a diverged model has no G. Both leave rows, and no roles."""
    rng = np.random.default_rng(1)
    untrained, trained, diverged = (random_arrays(rng, 6) for _ in range(3))
    untrained["exact_match"][:] = False
    untrained["ablation_exact_match"][:] = False
    diverged["gradient_norm"][:] = np.nan
    diverged["loss"][:] = np.nan
    path = write_run(tmp_path / "run.h5", [0, 5, 9], [untrained, trained, diverged], components(2, 2))
    with open_run(path) as run:
        by_match, by_loss = read_timeline(run), read_timeline(run, score="loss")
    assert [gap.reason for gap in by_match.gaps] == [
        "causal importance is the same for all components (0)",
        None,
        "6 of 6 values of gradient magnitude are not finite",
    ]
    cells, rho, layers = by_match.gap_table(), by_match.rho_table(), by_match.layer_table()
    assert len(cells) == 18
    assert (cells["role"] == "undefined").tolist() == [True] * 6 + [False] * 6 + [True] * 6
    # Delta is defined against a tie of all, but says nothing: it is kept, and makes no role.
    assert cells["delta"][:6].abs().max() == 2.5
    assert cells["delta"][12:].isna().all()
    assert rho["rho"].isna().tolist() == rho["heroes"].isna().tolist() == [True, False, True]
    assert layers["bloats"].isna().tolist() == [True, True, False, False, True, True]
    assert by_loss.gaps[0].reason is None
    assert by_loss.gaps[2].reason == (
        "6 of 6 values of gradient magnitude are not finite; 6 of 6 values of causal importance are not finite"
    )


def test_no_snapshots_yet(tmp_path):
    path = write_run(tmp_path / "run.h5", [], [], components(1, 1), finished=False)
    with open_run(path) as run, pytest.raises(AnalysisError) as error:
        gap_table(run)
    assert str(error.value) == f"{path} has no snapshots yet; try again once the training has taken its first."
