"""The panels of synergy draw the tables: joint effects against sums, and both ratios beside their controls."""

import json

import numpy as np
import pytest

from dynamics import open_run
from dynamics.analysis import joint_ablation_table, synergy_table
from dynamics.errors import AnalysisError
from dynamics.plot import draw_run
from dynamics.plot.palette import BLOAT, HERO
from tests.analysis.runs import N_EXAMPLES, components, random_arrays, random_run, random_synergy, write_run

MEMBERS = {"bloats": [0, 1], "heroes": [4]}


def planted(path, joint, single=0.5):
    """Write a run whose Bloats cost ``joint`` nats together at each step, and ``single`` each by themselves."""
    rng, rows, together = np.random.default_rng(0), [], []
    for step, effect in enumerate(joint):
        row = random_arrays(rng, 6)
        row["loss"][:] = 1.0
        row["ablation_loss"][:] = 1 + single
        sets, arrays = random_synergy(MEMBERS, 6)
        arrays["joint_loss"][:] = 1 + single
        arrays["joint_loss"][0] = 1 + effect
        rows.append(row)
        together.append((step, arrays))
    assert rows[0]["loss"].shape == (N_EXAMPLES,)
    return write_run(path, range(len(rows)), rows, components(2, 2), sets=sets, joint=together)


def drawn(path, **options):
    return json.loads(draw_run(path, path.with_suffix(".json"), chart="synergy", **options).read_text())


def test_the_data_are_those_of_the_tables(tmp_path):
    path = planted(tmp_path / "run.h5", [2.0, 1.0])
    data = drawn(path)["datasets"]
    with open_run(path) as run:
        joint, synergy = joint_ablation_table(run), synergy_table(run)
    points = {(row["step"], row["set"], row["score"]): row for row in data["joint"]}
    assert len(points) == len(joint) == 2 * 6 * 2
    for row in joint.to_dict("records"):
        point = points[row["step"], row["set"], row["score"]]
        assert (point["joint"], point["sum"]) == (pytest.approx(row["joint"]), pytest.approx(row["sum"]))
        assert point["of"] == (row["set"] if row["set"] in MEMBERS else "random")
    shown = {
        name: {(row["step"], row["set"], row["score"], row["what"]): row["shown"] for row in data[name]}
        for name in ("ratio_to_sum", "ratio_to_mean")
    }
    # The closed form: two components of 0.5 nats each that cost 2 together, and then 1.
    assert [shown["ratio_to_sum"][step, "bloats", "loss", "set"] for step in (0, 1)] == [2, 1]
    assert [shown["ratio_to_mean"][step, "bloats", "loss", "set"] for step in (0, 1)] == [4, 2]
    assert shown["ratio_to_mean"][0, "bloats", "loss", "size"] == 2
    for row in synergy.to_dict("records"):
        for name, values in shown.items():
            control = values[row["step"], row["set"], row["score"], "random"]
            known = np.isfinite(row[f"control_{name}"])
            assert control == (pytest.approx(row[f"control_{name}"], rel=1e-4) if known else None)


def test_ratios_that_no_axis_holds_are_written(tmp_path):
    path = planted(tmp_path / "run.h5", [30.0, 0.5])
    specification = drawn(path, score="loss")
    beyond = {row["shown"] for row in specification["datasets"]["ratio_to_sum"] if row["beyond"]}
    assert beyond == {30.0}
    domain = specification["vconcat"][0]["layer"][1]["encoding"]["y"]["scale"]["domain"]
    assert domain[1] < 20
    assert "▲: beyond 20." in specification["vconcat"][0]["title"]["subtitle"][1]
    svg = draw_run(path, tmp_path / "a.svg", score="loss", chart="synergy").read_text()
    assert "▲ 30" in svg


def test_an_undefined_ratio_is_a_gap_with_its_reason(tmp_path):
    path = planted(tmp_path / "run.h5", [0.5, 0.5], single=-0.25)
    rows = drawn(path)["datasets"]["ratio_to_sum"]
    bloats = [row for row in rows if (row["set"], row["score"], row["what"]) == ("bloats", "loss", "set")]
    assert [row["shown"] for row in bloats] == [None, None]
    assert {row["reason"] for row in bloats} == {"the sum of C over the set is not positive (-0.5)"}


def test_roles_have_their_colours_and_sets_their_points(tmp_path):
    path = planted(tmp_path / "run.h5", [2.0, 1.0, 1.0])
    svg = draw_run(path, tmp_path / "a.svg", score="loss", panels=("joint",)).read_text()
    # 3 steps and the legend.
    assert svg.count(f'fill="{BLOAT}"') >= 4
    assert svg.count(f'fill="{HERO}"') >= 4


def test_a_run_without_synergy_has_nothing_to_draw(tmp_path):
    random_run(tmp_path / "run.h5", n_steps=2)
    with pytest.raises(AnalysisError) as error:
        draw_run(tmp_path / "run.h5", tmp_path / "a.svg", chart="synergy")
    assert str(error.value) == (
        "the run has nothing to draw for ratio_to_sum, ratio_to_mean, joint; choose other panels."
    )
