"""How sure roles are, as opacity; and the selection of components, which the raster and the layers share."""

import re

import numpy as np
import pytest
import vl_convert

from dynamics import open_run
from dynamics.analysis import Findings
from dynamics.plot import Tables, draw_run, figure
from dynamics.plot.axes import vega_lite_version
from dynamics.plot.figure import specification as specification_of
from dynamics.plot.palette import ALIGNED, BLOAT, CHOSEN, HERO, LUCK, UNDEFINED
from tests.analysis.runs import components, random_arrays, random_run, write_run
from tests.plot.svg import boxes

COLOURS = {"hero": HERO, "bloat": BLOAT, "aligned": ALIGNED, "undefined": UNDEFINED}


def specification(path, *panels):
    return figure(Tables(open_run(path)), panels=panels).to_dict()


def subtitle(path):
    [drawn] = specification(path, "roles")["vconcat"]
    return drawn["title"]["subtitle"]


def opacities(svg):
    return {role: sorted(box[-1] for box in boxes(svg, colour)) for role, colour in COLOURS.items()}


@pytest.mark.parametrize("score", ["exact_match", "loss"])
def test_opacity_is_the_share_of_resamples_that_give_the_role(tmp_path, score):
    random_run(tmp_path / "run.h5", n_steps=5)
    drawn = opacities(draw_run(tmp_path / "run.h5", tmp_path / "a.svg", score=score, panels=("roles",)).read_text())
    with open_run(tmp_path / "run.h5") as run:
        found = Findings(run).by[score]
        roles, table = found.timeline.roles.ravel(), found.role_probability
    shares = {"hero": table["p_hero"], "bloat": table["p_bloat"], "aligned": 1 - table["p_hero"] - table["p_bloat"]}
    for role, share in shares.items():
        # From 0.3 at a fifth and less to 1.
        expected = 0.3 + 0.7 * (np.clip(share[roles == role], 0.2, 1) - 0.2) / 0.8
        assert drawn[role] == pytest.approx(sorted(expected), abs=1e-4)
    assert len({opacity for found in drawn.values() for opacity in found}) > 3
    assert "opacity is the share of resampled probes" in subtitle(tmp_path / "run.h5")[1]


def test_undefined_stays_undefined(tmp_path, rng):
    rows = [random_arrays(rng, 6) for _ in range(3)]
    rows[1]["gradient_norm"][:] = np.nan
    path = write_run(tmp_path / "run.h5", [0, 4, 8], rows, components(2, 2))
    drawn = opacities(draw_run(path, tmp_path / "a.svg", panels=("roles",)).read_text())
    assert drawn["undefined"] == [1.0] * 6


def test_a_single_batch_gives_full_colours_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.analysis.runs.N_BATCHES", 1)
    random_run(tmp_path / "run.h5", n_steps=3)
    svg = draw_run(tmp_path / "run.h5", tmp_path / "a.svg", panels=("roles",)).read_text()
    drawn = opacities(svg)
    assert sum(map(len, drawn.values())) == 3 * 6
    assert {opacity for found in drawn.values() for opacity in found} == {1.0}
    assert subtitle(tmp_path / "run.h5")[1:] == [
        "How sure a role is cannot be told: the probe has a single batch, and none can be resampled."
    ]
    assert "of resamples</text>" not in svg


def test_tooltips_hold_the_share(tmp_path):
    random_run(tmp_path / "run.h5", n_steps=3)
    [drawn] = specification(tmp_path / "run.h5", "roles")["vconcat"]
    hint = drawn["layer"][0]["mark"]["tooltip"]["expr"]
    for score in ("exact_match", "loss"):
        assert (
            f"datum.role_{score} === 'hero' ? datum.p_hero_{score} : datum.role_{score} === 'bloat' ? "
            f"datum.p_bloat_{score} : 1 - datum.p_hero_{score} - datum.p_bloat_{score}"
        ) in hint


def test_one_selection_links_the_raster_and_the_layers(tmp_path):
    random_run(tmp_path / "run.h5", n_steps=3)
    whole = specification(tmp_path / "run.h5", "accuracy", "roles", "layers")
    [selected] = [parameter for parameter in whole["params"] if parameter["name"] == "selected"]
    assert selected["select"] == {
        "type": "point",
        "fields": ["component"],
        "on": "click[event.item && event.item.datum && isValid(event.item.datum.component)]",
        "clear": "dblclick",
    }
    _, roles, layers = whole["vconcat"]
    named = [layer["name"] for panel in (roles, layers) for layer in panel["layer"] if "name" in layer]
    assert len(named) == 2
    assert set(named) <= set(selected["views"])
    raster, texts = roles["layer"][:2]
    assert (raster["encoding"]["opacity"]["condition"]["param"], raster["encoding"]["opacity"]["value"]) == (
        "selected", 0.1
    )  # fmt: skip
    # A label is a way to select, too: its rows say of which component.
    assert [row["component"] for row in texts["data"]["values"]] == ["L0H0", "L0H1", "L0MLP", "L1H0", "L1H1", "L1MLP"]
    assert "tooltip" in texts["mark"]
    behind = layers["layer"][0]
    assert behind["encoding"]["opacity"] == {
        "condition": {"param": "selected", "empty": False, "value": 1}, "value": 0
    }  # fmt: skip
    tops = {row["component"]: (row["y"], row["y2"]) for row in behind["data"]["values"]}
    assert len(tops) == 6
    assert tops["L0H0"] == tops["L0MLP"] != tops["L1H0"]


@pytest.mark.parametrize("panels", [("roles",), ("layers",), ("roles", "layers")])
def test_a_still_picture_looks_as_if_nothing_were_selected(tmp_path, panels):
    random_run(tmp_path / "run.h5", n_steps=3)
    svg = draw_run(tmp_path / "run.h5", tmp_path / "a.svg", panels=panels).read_text()
    assert {box[-1] for box in boxes(svg, CHOSEN)} <= {0.0}
    assert 'opacity="0.1"' not in svg
    labels = re.findall(r'<text text-anchor="end"[^>]*>L\dH\d</text>', svg)
    assert len(labels) == (4 if "roles" in panels else 0)
    assert all('fill="#68717c" opacity="1"' in label for label in labels)


@pytest.mark.parametrize("score", ["exact_match", "loss"])
def test_the_band_of_luck_lies_behind_the_counts_of_each_layer(tmp_path, score):
    random_run(tmp_path / "run.h5", n_steps=4, layers=3)
    tables = Tables(open_run(tmp_path / "run.h5"))
    # By luck both roles have the same band; here each has its own, and each row.
    drawn, ends = tables.layers.copy(), [f"{name}_{end}" for name in ("heroes", "bloats") for end in ("low", "high")]
    for place, name in enumerate(ends):
        for other, suffix in enumerate(("exact_match", "loss")):
            drawn[f"{name}_{suffix}"] = place + other / 2 + np.arange(len(drawn)) / 100
    tables.__dict__["layers"] = drawn
    picture = specification_of(figure(tables, score=score, panels=("layers",), x="linear"))
    svg = vl_convert.vegalite_to_svg(picture, vl_version=vega_lite_version())
    # The upper end of bloats, 3.5 and some, is the largest.
    unit, middle = 28 / 4, drawn["layer"] * 70 + 28
    expected = []
    for name, sign in (("heroes", -1), ("bloats", 1)):
        near, far = (middle + sign * drawn[f"{name}_{end}_{score}"] * unit for end in ("low", "high"))
        expected += zip(np.minimum(near, far), np.abs(far - near), strict=True)
    assert sorted((top, tall) for _, top, _, tall, _ in boxes(svg, LUCK)) == [
        pytest.approx(pair, abs=1e-3) for pair in sorted(expected)
    ]
    # Bars of counts lie over it, and reach as far as the count.
    assert svg.rindex(LUCK) < svg.index(f'fill="{HERO}"')
    for name, colour in (("heroes", HERO), ("bloats", BLOAT)):
        counts = drawn[f"{name}_{score}"]
        assert sorted(tall for _, _, _, tall, _ in boxes(svg, colour)) == pytest.approx(
            sorted(counts[counts > 0] * unit)
        )


def test_counts_and_their_band_share_a_row(tmp_path):
    """Table against table: a band must not slip to another layer, role or score."""
    random_run(tmp_path / "run.h5", n_steps=3, layers=3)
    with open_run(tmp_path / "run.h5") as run:
        drawn = Tables(run).layers.set_index(["step", "layer"])
        by = {score: found.counts.dropna(subset="layer") for score, found in Findings(run).by.items()}
    for score, counted in by.items():
        for role, name in (("hero", "heroes"), ("bloat", "bloats")):
            counts = counted[counted["role"] == role].set_index(["step", "layer"]).loc[drawn.index]
            for column, end in (("count", ""), ("low", "_low"), ("high", "_high"), ("p_value", "_p")):
                assert drawn[f"{name}{end}_{score}"].tolist() == counts[column].tolist()
