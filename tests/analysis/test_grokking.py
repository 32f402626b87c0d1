import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamics import open_run
from dynamics.analysis import GrokkingRule, delay_tables, grokking_report, read_timeline, select_snapshots
from dynamics.errors import AnalysisError
from tests.analysis.runs import N_EXAMPLES, components, random_arrays, write_run
from tests.analysis.test_transitions import noisy, sigmoid

LOGGED = np.arange(10, 3001, 10)
CHECKED = np.arange(50, 3001, 50)
TAKEN = np.arange(0, 3001, 100)


def written(path, train=None, probe=None, metadata=None, **others):
    """Write a run whose accuracies are given as functions of the step; ``others`` are checked every 50 steps."""
    rng = np.random.default_rng(0)
    listed = components(2, 2)
    rows = [random_arrays(rng, len(listed)) for _ in TAKEN]
    for step, arrays in zip(TAKEN, rows, strict=True):
        right = probe(max(step, 1)) if probe else 0
        arrays["exact_match"] = np.arange(N_EXAMPLES) < round(right * N_EXAMPLES)
        arrays["weight_norm"] = np.full(len(listed), 5 - abs(step - 1200) / 1000, np.float32)
    metrics = []
    for step in sorted({*LOGGED[::2], *CHECKED}):
        logged = {"train/exact_match": train(step)} if train and step in LOGGED[::2] else {}
        checked = {name: curve(step) for name, curve in others.items()} if step in CHECKED else {}
        if logged or checked:
            metrics.append((int(step), logged | checked))
    return write_run(path, TAKEN.tolist(), rows, listed, metrics, metadata)


def rise(middle, width=1.5, high=1.0, low=0.0):
    return lambda step: float(sigmoid(np.asarray(float(step)), middle, width, low, high))


@pytest.fixture(scope="module")
def logged(tmp_path_factory):
    return written(tmp_path_factory.mktemp("run") / "run.h5", rise(100), None, val_acc=rise(500))


@pytest.fixture(scope="module")
def grokked(tmp_path_factory):
    curves = {"id/exact_match": rise(1500), "ood/exact_match": rise(2000)}
    described = {"class": "SequenceDataModule", "hyperparameters": {"train_examples": None}}
    path = tmp_path_factory.mktemp("run") / "run.h5"
    return written(path, rise(100), rise(2000), {"datamodule": described}, **curves)


def report_of(path, **options):
    with open_run(path) as run:
        return grokking_report(run, **options)


def delay(report, series, method="threshold"):
    of_series = report.delays[(report.delays["series"] == series) & (report.delays["method"] == method)]
    return of_series.iloc[0]


def test_a_run_that_groks(grokked):
    report = report_of(grokked)
    assert (report.train, report.held_out) == (
        "train/exact_match",
        ("id/exact_match", "ood/exact_match", "probe"),
    )
    times = report.times.set_index(["series", "method"])
    # The sigmoid reaches 90 % where the step is sqrt(1.5) times its middle.
    assert times.loc[("id/exact_match", "threshold"), "step"] == 1850 == 50 * np.ceil(1500 * 1.5**0.5 / 50)
    assert times.loc[("id/exact_match", "threshold"), ["low", "high"]].tolist() == [1800, 1850]
    assert times.loc[("id/exact_match", "sigmoid"), "step"] == pytest.approx(1500, rel=0.01)
    assert times.loc[("train/exact_match", "sigmoid"), "step"] == pytest.approx(100, rel=0.05)
    assert times["reason"].tolist() == [None] * 8
    row = delay(report, "id/exact_match")
    assert (row["verdict"], row["t_gen"]) == ("grokking", 1850)
    assert row["ratio"] == row["t_gen"] / row["t_mem"] > 10
    assert row["ratio_low"] < row["ratio"] <= row["ratio_high"]
    assert row["accuracy_at_t_mem"] < 0.01
    assert set(report.delays["verdict"]) == {"grokking"}
    turn = report.lags[report.lags["event"] == "weight-norm turn"].set_index(["series", "method"])
    assert turn.loc[("id/exact_match", "threshold"), ["lag", "lag_low", "lag_high", "order"]].tolist() == [
        1200 - 1850, 1100 - 1850, 1300 - 1800, "before",
    ]  # fmt: skip


def table(**series):
    """Return an accuracy table of named (steps, values)."""
    return pd.concat(
        [pd.DataFrame({"step": steps, "series": name, "accuracy": values}) for name, (steps, values) in series.items()]
    )


@given(st.floats(60, 250), st.floats(3.5, 7), st.floats(1.3, 2), st.sampled_from([128, 1024]), st.integers(0, 2**16))
def test_the_delay_is_recovered_from_noise(mem, factor, width, examples, seed):
    gen = mem * factor
    train, held_out = noisy(sigmoid(LOGGED, mem, width), 64, seed), noisy(sigmoid(CHECKED, gen, width), examples, seed)
    rule = GrokkingRule(train_threshold=0.85, held_out_threshold=0.8)
    _, delays = delay_tables(table(train=(LOGGED, train), ood=(CHECKED, held_out)), "train", ["ood"], rule)
    by_threshold, by_sigmoid = delays.to_dict("records")
    assert by_sigmoid["ratio"] == pytest.approx(factor, rel=0.15)
    assert by_sigmoid["ratio_low"] < factor * 1.05
    assert by_sigmoid["ratio_high"] > factor / 1.05
    # The noiseless curve passes 0.8 of its 0.95 where the logit is that of 0.8 / 0.95.
    crossing = gen * width ** (np.log(0.8 / 0.15) / (2 * np.log(9)))
    assert by_threshold["t_gen"] == pytest.approx(crossing, rel=0.15, abs=100)


@pytest.mark.parametrize(
    ("curve", "rule", "verdict", "reason"),
    [
        (
            lambda step: 0.0, {}, "no grokking",
            "t_gen is open: it does not reach 90% for 3 rows in a row; at best 0%",
        ),
        (
            lambda step: 0.0, {"of_best": True}, "no grokking",
            "t_gen is open: at best it is 0%, too little for a share of it to mean anything",
        ),
        (lambda step: 1.0, {}, "no grokking", "the accuracy at t_mem was 100% already, more than 10%"),
        (rise(110), {}, "no grokking", "the accuracy at t_mem was 83% already, more than 10%"),
        (
            rise(300, 1.2), {"factor": 3.0}, "no grokking", "the delay ratio is below 3",
        ),
        (rise(300, 1.2), {"factor": 2.6}, "undecided", "the range of the delay ratio does not lie on one side of 2.6"),
        (
            rise(1500), {}, "grokking",
            "the delay ratio is 3 or more, and the accuracy at t_mem was 0%",
        ),
        (
            rise(1500, high=0.4), {"of_best": True}, "no grokking", "it generalises to 36% only, less than 50%",
        ),
        (
            lambda step: 0.95 * (1500 < step < 2000), {}, "undecided",
            "the accuracy falls again: 30% of the rows from t_gen on reach 90%",
        ),
        (
            lambda step: 0.95 * (step > 2900), {}, "undecided", "too few rows follow t_gen to confirm it",
        ),
    ],
)  # fmt: skip
def test_what_deserves_the_name(curve, rule, verdict, reason):
    accuracy = table(train=(LOGGED, sigmoid(LOGGED, 100, 1.5, 0, 1)), val=(CHECKED, [curve(step) for step in CHECKED]))
    _, delays = delay_tables(accuracy, "train", ["val"], GrokkingRule(**rule))
    row = delays.iloc[0]
    assert (row["verdict"], row["reason"]) == (verdict, reason)


def test_a_model_that_never_fits_its_training_data():
    accuracy = table(train=(LOGGED, np.full(len(LOGGED), 0.5)), val=(CHECKED, sigmoid(CHECKED, 500, 2)))
    _, delays = delay_tables(accuracy, "train", ["val"], GrokkingRule())
    assert delays[["verdict", "reason"]].values.tolist() == [
        ["undecided", "t_mem is open: it does not reach 95% for 15 rows in a row; at best 50%"],
        ["undecided", "t_mem is open: it stays between 50% and 50%"],
    ]


def test_a_rise_and_fall_has_no_sigmoid():
    peak = 0.95 * ((CHECKED > 1500) & (CHECKED < 2000))
    accuracy = table(train=(LOGGED, sigmoid(LOGGED, 100, 1.5)), val=(CHECKED, peak))
    _, delays = delay_tables(accuracy, "train", ["val"], GrokkingRule())
    assert delays.iloc[1][["verdict", "reason"]].tolist() == [
        "undecided", "t_gen is open: a sigmoid explains 18% of the variance only",
    ]  # fmt: skip


def test_noise_of_single_batches_does_not_move_t_mem(tmp_path):
    # One lucky batch early, one unlucky batch late.
    def train(step):
        return 1.0 if step == 50 or (step > 1000 and step != 1500) else 0.2

    report = report_of(written(tmp_path / "run.h5", train, rise(2000)))
    assert 1000 < delay(report, "probe")["t_mem"] <= 1050


def test_without_training_accuracy_there_is_no_t_mem(tmp_path):
    report = report_of(written(tmp_path / "run.h5", None, rise(1000)))
    assert report.train is None
    row = delay(report, "probe", "sigmoid")
    assert (row["verdict"], row["reason"]) == ("undecided", "no training accuracy was logged")
    assert row["t_gen"] == pytest.approx(1000, rel=0.1)
    assert len(report.lags) > 0
    assert report.text().startswith("Training: no accuracy was logged, so t_mem is open.")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"train": "train/acc"},
            "{} has no accuracy series 'train/acc'; choose among probe, train/exact_match, val_acc.",
        ),
        ({"held_out": ["ood"]}, "{} has no accuracy series 'ood'; choose among probe, train/exact_match, val_acc."),
        (
            {"held_out": ["train/exact_match"]},
            "'train/exact_match' is the training accuracy; it cannot be held out as well.",
        ),
        ({"held_out": []}, "no held-out series is named; {} has probe, train/exact_match, val_acc."),
        (
            {"held_out": ["val_acc"], "reference": "probe"},
            "{} has no accuracy series 'probe'; choose among val_acc.",
        ),
    ],
)
def test_missing_series_are_named(logged, options, message):
    with pytest.raises(AnalysisError) as caught:
        report_of(logged, **options)
    assert str(caught.value) == message.format(logged)


def test_two_training_series_must_be_told_apart(tmp_path):
    path = written(tmp_path / "run.h5", None, None, train_acc_step=rise(100), train_acc_epoch=rise(100))
    with pytest.raises(AnalysisError) as caught:
        report_of(path)
    assert str(caught.value) == (
        f"{path} has several training accuracies: train_acc_step, train_acc_epoch; name one of them with train=."
    )
    assert report_of(path, train="train_acc_epoch").held_out == ("probe",)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train_threshold": 95}, "train_threshold must lie above 0 and be at most 1; got 95."),
        ({"held_out_threshold": 0}, "held_out_threshold must lie above 0 and be at most 1; got 0."),
        ({"factor": 0.5}, "factor must be at least 1; got 0.5."),
        ({"train_window": 0}, "train_window must be at least 1 row; got 0."),
    ],
)
def test_rules_that_cannot_be(options, message):
    with pytest.raises(AnalysisError) as caught:
        GrokkingRule(**options)
    assert str(caught.value) == message


def test_chosen_snapshots_take_their_own_weight_norm(grokked):
    with open_run(grokked) as run:
        part = select_snapshots(read_timeline(run, score="loss"), run.steps > 1500)
        events = grokking_report(run, timeline=part).events
    assert events.iloc[-1][["step", "low", "high"]].tolist() == [1600, 1600, 1700]


def test_one_snapshot_and_no_metrics(tmp_path):
    listed = components(1, 1)
    path = write_run(tmp_path / "run.h5", [0], [random_arrays(np.random.default_rng(0), 2)], listed)
    report = report_of(path)
    assert report.delays["verdict"].tolist() == ["undecided"] * 2
    assert report.text().endswith("Lead and lag: the probe has no t_gen, so nothing comes before or after it.")


def test_the_report_in_words(grokked, logged):
    report = report_of(grokked, held_out=["id/exact_match", "probe"])
    assert report.fresh is True
    assert report_of(logged).fresh is None
    assert report.text().split("\n\n") == [
        "Training (train/exact_match in means of 5 rows): t_mem by threshold (95%) is step 170 (after step 150), "
        "and 100% of the rows from there on reach it. A sigmoid rises from 0% to 100%, half of it at step 100 "
        "(95% interval 100 to 100; it explains 100% of the variance). Every training batch was drawn anew: t_mem "
        "says when the task is learned, nothing is memorised.",
        "In distribution (id/exact_match): t_gen by threshold (90%) is step 1,850 (after step 1,800), and 100% of"
        " the rows from there on reach it. A sigmoid rises from 0% to 100%, half of it at step 1,500 (95% "
        "interval 1,500 to 1,500; it explains 100% of the variance). By threshold: t_gen / t_mem = 11 (11 to 12),"
        " grokking, since the delay ratio is 3 or more, and the accuracy at t_mem was 0%. By sigmoid: t_gen / "
        "t_mem = 15 (15 to 15), grokking, since the delay ratio is 3 or more, and the accuracy at t_mem was 0%.",
        "The probe: t_gen by threshold (90%) is step 2,600 (after step 2,500), and 100% of the rows from there on"
        " reach it. A sigmoid rises from 0% to 100%, half of it at step 1,993 (95% interval 1,953 to 2,035; it "
        "explains 100% of the variance). By threshold: t_gen / t_mem = 15 (15 to 17), grokking, since the delay "
        "ratio is 3 or more, and the accuracy at t_mem was 0%. By sigmoid: t_gen / t_mem = 20 (20 to 20), "
        "grokking, since the delay ratio is 3 or more, and the accuracy at t_mem was 0%.",
        "Lead and lag, by loss, around t_gen of the probe by threshold (step 2,600; 84% of the 31 snapshots lie "
        "before it). What comes before is no cause by that alone. First onsets of heroes: 3 "
        "(2 before, 1 after, 0 open), the first of L0H0 at step 300. "
        "First onsets of bloats: 4 (3 before, 1 after, 0 open), the first of L1H1 at "
        "step 1,000. Rho's largest change of level (+0.38) is at step 2,300 (2,200 to 2,300): before it, -300 "
        "steps (-400 to -200), 0.88 times t_gen. The turn of the weight norm (-36.0%) is at step 1,200 (1,100 to "
        "1,300): before it, -1,400 steps (-1,500 to -1,200), 0.46 times t_gen.",
    ]
