import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dynamics import open_run
from dynamics.analysis import faithfulness_curve, faithfulness_curves, faithfulness_table
from dynamics.errors import AnalysisError
from tests.analysis.runs import random_faithfulness, random_run
from tests.cases import AND_PAIR, DEAD_AND_CRITICAL, REDUNDANT

LOSSES = arrays(float, st.tuples(st.integers(2, 8), st.integers(1, 4)), elements=st.floats(0, 8, width=32))


def planted(case, order, score):
    """Return the closed form's scores for every number of components kept; component 4 is an MLP that does nothing."""
    compute = case.loss if score == "loss" else case.exact_match
    return np.stack([compute([head for head in order[k:] if head < 4]) for k in range(6)])


HALF = "what one head of the pair brings back alone"


@pytest.mark.parametrize("score", ["loss", "exact_match"])
@pytest.mark.parametrize(
    ("case", "order", "f"),
    [
        (DEAD_AND_CRITICAL, [0, 1, 2, 3, 4], [0, 1, 1, 1, 1, 1]),
        (DEAD_AND_CRITICAL, [1, 0, 2, 3, 4], [0, 0, 1, 1, 1, 1]),
        (DEAD_AND_CRITICAL, [4, 3, 2, 1, 0], [0, 0, 0, 0, 0, 1]),
        (REDUNDANT, [2, 1, 0, 3, 4], [0, 0, HALF, 1, 1, 1]),
        (REDUNDANT, [0, 2, 3, 4, 1], [0, HALF, HALF, HALF, HALF, 1]),
        (AND_PAIR, [1, 0, 2, 3, 4], [0, HALF, 1, 1, 1, 1]),
        (AND_PAIR, [0, 2, 1, 3, 4], [0, HALF, HALF, 1, 1, 1]),
    ],
)
def test_planted_models_have_the_areas_of_the_closed_form(case, order, f, score):
    # By accuracy one head of the pair brings back all of it or nothing; by loss, a part.
    half = {REDUNDANT: 1.0, AND_PAIR: 0.0}.get(case)
    if score == "loss":
        both, one, none = (case.loss(gone).mean() for gone in ([0, 1], [0], []))
        half = (both - one) / (both - none)
    expected = np.array([half if value is HALF else value for value in f], dtype=float)
    curve = faithfulness_curve(planted(case, order, score), score)
    np.testing.assert_allclose(curve.values, expected, atol=1e-9)
    # Trapezoids of width 1/5: inner points count whole, f(0) = 0 and f(5) = 1 half.
    assert curve.cpr == pytest.approx((expected[1:-1].sum() + 0.5) / 5, rel=1e-9)
    assert curve.cmd == pytest.approx(((1 - expected[1:-1]).sum() + 0.5) / 5, rel=1e-9)
    assert curve.reason is None


def test_a_curve_worked_out_by_hand():
    """Losses 4, 1, 0, 2 with 0 .. 3 kept: f = 0, 3/2, 2, 1, beyond 1 where a harmful component is missing."""
    curve = faithfulness_curve(np.array([[5.0, 3.0], [1.0, 1.0], [0.0, 0.0], [2.0, 2.0]]))
    assert curve.values.tolist() == [0, 1.5, 2, 1]
    assert curve.cpr == pytest.approx((0.75 + 1.75 + 1.5) / 3)
    assert curve.cmd == pytest.approx((0.75 + 0.75 + 0.5) / 3)
    assert (curve.full, curve.empty) == (-2, -4)


@given(LOSSES, st.floats(0.125, 8), st.floats(-4, 4))
def test_it_starts_at_0_ends_at_1_and_knows_no_unit(losses, scale, shift):
    curve = faithfulness_curve(losses)
    if curve.reason is not None or abs(curve.full - curve.empty) < 1e-2:
        return
    assert (curve.values[0], curve.values[-1]) == (0, 1)
    moved = faithfulness_curve(scale * losses + shift)
    np.testing.assert_allclose(moved.values, curve.values, atol=1e-9)
    assert moved.cpr == pytest.approx(curve.cpr, abs=1e-9)
    assert moved.cmd == pytest.approx(curve.cmd, abs=1e-9)
    # |1 - f| >= 1 - f, and equal where f never exceeds 1.
    assert curve.cmd >= 1 - curve.cpr - 1e-9
    if (curve.values <= 1).all():
        assert curve.cmd == pytest.approx(1 - curve.cpr, abs=1e-9)


@given(LOSSES)
def test_the_order_of_examples_does_not_matter(losses):
    first, turned = faithfulness_curve(losses), faithfulness_curve(losses[:, ::-1])
    if abs(first.full - first.empty) > 1e-2:
        np.testing.assert_allclose(first.values, turned.values, atol=1e-9)


def test_why_it_is_undefined_is_said():
    same = faithfulness_curve(np.array([[1.0, 3.0], [0.0, 0.0], [3.0, 1.0]]))
    assert same.reason == "the whole model scores the same as with no component kept (-2)"
    never = faithfulness_curve(np.zeros((4, 3), bool), "exact_match")
    assert never.reason == "the whole model scores the same as with no component kept (0)"
    broken = faithfulness_curve(np.array([[1.0], [np.nan], [np.inf], [2.0]]))
    assert broken.reason == "the mean loss is not finite for 2 of 4 numbers of components"
    for curve in (same, never, broken):
        assert np.isnan(curve.values).all()
        assert math.isnan(curve.cpr)
        assert math.isnan(curve.cmd)


@pytest.mark.parametrize("shape", [(3,), (1, 4), (3, 0)])
def test_arrays_of_another_shape_are_refused(shape):
    with pytest.raises(AnalysisError) as caught:
        faithfulness_curve(np.zeros(shape))
    assert str(caught.value) == (f"kept must be (kept, example), with at least 2 rows and an example; got {shape}.")


@pytest.mark.parametrize("score", ["loss", "exact_match"])
def test_the_tables_hold_every_step_and_ranking(tmp_path, score):
    kept = random_faithfulness(6, 2, 2)
    rows = list(zip([10, 20], kept, strict=True))
    random_run(tmp_path / "run.h5", n_steps=3, rankings=("gradient_norm", "random"), faithful=rows)
    with open_run(tmp_path / "run.h5") as run:
        table, curves = faithfulness_table(run, score), faithfulness_curves(run, score)
        assert run.faithfulness.steps.tolist() == [10, 20]
    assert list(table) == ["step", "ranking", "score", "cpr", "cmd", "full", "empty", "reason"]
    assert list(zip(table["step"], table["ranking"], strict=True)) == [
        (10, "gradient_norm"), (10, "random"), (20, "gradient_norm"), (20, "random")
    ]  # fmt: skip
    assert set(table["score"]) == {score}
    found = iter(table.itertuples())
    for row_of_step in kept:
        for values in row_of_step[f"kept_{score}"]:
            curve, row = faithfulness_curve(values, score), next(found)
            assert (row.cpr, row.cmd, row.full, row.empty) == (curve.cpr, curve.cmd, curve.full, curve.empty)
    assert len(curves) == 2 * 2 * 7
    last = curves[(curves["step"] == 20) & (curves["ranking"] == "random")]
    assert last["kept"].tolist() == list(range(7))
    np.testing.assert_array_equal(last["faithfulness"], faithfulness_curve(values, score).values)


def test_a_run_that_has_no_rows_yet_gives_empty_tables(tmp_path):
    random_run(tmp_path / "run.h5", n_steps=1, rankings=("random",))
    with open_run(tmp_path / "run.h5") as run:
        assert len(faithfulness_table(run)) == len(faithfulness_curves(run)) == 0


def test_a_run_without_faithfulness_is_refused(tmp_path):
    random_run(tmp_path / "run.h5")
    with open_run(tmp_path / "run.h5") as run:
        assert run.faithfulness is None
        with pytest.raises(AnalysisError) as caught:
            faithfulness_table(run)
    assert str(caught.value) == (
        f"{tmp_path / 'run.h5'} has no faithfulness: it was tracked with faithfulness=None, or by an earlier version. "
        "Track again with a schedule, such as faithfulness=5000."
    )
