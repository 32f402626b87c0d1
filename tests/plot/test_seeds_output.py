from pathlib import Path

import pytest

from dynamics.errors import PlotError, RunFileError
from dynamics.plot import draw_runs
from dynamics.plot.seeds_output import _default
from tests.analysis.runs import random_run
from tests.plot.pages import Page
from tests.plot.seeds import write_seeds


def test_a_page_in_the_folder_that_all_runs_share(tmp_path):
    path = draw_runs(write_seeds(tmp_path / "runs"), threshold=2)
    assert path == tmp_path / "runs" / "seeds.html"
    page = Page(path.read_text())
    assert "sort: 3 runs" in page.texts
    assert "3 (sort-0, sort-1, sort-2)" in page.texts
    names = [parameter["name"] for parameter in page.specification["params"]]
    # One selection for both grids, and one for all panels that draw runs.
    assert sorted(names) == ["chosen_run", "roles_by", "selected"]
    assert "title" not in page.specification


@pytest.mark.parametrize(
    ("name", "begins"), [("a.png", b"\x89PNG\r\n"), ("a.svg", b"<svg "), ("a.json", b"{"), ("a.html", b"<!DOCTYPE")]
)
def test_the_suffix_says_as_what(tmp_path, name, begins):
    path = draw_runs([write_seeds(tmp_path)], tmp_path / name)
    assert path.read_bytes().startswith(begins)


def test_runs_that_share_no_folder(tmp_path):
    with pytest.raises(PlotError) as caught:
        _default([Path("/x/run.h5"), Path("/y/run.h5")])
    assert str(caught.value) == "the runs share no folder to write the picture into; say where to with -o."


def test_no_run_is_drawn_over(tmp_path):
    for name in ("a", "seeds"):
        random_run(tmp_path / f"{name}.html", n_steps=1)
    before = (tmp_path / "seeds.html").read_bytes()
    with pytest.raises(PlotError) as caught:
        draw_runs(tmp_path / "*.html")
    assert str(caught.value) == (
        f"the picture would overwrite the run file {tmp_path / 'seeds.html'}; choose another output with -o."
    )
    assert (tmp_path / "seeds.html").read_bytes() == before


def test_runs_of_other_components_are_refused(tmp_path):
    random_run(tmp_path / "a.h5", n_steps=1)
    random_run(tmp_path / "b.h5", n_steps=1, layers=1)
    with pytest.raises(RunFileError) as caught:
        draw_runs(tmp_path / "*.h5")
    assert str(caught.value) == (
        f"{tmp_path / 'b.h5'} has 3 components from L0H0 to L0MLP, but {tmp_path / 'a.h5'} has 6 components from L0H0 "
        "to L1MLP; open runs of the same components together, and others by themselves."
    )
