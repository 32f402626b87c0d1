import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamics import open_run
from dynamics.analysis import (
    in_window,
    probe_accuracy,
    read_timeline,
    select_snapshots,
    snapshots_in_window,
    window_bounds,
)
from dynamics.errors import AnalysisError
from tests.analysis.runs import components, random_run, write_run


@given(st.lists(st.floats(0, 1) | st.sampled_from([0.2, 0.75, np.nan])))
def test_bounds_belong_to_a_window(values):
    assert in_window(values).tolist() == [0.20 <= value <= 0.75 for value in values]
    assert in_window(values, (0.5, 0.5)).tolist() == [value == 0.5 for value in values]
    assert in_window(values, "all").tolist() == [value == value for value in values]


def test_snapshots_by_the_accuracy_of_the_probe(tmp_path):
    rows = random_run(tmp_path / "any.h5", n_steps=4)
    for right, arrays in zip((1, 2, 6, 7), rows, strict=True):
        arrays["exact_match"] = np.arange(8) < right
    path = write_run(tmp_path / "run.h5", [0, 10, 20, 30], rows, components(2, 2))
    with open_run(path) as run:
        assert probe_accuracy(run).tolist() == [0.125, 0.25, 0.75, 0.875]
        inside = snapshots_in_window(run)
        whole = read_timeline(run, score="loss")
    assert inside.tolist() == [False, True, True, False]
    part = select_snapshots(whole, inside)
    assert part.steps.tolist() == [10, 20]
    assert (part.roles == whole.roles[1:3]).all()
    assert part.gaps == whole.gaps[1:3]
    pd.testing.assert_frame_equal(part.gap_table(), whole.gap_table().iloc[6:18].reset_index(drop=True))
    for wrong, message in [
        (
            np.zeros(4, bool),
            "no snapshot is chosen, of 4 from step 0 to 30; choose a wider window.",
        ),
        (
            [0, 1, 1, 0],
            "chosen must be (step,) and bool, one for each of 4 snapshots; got (4,) of int64.",
        ),
    ]:
        with pytest.raises(AnalysisError) as caught:
            select_snapshots(whole, wrong)
        assert str(caught.value) == message


def test_a_run_without_snapshots(tmp_path):
    path = write_run(tmp_path / "run.h5", [], [], components(1, 1))
    with open_run(path) as run:
        assert snapshots_in_window(run).tolist() == []


@pytest.mark.parametrize(
    ("window", "message"),
    [
        ("papers", "the window must be one of paper, all, or two shares such as (0.2, 0.75); got 'papers'."),
        ((20, 75), "a window needs 0 <= low <= high <= 1; got (20, 75)."),
    ],
)
def test_unknown_windows(window, message):
    with pytest.raises(AnalysisError) as caught:
        window_bounds(window)
    assert str(caught.value) == message
