import html
import json
import re

import altair as alt
import numpy as np
import pytest

from dynamics import open_runs
from dynamics.analysis import pruning_by_run, pruning_table, rho_by_run
from dynamics.errors import AnalysisError
from dynamics.plot import SEED_PANELS, SeedTables, draw_runs, seeds_figure
from dynamics.plot.palette import BLOAT, HERO, INK
from tests.analysis.runs import components, random_arrays, random_run, write_run
from tests.analysis.test_pruning import make
from tests.analysis.test_role_frequency import planted
from tests.plot.seeds import INVERTED, write_seeds

TITLES = {
    "role_frequency": "Which components have the same role in run after run?",
    "role_layers": "In which layers do Heroes and Bloats lie?",
    "rho_by_step": "Do gradients rank components as ablation does, whatever the seed?",
    "rho_by_accuracy": "And at the same accuracy, since seeds learn at different steps?",
    "pruning": "What does it cost to remove the Heroes, or the Bloats?",
}


def svg(paths, folder, *panels, **options):
    path = draw_runs(paths, folder / "a.svg", panels=panels or None, **{"score": "loss", "threshold": 2, **options})
    return path.read_text()


def data(paths, folder, **options):
    return json.loads(draw_runs(paths, folder / "a.json", **{"threshold": 2, **options}).read_text())["datasets"]


def texts(drawn):
    return [html.unescape(text) for text in re.findall(r">([^<>]+)</(?:text|tspan)>", drawn)]


def test_cells_say_in_how_many_runs(tmp_path):
    drawn = svg(write_seeds(tmp_path), tmp_path, "role_frequency")
    words = texts(drawn)
    assert [word for word in words if word.isdigit()] == ["0", "0", "0", "2", "2", "0", "0", "0"]
    for text in (
        "Hidden Hero: number of runs",
        "most often L1MLP: 2 of 3 · luck: 0.6 of 3",
        "most often L0H0: 2 of 3 · luck: 0.6 of 3",
        "layer 0",
        "Luck alone, over all 8 cells, explains even 3 of 3 runs (p > 0.05): nothing can be framed.",
    ):
        assert text in words
    assert words.count("H0") == words.count("MLP") == 2
    # 0.03 + 0.97 x 2 / 3
    shares = re.findall(rf'fill="({HERO}|{BLOAT})" fill-opacity="0.67\d*"', drawn)
    assert sorted(shares) == sorted([HERO, BLOAT])
    assert f'stroke="{INK}" stroke-width="2"' not in drawn


def test_heroes_lie_on_the_left_and_each_layer_in_its_row(tmp_path):
    rows = [row for row in data(write_seeds(tmp_path), tmp_path)["frequency"] if row["score"] == "loss"]
    places = {(row["role"], row["component"]): (row["x"], row["y"]) for row in rows}
    middle = 760 / 2
    for component, row in (("L0H0", 0), ("L0MLP", 0), ("L1H0", 1), ("L1MLP", 1)):
        (hero, y), (bloat, same) = places["hero", component], places["bloat", component]
        assert hero < middle < bloat
        assert y == same == places["hero", "L0H0"][1] + 30 * row
    drawn = svg(str(tmp_path / "sort-*" / "run.h5"), tmp_path, "role_frequency", "role_layers")
    for words, colour in (("Hidden Hero", HERO), ("Gradient Bloat", BLOAT)):
        headings = re.findall(r'<text [^>]*fill="(#\w+)"[^>]*>' + words, drawn)
        assert headings == [colour] * 2


def test_frames_mark_what_is_beyond_luck(tmp_path):
    drawn = svg(write_seeds(tmp_path, [INVERTED] * 4), tmp_path, "role_frequency")
    assert drawn.count(f'stroke="{INK}" stroke-width="2"') == 2
    assert any(text.startswith("Framed: in more runs than luck explains") for text in texts(drawn))


def test_layers_say_how_many_and_how_surprising(tmp_path):
    pattern = write_seeds(tmp_path, [INVERTED] * 5)
    words = texts(svg(pattern, tmp_path, "role_layers"))
    with open_runs(pattern) as runs:
        table = SeedTables(runs, threshold=2).layers
    rows = table[table["score"] == "loss"]
    assert rows["p_value"].min() < 0.05
    for row in rows.itertuples():
        p = "p < 0.001" if row.p_value < 0.001 else f"p = {row.p_value:.{3 if row.p_value < 0.1 else 2}f}"
        assert f"{row.mean:.1f} of 2, {p}" in [" ".join(word.split()) for word in words]
    assert words.count("mean over 5 runs, whisker: 95 % interval") == 2


def test_bars_and_chance_lie_at_one_scale(tmp_path):
    rows = [row for row in data(write_seeds(tmp_path), tmp_path)["role_layers"] if row["score"] == "loss"]
    units = {round((row["x2"] - row["x"]) / row["mean"], 2) for row in rows if row["mean"]}
    [unit] = units | {round((row["x_chance"] - row["x"]) / row["chance"], 2) for row in rows}
    for row in rows:
        # The interval ends at counts that are possible.
        ends = np.clip([row["low"], row["high"]], 0, row["components"])
        np.testing.assert_allclose([row["x_low"], row["x_high"]], row["x"] + unit * ends, atol=0.02)


@pytest.mark.parametrize("score", ["exact_match", "loss"])
def test_every_run_has_its_line_and_its_points(tmp_path, score):
    for seed in range(3):
        random_run(tmp_path / f"{seed}.h5", n_steps=4 + seed, seed=seed)
    drawn = svg(tmp_path / "*.h5", tmp_path, "rho_by_step", score=score)
    lines = re.findall(r'<path d="(M[^"]*)" stroke="#68717c" stroke-width="1"', drawn)
    assert [line.count("L") for line in lines] == [3, 4, 5]
    assert "Thin: a run. Thick: mean over 3 runs where at least half have one; band: its 95 % interval" in drawn
    with open_runs(tmp_path / "*.h5") as runs:
        expected = rho_by_run(runs, score=score)
    carried = [row for row in data(tmp_path / "*.h5", tmp_path)["rho_runs"] if row["score"] == score]
    assert [row["run"] for row in carried] == ["0"] * 4 + ["1"] * 5 + ["2"] * 6
    np.testing.assert_allclose([row["rho"] for row in carried], expected["rho"], atol=1e-4)


def test_runs_without_a_common_step_have_no_mean_and_it_says_so(tmp_path):
    for seed in range(3):
        row = random_arrays(np.random.default_rng(seed), 6)
        write_run(tmp_path / f"{seed}.h5", [seed], [row], components(2, 2))
    drawn = svg(tmp_path / "*.h5", tmp_path, "rho_by_step", "rho_by_accuracy")
    assert "No step has a rho in half of the 3 runs: see them by accuracy." in drawn
    assert data(tmp_path / "*.h5", tmp_path, window="all")["rho_mean"] == []


def test_bins_of_accuracy_say_how_many_runs_they_hold(tmp_path):
    for seed, right in enumerate((0.25, 0.25, 0.875)):
        planted(tmp_path / f"{seed}.h5", *INVERTED, accuracy=right)
    words = texts(svg(tmp_path / "*.h5", tmp_path, "rho_by_accuracy"))
    assert [word for word in words if re.fullmatch(r"\d runs?", word)] == ["2 runs", "1 run"]


@pytest.mark.parametrize("score", ["exact_match", "loss"])
def test_pruning_draws_every_run_and_says_the_mean(tmp_path, score):
    pattern = make(tmp_path / "runs", range(3))
    window = (0.5, 0.9)
    drawn = svg(pattern, tmp_path, "pruning", score=score, window=window)
    with open_runs(pattern) as runs:
        table = pruning_table(runs, window, score, 2)
        by_run = pruning_by_run(runs, window, score, 2).dropna(subset=["lost"])
    for role, colour in (("hero", HERO), ("bloat", BLOAT)):
        circles = re.findall(rf'<path [^>]*stroke="{colour}"[^>]*>', drawn)
        assert len(circles) == (by_run["role"] == role).sum()
    words = texts(drawn)
    for row in table.itertuples():
        mean = f"{row.mean:.2f} nats" if score == "loss" else f"{100 * row.mean:.1f} points"
        assert mean + ("" if np.isnan(row.ratio_to_mean) else f", {row.ratio_to_mean:.1f} ×") in words
    assert words.count("not recorded here") == 0


def test_without_synergy_what_ablating_together_costs_is_not_recorded(tmp_path):
    words = texts(svg(make(tmp_path / "runs", range(2), synergy=False), tmp_path, "pruning", window="all"))
    assert words.count("not recorded here") == 2


def test_one_run_has_no_interval(tmp_path):
    drawn = svg(write_seeds(tmp_path, [INVERTED]), tmp_path)
    assert sum("1 run: no interval" in text for text in texts(drawn)) == 5
    for title in TITLES.values():
        assert f">{title} (C by loss)</text>" in drawn


def test_panels_keep_their_order_and_only_those_asked_for_are_drawn(tmp_path):
    drawn = svg(write_seeds(tmp_path), tmp_path, "pruning", "role_layers")
    assert [name for name, title in TITLES.items() if title in drawn] == ["role_layers", "pruning"]
    assert list(TITLES) == list(SEED_PANELS)


def test_an_empty_window_is_said_and_rho_is_drawn(tmp_path):
    pattern = write_seeds(tmp_path)
    drawn = svg(pattern, tmp_path, window=(0.9, 0.95))
    assert "No run has a snapshot in the window, so there are no roles to count" in drawn
    assert "None of 3 runs has a snapshot with a rho by loss and an accuracy from 0.9 to 0.95" in drawn
    assert [name for name, title in TITLES.items() if title in drawn] == ["rho_by_step", "rho_by_accuracy"]
    with pytest.raises(AnalysisError) as caught:
        svg(pattern, tmp_path, "role_frequency", "pruning", window=(0.9, 0.95))
    assert str(caught.value) == (
        "none of 3 runs has a snapshot with a rho by exact_match and an accuracy from 0.9 to 0.95; choose a wider "
        "window."
    )


def test_a_score_without_a_snapshot_in_the_window_says_so_in_its_place(tmp_path):
    for seed in range(2):
        row = random_arrays(np.random.default_rng(seed), 6)
        # All components cost the same accuracy.
        row["exact_match"] = np.arange(8) < 4
        row["ablation_exact_match"][:] = False
        write_run(tmp_path / f"{seed}.h5", [0], [row], components(2, 2))
    reason = "none of 2 runs has a snapshot with a rho by exact_match and an accuracy from 0.2 to 0.75"
    assert svg(tmp_path / "*.h5", tmp_path, score="exact_match").count(reason) == 3
    assert reason not in svg(tmp_path / "*.h5", tmp_path, score="loss")


def test_a_run_ablated_to_zero_alone_has_no_pruning(tmp_path, monkeypatch):
    pattern = write_seeds(tmp_path)
    with open_runs(pattern) as runs:
        for run in runs:
            monkeypatch.setattr(type(run), "baselines", ("zero",))
        tables = SeedTables(runs, baseline="zero", threshold=2)
        assert len(tables.pruning) == len(tables.pruning_by_run) == 0
        assert len(tables.frequency)


def test_what_is_unknown_is_refused(tmp_path):
    with open_runs(write_seeds(tmp_path)) as runs:
        tables = SeedTables(runs)
        for options, message in (
            ({"score": "accuracy"}, "the score must be one of exact_match, loss; got 'accuracy'."),
            ({"x": "symlog"}, "the step axis must be one of log, linear; got 'symlog'."),
            (
                {"panels": ("roles",)},
                f"the panels of several runs must be some of {', '.join(SEED_PANELS)}; got roles.",
            ),
            ({"panels": ()}, f"the panels of several runs must be some of {', '.join(SEED_PANELS)}; got none."),
        ):
            with pytest.raises(AnalysisError) as caught:
                seeds_figure(tables, **options)
            assert str(caught.value) == message


def test_many_layers_and_heads(tmp_path):
    for seed in range(2):
        random_run(tmp_path / f"{seed}.h5", n_steps=1, layers=60, heads=16, seed=seed)
    words = texts(svg(tmp_path / "*.h5", tmp_path, "role_frequency", threshold=None, window="all"))
    # Cells that are smaller than letters have none, and every second layer is named.
    assert not [text for text in words if re.fullmatch(r"H?\d+", text)]
    assert {f"layer {layer}" for layer in range(60)} & set(words) == {f"layer {layer}" for layer in range(0, 60, 2)}


def test_it_is_what_vega_lite_reads(tmp_path):
    drawn = draw_runs(write_seeds(tmp_path), tmp_path / "a.json").read_text()
    alt.VConcatChart.from_dict(json.loads(drawn), validate=True)
