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
        name: {(row["step"], row["set"], row["score"]): row for row in data[name]}
        for name in ("ratio_to_sum", "ratio_to_mean")
    }
    # The closed form: two components of 0.5 nats each that cost 2 together, and then 1.
    assert [shown["ratio_to_sum"][step, "bloats", "loss"]["shown"] for step in (0, 1)] == [2, 1]
    assert [shown["ratio_to_mean"][step, "bloats", "loss"]["shown"] for step in (0, 1)] == [4, 2]
    assert [shown[name][0, "bloats", "loss"]["adds_up"] for name in shown] == [1, 2]
    for row in synergy.to_dict("records"):
        for name, values in shown.items():
            cell = values[row["step"], row["set"], row["score"]]
            for field, column in (
                ("control", f"control_{name}"),
                ("least", f"control_{name}_low"),
                ("most", f"control_{name}_high"),
            ):
                known = np.isfinite(row[column])
                assert cell[field] == (pytest.approx(row[column], rel=1e-4) if known else None)


def test_ratios_that_no_axis_holds_are_written(tmp_path):
    path = planted(tmp_path / "run.h5", [30.0, 0.5])
    specification = drawn(path, score="loss")
    for name, ratio, most in (("ratio_to_sum", 30, 5), ("ratio_to_mean", 60, 20)):
        assert {row["shown"] for row in specification["datasets"][name] if row["beyond"]} == {ratio}
        panel = next(panel for panel in specification["vconcat"] if name in json.dumps(panel))
        for row in panel["vconcat"]:
            assert row["layer"][0]["encoding"]["y"]["scale"]["domain"][1] < most
        assert f"▲: beyond {most}." in panel["title"]["subtitle"][-1]
        svg = draw_run(path, tmp_path / "a.svg", score="loss", panels=(name,)).read_text()
        assert svg.count(f"▲ {ratio}<") == 1


def test_an_undefined_ratio_is_a_gap_with_its_reason(tmp_path):
    path = planted(tmp_path / "run.h5", [0.5, 0.5], single=-0.25)
    rows = drawn(path)["datasets"]["ratio_to_sum"]
    bloats = [row for row in rows if (row["set"], row["score"]) == ("bloats", "loss")]
    assert [row["shown"] for row in bloats] == [None, None]
    assert {row["reason"] for row in bloats} == {"the sum of C over the set is not positive (-0.5)"}
    # A cross at both steps, for Bloats and for Heroes.
    svg = draw_run(path, tmp_path / "a.svg", score="loss", panels=("ratio_to_sum",)).read_text()
    assert svg.count(">×<") == 4
    subtitle = drawn(path)["vconcat"][0]["title"]["subtitle"]
    assert subtitle[-1] == "Cross: there is no ratio; its tooltip says why."


def test_roles_have_their_colours_and_sets_their_points(tmp_path):
    path = planted(tmp_path / "run.h5", [2.0, 1.0, 1.0])
    svg = draw_run(path, tmp_path / "a.svg", score="loss", panels=("joint",)).read_text()
    for colour, name, last in ((BLOAT, "all Bloats", 2), (HERO, "all Heroes", 2)):
        points = [mark for mark in svg.split("<path ")[1:] if f'fill="{colour}"' in mark.split(">")[0]]
        assert len(points) == 3
        texts = [text for text in svg.split("<text ")[1:] if f'fill="{colour}"' in text.split(">")[0]]
        assert {name, str(last)} <= {text.split(">")[1].split("<")[0] for text in texts}


def square(path, place):
    return drawn(path, score="loss")["vconcat"][2]["hconcat"][place]


def test_the_diagonal_spans_what_is_drawn_and_both_axes_agree(tmp_path):
    path = planted(tmp_path / "run.h5", [2.0, -0.5])
    line, *_ = square(path, 0)["layer"]
    ends = [(end["sum"], end["joint"]) for end in line["data"]["values"] if end["score"] == "loss"]
    # The sets of two cost from -0.5 to 2 nats together, and 1 one at a time.
    assert ends == [(-0.5, -0.5), (2, 2)]
    assert line["encoding"]["x"]["scale"] == line["encoding"]["y"]["scale"] == {"type": "sqrt", "nice": True}


def test_steps_are_named_where_there_is_room(tmp_path):
    path = planted(tmp_path / "run.h5", [2.0, 1.9999, 0.1, 2.0001])
    points = drawn(path, score="loss")["datasets"]["joint"]
    told = {row["step"]: row["told"] for row in points if (row["of"], row["score"]) == ("bloats", "loss")}
    # Three lie on each other: the last of them is named.
    assert told == {0: False, 1: False, 2: True, 3: True}


def test_random_sets_stand_beside_the_role_whose_size_they_have(tmp_path):
    path = planted(tmp_path / "run.h5", [2.0, 1.0])
    points = drawn(path)["datasets"]["joint"]
    for role, members in MEMBERS.items():
        of = [row for row in points if row["role"] == role]
        assert {row["size"] for row in of} == {len(members)}
        assert {row["of"] for row in of} == {role, "random"}
        assert [row["set"] for row in of if row["of"] == "random"] == [f"random_{role}_{draw}" for draw in (0, 1)] * 4


def test_empty_sets_have_crosses_and_no_points(tmp_path):
    rng = np.random.default_rng(0)
    sets, arrays = random_synergy({"bloats": [], "heroes": []}, 6, role_score=-1)
    path = write_run(
        tmp_path / "run.h5", [0], [random_arrays(rng, 6)], components(2, 2), sets=sets, joint=[(0, arrays)]
    )
    specification = drawn(path)
    assert specification["datasets"]["joint"] == []
    assert {row["reason"] for row in specification["datasets"]["ratio_to_sum"]} == {"the set is empty"}
    svg = draw_run(path, tmp_path / "a.svg", chart="synergy").read_text()
    # Two ratios, two roles.
    assert svg.count(">×<") == 4


def test_a_run_without_synergy_has_nothing_to_draw(tmp_path):
    random_run(tmp_path / "run.h5", n_steps=2)
    with pytest.raises(AnalysisError) as error:
        draw_run(tmp_path / "run.h5", tmp_path / "a.svg", chart="synergy")
    assert str(error.value) == (
        "the run has nothing to draw for ratio_to_sum, ratio_to_mean, joint; choose other panels, or track again with "
        "a schedule of synergy, such as synergy=5000."
    )
