import json
import re
import struct

import numpy as np
import pytest

from dynamics import open_run
from dynamics.errors import AnalysisError
from dynamics.plot import PANELS, Tables, draw_run
from dynamics.plot.figure import figure as chart_of
from dynamics.plot.palette import BLOAT, GREEN, HERO, INK, OCHRE, PURPLE, ROSE
from tests.analysis.runs import components, random_arrays, random_run, write_run
from tests.plot.pages import Page


def tables(path, **options):
    return Tables(open_run(path), **options)


def figure(*arguments, **options):
    return chart_of(*arguments, **options).to_dict()


def count(text, colour):
    return text.count(f'fill="{colour}"')


def test_cells_and_bars_are_drawn_in_their_colours(tmp_path):
    random_run(tmp_path / "run.h5", n_steps=5)
    svg = draw_run(tmp_path / "run.h5", tmp_path / "a.svg", score="loss").read_text()
    cells, layers = (table for table in (tables(tmp_path / "run.h5").cells, tables(tmp_path / "run.h5").layers))
    for role, counts, colour in (("hero", "heroes_loss", HERO), ("bloat", "bloats_loss", BLOAT)):
        drawn = (cells["role_loss"] == role).sum() + (layers[counts] > 0).sum()
        # One more is the legend's.
        assert count(svg, colour) == drawn + 1
    for label in ("L0H0", "L1MLP", "layer 1", "probe", "C by accuracy", "optimizer step"):
        assert f">{label}</text>" in svg
    assert "Roles, with C by loss" in svg


def test_png_has_twice_the_resolution(tmp_path):
    random_run(tmp_path / "run.h5", n_steps=2)
    size = struct.unpack(">II", draw_run(tmp_path / "run.h5", tmp_path / "a.png").read_bytes()[16:24])
    svg = draw_run(tmp_path / "run.h5", tmp_path / "a.svg").read_text()
    assert f'width="{size[0] // 2}" height="{size[1] // 2}"' in svg


def test_hostile_labels_in_an_svg(tmp_path):
    random_run(tmp_path / "run.h5", n_steps=2, prefix="<script>alert(1)</script>")
    svg = draw_run(tmp_path / "run.h5", tmp_path / "a.svg").read_text()
    assert "&lt;script&gt;" in svg
    assert "<script" not in svg


@pytest.mark.parametrize("x", ["log", "linear"])
def test_one_snapshot(tmp_path, x):
    random_run(tmp_path / "run.h5", n_steps=1)
    draw_run(tmp_path / "run.h5", tmp_path / "a.svg", x=x)
    specification = figure(tables(tmp_path / "run.h5"), x=x)
    [cells] = specification["datasets"]["cells"]
    assert (set(cells["step"]), set(cells["end"])) == ({0}, {1})


def test_nan_rows_leave_gaps(tmp_path, rng):
    """JSON has no NaN: it must be null, which breaks a line, and never a 0, which would be a measurement."""
    rows = [random_arrays(rng, 6) for _ in range(3)]
    rows[1]["gradient_norm"][:] = np.nan
    rows[1]["ablation_loss"][:] = np.inf
    path = write_run(tmp_path / "run.h5", [0, 4, 8], rows, components(2, 2))
    data = json.loads(draw_run(path, tmp_path / "a.json").read_text())["datasets"]
    by_loss = [row for row in data["rho"] if row["score"] == "loss"]
    assert [row["rho"] is None for row in by_loss] == [False, True, False]
    assert by_loss[1]["reason"] == (
        "6 of 6 values of gradient magnitude are not finite; 6 of 6 values of causal importance are not finite"
    )
    [cells] = data["cells"]
    assert cells["role_loss"][6:12] == ["undefined"] * 6
    for name in ("gradient", "causal_loss", "delta_loss", "rank_gradient"):
        assert cells[name][6:12] == [None] * 6
        assert None not in cells[name][:6] + cells[name][12:]
    svg = draw_run(path, tmp_path / "a.svg", score="loss").read_text()
    assert "NaN" not in svg


def test_lines_break_where_values_are_missing(tmp_path, rng):
    rows = [random_arrays(rng, 6) for _ in range(6)]
    rows[2]["gradient_norm"][:] = np.nan
    metrics = [(0, {"id/exact_match": 0.0}), (9, {"id/exact_match": 1.0})]
    path = write_run(tmp_path / "run.h5", range(6), rows, components(2, 2), metrics=metrics)
    svg = draw_run(path, tmp_path / "a.svg").read_text()

    def points(colour):
        """Points of the lines of that colour, each line by itself, pieces apart."""
        lines = re.findall(f'<path d="(M[^"]*)" stroke="{colour}" stroke-width="(?:2|2.4|1.5)"', svg)
        return [[piece.count("L") + 1 for piece in line.split("M")[1:]] for line in lines]

    assert points(PURPLE) == [[2, 3]]
    # The probe's accuracy needs no gradient.
    assert points(INK) == [[6], [2, 3]]
    assert points(GREEN) == [[2]]
    # Of rho by loss five points, the name and the band, which has the gaps of the line.
    assert count(svg, PURPLE) == 5 + len(["C by loss"]) + 1


def test_chance_lines_lie_at_the_layers_chance(tmp_path):
    """6 components, tau 2: 5/18 each; layers of 3 components: 5/6 of a component."""
    random_run(tmp_path / "run.h5", n_steps=3)
    drawn = tables(tmp_path / "run.h5")
    assert drawn.layers["chance"].tolist() == pytest.approx([5 / 6] * 6)
    [strips] = figure(drawn)["datasets"]["layers"]
    counts = [strips[name] for name in strips if name.startswith(("heroes", "bloats"))]
    unit = 28 / max(max(column) for column in counts)
    layers_panel = figure(drawn)["vconcat"][3]
    dashed = next(layer for layer in layers_panel["layer"] if layer["mark"].get("strokeDash"))
    centres = sorted(set(strips["y"]))
    expected = sorted(centre + side * unit * 5 / 6 for centre in centres for side in (-1, 1))
    assert sorted(row["y"] for row in dashed["data"]["values"]) == pytest.approx(expected)


def test_panels_share_the_step_axis(tmp_path):
    random_run(tmp_path / "run.h5", n_steps=3, metrics=[(50, {"id/exact_match": 1.0})])
    specification = figure(tables(tmp_path / "run.h5"))
    assert [panel["width"] for panel in specification["vconcat"]] == [760] * 4
    domains = {
        tuple(layer["encoding"]["x"]["scale"]["domain"])
        for panel in specification["vconcat"]
        for layer in panel["layer"]
        if "scale" in layer["encoding"].get("x", {})
    }
    assert domains == {(0, 50)}


def test_unknown_score_and_axis(tmp_path):
    random_run(tmp_path / "run.h5", n_steps=1)
    with pytest.raises(AnalysisError) as error:
        figure(tables(tmp_path / "run.h5"), score="accuracy")
    assert str(error.value) == "the score must be one of exact_match, loss; got 'accuracy'."
    with pytest.raises(AnalysisError) as error:
        figure(tables(tmp_path / "run.h5"), x="symlog")
    assert str(error.value) == "the step axis must be one of log, linear; got 'symlog'."


def test_a_large_run_draws(tmp_path):
    """32,000 cells: more than Altair takes as rows, and small enough to send to someone."""
    random_run(tmp_path / "run.h5", n_steps=200, layers=32, heads=4)
    text = draw_run(tmp_path / "run.h5").read_text()
    assert len(text) < 6e6
    assert len(Page(text).specification["datasets"]["cells"][0]["step"]) == 200 * 160


@pytest.mark.soak
def test_a_large_run_is_drawn_as_a_picture(tmp_path):
    random_run(tmp_path / "run.h5", n_steps=200, layers=32, heads=4)
    assert draw_run(tmp_path / "run.h5", tmp_path / "a.png").stat().st_size > 100_000


@pytest.mark.parametrize("panels", [("accuracy", "roles"), ("rho",), ("layers", "accuracy"), ("agreement", "rho")])
def test_some_panels_alone(tmp_path, panels):
    titles = {
        "accuracy": "Accuracy",
        "rho": "Do gradients rank components as ablation does?",
        "agreement": "Do attributions find what ablation finds? (C by accuracy)",
        "roles": "Roles, with C by accuracy",
        "layers": "Heroes and bloats in each layer",
    }
    random_run(tmp_path / "run.h5", n_steps=3, methods=("gradient", "gim"))
    svg = draw_run(tmp_path / "run.h5", tmp_path / "a.svg", panels=panels).read_text()
    for name, title in titles.items():
        assert (f">{title}</text>" in svg) == (name in panels)
    # Only the lowest panel names the step axis, whichever it is.
    assert svg.count(">optimizer step</text>") == 1


@pytest.mark.parametrize("score", ["exact_match", "loss"])
def test_attributions_and_gradient_magnitude_lie_in_one_panel(tmp_path, score):
    random_run(tmp_path / "run.h5", n_steps=3, layers=3, methods=("gradient", "gim", "ig"))
    path = draw_run(tmp_path / "run.h5", tmp_path / "a.json", score=score, panels=("agreement",))
    drawn = json.loads(path.read_text())["datasets"]["agreement"]
    assert len(drawn) == 2 * 7 * 3
    methods = ("gradient", "gim", "ig")
    assert {row["measure"] for row in drawn} == {"gradient_norm", *methods, *(f"|{method}|" for method in methods)}
    svg = draw_run(tmp_path / "run.h5", tmp_path / "a.svg", score=score, panels=("agreement",)).read_text()
    # Each label once: those of the other score are not drawn.
    for label, colour in (("G", INK), ("|GIM|", GREEN), ("|attr. patching|", OCHRE), ("|integrated gr.|", ROSE)):
        assert svg.count(f">{label}</text>") == 1
        # Beside its size, dashed, an attribution with its sign.
        lines = re.findall(f'<path [^>]*stroke="{colour}"[^>]*>', svg)
        assert sorted("dasharray" in line for line in lines) == ([False] if label == "G" else [False, True])


def test_a_panel_that_a_run_has_nothing_for_is_left_out(tmp_path):
    random_run(tmp_path / "run.h5", n_steps=2)
    assert "Do attributions find" not in draw_run(tmp_path / "run.h5", tmp_path / "a.svg").read_text()
    with pytest.raises(AnalysisError) as error:
        figure(tables(tmp_path / "run.h5"), panels=("agreement",))
    assert str(error.value) == "the run has nothing to draw for agreement; choose other panels."


def test_no_panel_and_an_unknown_one(tmp_path):
    random_run(tmp_path / "run.h5", n_steps=2)
    for panels, got in (((), "none"), (("roles", "colours"), "roles, colours")):
        with pytest.raises(AnalysisError) as error:
            figure(tables(tmp_path / "run.h5"), panels=panels)
        assert str(error.value) == f"the panels must be some of {', '.join(PANELS)}; got {got}."
