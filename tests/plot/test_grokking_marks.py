"""The marks of t_mem and t_gen below the accuracy, and what is said of them."""

import numpy as np
import pytest

from dynamics import open_run
from dynamics.plot import Tables, draw_run, figure
from dynamics.plot.grokking_marks import LANE
from dynamics.plot.palette import GREEN, INK, MUTED
from tests.analysis.runs import components, random_arrays, write_run
from tests.plot.svg import lines, places

DIAMOND, HALF = "M-3.391,0L0,-3.391", LANE / 2
FIRST = 150 + 6 + HALF
"""The middle of the first lane."""


def run_with(path, n_steps=3, metadata=None, **curves):
    """A run whose probe never gets better, with accuracies at every step from 0 to 40."""
    rng = np.random.default_rng(0)
    rows = [random_arrays(rng, 6) | {"exact_match": np.zeros(8, bool)} for _ in range(n_steps)]
    series = {name.replace("_", "/", 1): values for name, values in curves.items()}
    metrics = [(step, {name: float(values[step]) for name, values in series.items()}) for step in range(41)]
    steps = [20 * row for row in range(n_steps)]
    return write_run(path, steps, rows, components(2, 2), metrics=metrics, metadata=metadata)


def rise(at):
    """An accuracy of 0, and of 1 from a step on."""
    return (np.arange(41) >= at) * 1.0


def panel(path):
    [drawn] = figure(Tables(open_run(path)), panels=("accuracy",)).to_dict()["vconcat"]
    return drawn


def times(path):
    with open_run(path) as run:
        return Tables(run).grokking.times.set_index(["series", "method"])


def test_marks_lie_in_a_lane_of_their_series_at_their_steps(tmp_path):
    path = run_with(tmp_path / "run.h5", train_exact_match=rise(5), id_exact_match=rise(30))
    svg = draw_run(path, tmp_path / "a.svg", panels=("accuracy",), x="linear").read_text()
    found = times(path)
    across = 760 / 42
    for lane, (series, colour, text) in enumerate(
        [("train/exact_match", MUTED, "t_mem training batches"), ("id/exact_match", GREEN, "t_gen in distribution")]
    ):
        crossed, rose = (found.loc[(series, method)] for method in ("threshold", "sigmoid"))
        middle = FIRST + LANE * lane
        fill = colour if crossed["confirmed"] else "white"
        assert places(svg, DIAMOND, fill) == [pytest.approx((crossed["step"] * across, middle))]
        assert pytest.approx((rose["step"] * across, middle), abs=0.01) in places(svg, "M3.391,0A", colour)
        # The interval, and the dotted line over the curves.
        assert lines(svg, colour, 3) == [
            pytest.approx((rose["low"] * across, middle, (rose["high"] - rose["low"]) * across, 0), abs=0.01)
        ]
        assert lines(svg, colour, 1.2) == [pytest.approx((crossed["step"] * across, 0, 0, 150))]
        assert svg.count(f">{text}</text>") == 1
    # By threshold t_gen is planted.
    assert found.loc[("id/exact_match", "threshold"), "step"] == 30
    # The probe has no time, hence no lane.
    assert "t_gen probe" not in svg
    assert panel(path)["height"] == 150 + 6 + 2 * LANE
    assert panel(path)["title"]["text"] == "Accuracy, and when it rises"


def test_labels_of_lanes_do_not_collide_with_those_of_lines(tmp_path):
    path = run_with(tmp_path / "run.h5", train_exact_match=rise(5), id_exact_match=rise(6), ood_exact_match=rise(7))
    texts = [
        row["y"] for layer in panel(path)["layer"] if layer["mark"]["type"] == "text" for row in layer["data"]["values"]
    ]
    assert len(texts) == 4 + 3
    assert (np.diff(sorted(texts)) >= 12).all()


def test_the_subtitle_says_what_the_verdict_is(tmp_path):
    path = run_with(tmp_path / "run.h5", train_exact_match=rise(5), id_exact_match=rise(30))
    subtitle = panel(path)["title"]["subtitle"]
    assert subtitle[1:] == [
        "Diamond: reaches 95% in training (t_mem), 90% held out (t_gen), and stays. Disc: half of a fitted sigmoid's "
        "rise, with its 95% interval.",
        "Grokking, t_gen at least 3 t_mem? By diamond / disc: in distribution yes / yes, probe no / undecided.",
        "No time for probe.",
    ]


def test_a_crossing_that_too_few_rows_confirm_is_hollow(tmp_path):
    path = run_with(tmp_path / "run.h5", train_exact_match=rise(5), id_exact_match=rise(39))
    svg = draw_run(path, tmp_path / "a.svg", panels=("accuracy",)).read_text()
    assert len(places(svg, DIAMOND, "white")) == 1
    assert places(svg, DIAMOND, GREEN) == []
    assert "90% held out (t_gen), and stays; hollow: too few rows follow." in panel(path)["title"]["subtitle"][1]


def test_batches_that_are_all_new_are_named(tmp_path):
    metadata = {"datamodule": {"class": "SequenceDataModule", "hyperparameters": {"train_examples": None}}}
    path = run_with(tmp_path / "run.h5", metadata=metadata, train_exact_match=rise(5), id_exact_match=rise(6))
    subtitle = panel(path)["title"]["subtitle"]
    assert subtitle[3] == "Every batch is new: nothing is memorised. No time for probe."
    assert subtitle[2].startswith("Grokking, t_gen at least 3 t_mem? By diamond / disc: in distribution no / no, probe")


def test_where_nothing_rises_nothing_is_drawn(tmp_path):
    path = run_with(tmp_path / "run.h5", train_exact_match=rise(99))
    drawn = panel(path)
    assert (drawn["height"], drawn["title"]["text"]) == (150, "Accuracy")
    assert drawn["title"]["subtitle"][1:] == [
        "No accuracy rises: neither t_mem nor t_gen, so nothing can be said of grokking."
    ]
    svg = draw_run(path, tmp_path / "a.svg", panels=("accuracy",)).read_text()
    assert "t_mem " not in svg.replace("neither t_mem nor", "")
    assert lines(svg, INK, 1.2) == []


def test_without_training_accuracy_the_verdict_gives_the_reason(tmp_path):
    path = run_with(tmp_path / "run.h5", id_exact_match=rise(6))
    assert panel(path)["title"]["subtitle"][2] == (
        "Grokking, t_gen at least 3 t_mem? Undecided: no training accuracy was logged."
    )


def test_two_training_accuracies_do_not_keep_the_picture_back(tmp_path):
    path = run_with(tmp_path / "run.h5", trainA_exact_match=rise(5), trainB_exact_match=rise(6))
    drawn = panel(path)
    assert drawn["height"] == 150
    assert " ".join(drawn["title"]["subtitle"][1:]) == (
        f"Grokking: not judged; {path} has several training accuracies: trainA/exact_match, trainB/exact_match; name "
        "one of them with train=."
    )
