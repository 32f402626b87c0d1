"""The maps of C and of attributions: what is drawn is what the run holds, in colours that mean its sign."""

import json

import numpy as np
import pytest

from dynamics import open_run
from dynamics.errors import AnalysisError
from dynamics.plot import Tables, draw_run
from dynamics.plot.palette import DIVERGING, UNKNOWN
from tests.analysis.runs import components, random_arrays, random_run, write_run

METHODS = ("gradient", "gim")


def planted(path, attribution, causal):
    """Write snapshots with given attributions, ``(step, method, component)``, and C by loss, ``(step, component)``."""
    rng, rows = np.random.default_rng(0), []
    for means, effects in zip(attribution, causal, strict=True):
        row = random_arrays(rng, 3, len(METHODS))
        row["attribution"] = np.repeat(np.asarray(means, np.float32)[..., None], row["loss"].size, -1)
        row["loss"][:] = 1.0
        row["ablation_loss"][:] = 1 + np.asarray(effects, np.float32)[:, None]
        rows.append(row)
    return write_run(path, range(0, 10 * len(rows), 10), rows, components(1, 2), methods=METHODS)


def drawn(path, tmp_path, **options):
    specification = json.loads(draw_run(path, tmp_path / "a.json", chart="heatmap", **options).read_text())
    return specification, specification["datasets"]["shares"][0]


def test_cells_hold_values_and_shares_of_c_and_every_method(tmp_path):
    attribution = [[[2, -1, 1], [0.5, 0.25, 0.25]], [[1, 1, 2], [0, 0, 0]]]
    path = planted(tmp_path / "run.h5", attribution, [[1, -3, 0], [0.5, 0.25, 0.25]])
    specification, cells = drawn(path, tmp_path)
    assert cells["step"] == [0, 0, 0, 10, 10, 10]
    assert cells["component"] == ["L0H0", "L0H1", "L0MLP"] * 2
    assert cells["value_gradient"] == [2, -1, 1, 1, 1, 2]
    assert cells["share_gradient"] == [0.5, -0.25, 0.25, 0.25, 0.25, 0.5]
    # Nothing is a share of nothing.
    assert cells["share_gim"] == [0.5, 0.25, 0.25, None, None, None]
    assert cells["value_loss"] == [1, -3, 0, 0.5, 0.25, 0.25]
    assert cells["share_loss"] == [0.25, -0.75, 0, 0.5, 0.25, 0.25]
    assert {"share_exact_match", "value_exact_match", "end", "y"} <= set(cells)
    method = next(parameter for parameter in specification["params"] if parameter["name"] == "method")
    assert (method["value"], method["bind"]["options"]) == ("gradient", list(METHODS))


def fills(path, tmp_path, panel, **options):
    """Return the colours of the cells of one map, in the order of steps and components."""
    svg = draw_run(path, tmp_path / f"{panel}.svg", panels=(panel,), **options).read_text()
    marks = svg.split('class="mark-rect role-mark ')[1].split("</g>")[0]
    return [part.split('"')[0] for part in marks.split('fill="')[1:]]


def test_green_is_positive_purple_negative_and_the_middle_is_zero(tmp_path):
    path = planted(tmp_path / "run.h5", [[[9, -9, 0], [1, 1, 1]]] * 2, [[1, -1, 0], [np.nan, 1, 1]])
    ends = [_rgb(DIVERGING[end]) for end in (-1, 0, 2)]
    assert fills(path, tmp_path, "attribution_map") == ends * 2
    assert fills(path, tmp_path, "causal_map", score="loss") == [*ends, *[UNKNOWN] * 3]


def _rgb(colour):
    return "rgb({}, {}, {})".format(*(int(colour[place : place + 2], 16) for place in (1, 3, 5)))


def test_both_maps_have_one_scale_that_a_few_cells_do_not_stretch(tmp_path):
    rng = np.random.default_rng(1)
    attribution = rng.normal(size=(100, 2, 3))
    attribution[0, 0] = [1, 0, 0]
    path = planted(tmp_path / "run.h5", attribution, rng.normal(size=(100, 3)))
    with open_run(path) as run:
        shares = Tables(run).shares
    sizes = shares.filter(like="share_").abs().to_numpy()
    end = np.ceil(100 * np.nanquantile(sizes, 0.98)) / 100
    assert end < 1
    specification, _ = drawn(path, tmp_path)
    for panel in specification["vconcat"]:
        scale = panel["layer"][0]["encoding"]["color"]["condition"]["scale"]
        assert scale["domain"] == pytest.approx([-(end**0.5), -(end**0.5) / 2, 0, end**0.5 / 2, end**0.5])
        assert scale["clamp"] is True
        assert f"up to ±{end:.0%}." in panel["title"]["subtitle"][1]


def test_a_run_without_attributions_has_nothing_to_map(tmp_path):
    random_run(tmp_path / "run.h5", n_steps=2)
    with pytest.raises(AnalysisError) as error:
        draw_run(tmp_path / "run.h5", tmp_path / "a.svg", chart="heatmap")
    assert str(error.value) == ("the run has nothing to draw for causal_map, attribution_map; choose other panels.")


def test_a_selection_is_shared_by_both_maps(tmp_path):
    path = planted(tmp_path / "run.h5", [[[1, 2, 3], [1, 1, 1]]], [[1, 2, 3]])
    specification, _ = drawn(path, tmp_path)
    [selection] = [parameter for parameter in specification["params"] if parameter["name"] == "selected"]
    assert selection["select"]["fields"] == ["component"]
    for panel in specification["vconcat"]:
        assert panel["layer"][0]["name"] in selection["views"]
        opacity = panel["layer"][0]["encoding"]["opacity"]
        assert (opacity["condition"]["param"], opacity["condition"]["value"], opacity["value"]) == ("selected", 1, 0.25)
