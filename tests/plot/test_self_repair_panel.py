import json
import re

from dynamics.plot import draw_run
from tests.analysis.runs import components, random_run, write_run
from tests.analysis.test_self_repair import recorded


def test_every_layer_has_a_line_for_rows_and_one_for_interactions(tmp_path):
    listed = components(3, 2)
    path = write_run(tmp_path / "run.h5", [0, 10, 20], [recorded(seed, listed) for seed in range(3)], listed)
    data = json.loads(draw_run(path, tmp_path / "a.json", panels=("self_repair",)).read_text())["datasets"]
    drawn = data["self_repair"]
    assert [(row["step"], row["layer"]) for row in drawn] == [(s, layer) for s in (0, 10, 20) for layer in range(3)]
    svg = draw_run(path, tmp_path / "a.svg", panels=("self_repair",)).read_text()
    for layer in range(3):
        assert svg.count(f">layer {layer}</text>") == 2
    colours = re.findall(r'stroke="(#[0-9a-f]{6})" stroke-width="1.8"', svg)
    assert len(colours) == 6
    assert len(set(colours)) == 3
    assert ">interaction (nats)</text>" in svg
    # The lower of the two parts names the steps.
    assert svg.count(">optimizer step</text>") == 1


def test_many_layers_are_named_in_part(tmp_path):
    listed = components(24, 1)
    path = write_run(tmp_path / "run.h5", [0, 10], [recorded(seed, listed) for seed in range(2)], listed)
    svg = draw_run(path, tmp_path / "a.svg", panels=("self_repair",)).read_text()
    assert 4 <= len(set(re.findall(r">(layer \d+)</text>", svg))) <= 9


def test_a_run_without_it_has_no_such_panel(tmp_path):
    random_run(tmp_path / "run.h5", n_steps=2)
    assert "self-repair" not in draw_run(tmp_path / "run.h5", tmp_path / "a.svg").read_text()
