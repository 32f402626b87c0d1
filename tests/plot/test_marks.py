from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamics.plot.axes import StepAxis, columns, rows
from dynamics.plot.marks import spread
from dynamics.plot.roles_panel import RasterLayout


@given(st.lists(st.floats(0, 150), max_size=8))
def test_labels_keep_their_order_and_distance(wanted):
    places = spread(wanted, 14, 150)
    ordered = sorted(places)
    assert all(b - a >= 14 - 1e-9 for a, b in pairwise(ordered))
    assert all(-1e-9 <= place <= 150 + 1e-9 for place in places)
    for i, j in zip(*np.triu_indices(len(wanted), 1), strict=True):
        if wanted[i] != wanted[j]:
            assert (places[i] < places[j]) == (wanted[i] < wanted[j])


def test_labels_with_room_stay_where_they_belong():
    assert spread([100.0, 10.0, 50.0], 14, 150) == [100.0, 10.0, 50.0]


def layout(layers, per_layer):
    return RasterLayout(
        pd.DataFrame(
            [{"component": f"L{layer}H{i}", "layer": layer} for layer in range(layers) for i in range(per_layer)]
        )
    )


@pytest.mark.parametrize(("layers", "per_layer"), [(1, 2), (4, 5), (12, 13), (32, 5), (80, 2), (2, 200)])
def test_raster_rows_do_not_overlap_and_labels_are_legible(layers, per_layer):
    raster = layout(layers, per_layer)
    gaps = np.diff(raster.top) - raster.row
    new_layer = np.diff(raster.layers) > 0
    assert (gaps[new_layer] >= 3 - 1e-9).all()
    assert gaps[~new_layer] == pytest.approx(0)
    for texts, at_least in ((raster.component_labels(), 9.5), (raster.layer_labels(), 10)):
        assert (np.diff([text["y"] for text in texts]) >= at_least - 1e-9).all()
    if layers * per_layer <= 40:
        assert [text["text"] for text in raster.component_labels()] == raster.labels


def test_cells_end_at_the_next_snapshot():
    steps = np.array([0, 10, 20, 30, 40])
    assert StepAxis(steps, np.array([]), "linear").ends(pd.Series([0, 10, 40])).tolist() == [10, 20, 42]
    # At most as wide as the one before, and at least a step.
    close = StepAxis(np.array([0, 1000, 1001]), np.array([]), "linear")
    assert close.ends(pd.Series([1001])).tolist() == [1002]
    log = StepAxis(np.array([0, 1, 10, 100, 1000]), np.array([]), "log")
    # A twentieth of log1p(1000): 1001^(21/20) - 1
    assert log.ends(pd.Series([1000])).tolist() == [round(1001**1.05 - 1)]


@pytest.mark.parametrize(
    ("snapshots", "logged", "ticks"),
    [
        # A snapshot at step 0 alone, and one with a whole training logged beside it.
        ([0], [], [0, 1]),
        ([0], [3000], [0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000]),
        ([500], [], [500, 501]),
        ([0, 50, 100, 1500], [], [0, 50, 100, 200, 500, 1000]),
        (range(0, 4001, 250), [], [0, 500, 1000, 2000]),
        # Where decades are close, only they are named.
        ([0, 1, 10, 10**5], [], [0, 1, 10, 100, 1000, 10**4, 10**5]),
        # Nearly linear all along: as many round steps as a linear axis has.
        ([0, 1000, 1010, 1020, 1100], [], None),
        (range(5000, 6001, 100), [], None),
    ],
)
def test_ticks_of_a_logarithmic_axis(snapshots, logged, ticks):
    axis = StepAxis(np.array(snapshots), np.array(logged, dtype=int), "log")
    drawn = axis.x().to_dict()
    assert drawn["scale"]["type"] == "symlog"
    # Linear up to the first snapshot after step 0, which so has a place.
    assert drawn["scale"]["constant"] == axis.unit == min([step for step in snapshots if step > 0], default=1)
    assert drawn["axis"].get("values") == ticks
    assert drawn["axis"].get("tickCount") == (8 if ticks is None else None)


def test_a_linear_axis_is_linear():
    assert StepAxis(np.array([0, 10]), np.array([]), "linear").x().to_dict()["scale"]["type"] == "linear"


def test_tables_in_json():
    table = pd.DataFrame(
        {"a": [1.23456789, np.nan, np.inf], "b": pd.array([1, None, 3], dtype="Int64"), "c": ["x", None, "z"]}
    )
    assert columns(table) == [{"a": [1.2346, None, None], "b": [1, None, 3], "c": ["x", None, "z"]}]
    assert rows(table)[1:] == [{"a": None, "b": None, "c": None}, {"a": None, "b": 3, "c": "z"}]
