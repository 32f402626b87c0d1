import pytest

from dynamics import open_run
from dynamics.plot import Tables
from dynamics.plot.figure import figure
from tests.analysis.runs import random_run

LINKED = ("scatter", "bump_causal", "bump_gradient")
WITH_COMPONENTS = (*LINKED, "roles", "layers")


@pytest.mark.parametrize("panels", [LINKED, ("scatter", "roles", "bump_gradient"), ("bump_causal", "layers")])
def test_one_selection_and_one_switch_for_all_panels(tmp_path, panels):
    """Each panel's own view takes clicks; that the parameter has one name is what links them."""
    random_run(tmp_path / "run.h5", n_steps=3)
    specification = figure(Tables(open_run(tmp_path / "run.h5")), panels=panels).to_dict()
    parameters = {one["name"]: one for one in specification["params"]}
    assert len(parameters) == len(specification["params"])
    assert {"selected", "roles_by", "at_snapshot"} <= set(parameters)
    assert parameters["selected"]["select"].items() >= {"type": "point", "fields": ["component"]}.items()
    views = set(parameters["selected"]["views"])
    drawn = [{layer.get("name") for layer in panel["layer"]} & views for panel in specification["vconcat"]]
    assert sum(map(bool, drawn)) == len(set(panels) & set(WITH_COMPONENTS))


def test_panels_share_the_data_of_cells(tmp_path):
    """Each adds its own columns, and none loses those of another."""
    random_run(tmp_path / "run.h5", n_steps=3)
    together = figure(Tables(open_run(tmp_path / "run.h5")), panels=(*LINKED, "roles")).to_dict()["datasets"]
    alone = {
        panel: figure(Tables(open_run(tmp_path / "run.h5")), panels=(panel,)).to_dict()["datasets"]
        for panel in (*LINKED, "roles")
    }
    [cells] = together["cells"]
    for datasets in alone.values():
        [own] = datasets["cells"]
        assert own.items() <= cells.items()
    assert {"end", "y", "place_loss", "p_hero_loss", "rank_causal_exact_match"} <= set(cells)
