from pathlib import Path

import pytest

from dynamics import open_runs
from dynamics.analysis import chance_share
from dynamics.errors import AnalysisError
from dynamics.plot import SeedTables
from dynamics.plot.seeds_tables import shared_folder
from tests.analysis.runs import components, random_run, write_run
from tests.analysis.test_role_frequency import planted
from tests.plot.seeds import INVERTED, write_seeds


def by_loss(table):
    return table[table["score"] == "loss"]


def test_frequency_counts_the_planted_runs(tmp_path):
    with open_runs(write_seeds(tmp_path)) as runs:
        table = by_loss(SeedTables(runs, threshold=2).frequency)
    heroes, bloats = (table[table["role"] == role].set_index("component") for role in ("hero", "bloat"))
    assert heroes["runs"].to_dict() == {"L0H0": 0, "L0MLP": 0, "L1H0": 0, "L1MLP": 2}
    assert bloats["runs"].to_dict() == {"L0H0": 2, "L0MLP": 0, "L1H0": 0, "L1MLP": 0}
    assert set(table["of"]) == {3}
    assert bloats.loc["L0H0", ["heroes", "bloats", "aligned", "mixed"]].tolist() == [0, 2, 1, 0]
    assert bloats[["row", "column"]].to_numpy().tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert bloats["position"].tolist() == ["H0", "MLP", "H0", "MLP"]
    p = chance_share(4, 2)
    assert table["by_luck"].tolist() == pytest.approx([3 * p] * 8)
    assert bloats.loc["L0H0", "p_value"] == pytest.approx(3 * p**2 * (1 - p) + p**3)


@pytest.mark.parametrize(("seeds", "possible"), [(3, False), (4, True)])
def test_beyond_luck_is_for_all_cells_together(tmp_path, seeds, possible):
    """Luck makes a component a Bloat with 3/16; in all of 3 runs with 0.0066 and of 4 with 0.0012, times 8 cells."""
    with open_runs(write_seeds(tmp_path, [INVERTED] * seeds)) as runs:
        table = by_loss(SeedTables(runs, threshold=2).frequency)
    assert (8 * chance_share(4, 2) ** seeds <= 0.05) == possible
    assert set(table["possible"]) == {possible}
    assert table[table["beyond"]]["component"].tolist() == (["L1MLP", "L0H0"] if possible else [])


def test_the_layers_hold_what_was_planted(tmp_path):
    with open_runs(write_seeds(tmp_path)) as runs:
        table = by_loss(SeedTables(runs, threshold=2).layers).set_index(["role", "layer"])
    assert table["mean"].to_dict() == {
        ("hero", 0): 0,
        ("hero", 1): pytest.approx(2 / 3),
        ("bloat", 0): pytest.approx(2 / 3),
        ("bloat", 1): 0,
    }
    assert (table["beyond"] == (table["p_value"] * 4 <= 0.05)).all()


def test_rho_by_step_is_left_out_where_less_than_half_of_the_runs_have_one(tmp_path):
    for name, steps in (("a", 4), ("b", 2), ("c", 2), ("d", 3)):
        planted(tmp_path / f"{name}.h5", *INVERTED, steps)
    with open_runs(tmp_path / "*.h5") as runs:
        tables = SeedTables(runs, threshold=2)
        assert by_loss(tables.rho_by_step)["runs"].tolist() == [4, 4, 2]
        by_run = by_loss(tables.rho_by_run)
    assert by_run.groupby("run").size().to_dict() == {"a": 4, "b": 2, "c": 2, "d": 3}
    assert set(by_run["rho"]) == {-1.0}


@pytest.mark.parametrize(
    ("files", "name"),
    [
        (["sort-1/run.h5", "sort-12/run.h5"], "sort: 2 runs"),
        (["deep_net_0.h5", "deep_net_1.h5"], "deep_net: 2 runs"),
        (["here/a.h5", "here/b.h5"], "here: 2 runs"),
        (["sort-3/run.h5"], "sort-3: 1 run"),
    ],
)
def test_the_name_is_what_the_runs_have_in_common(tmp_path, files, name):
    for file in files:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        random_run(tmp_path / file, n_steps=1)
    with open_runs([tmp_path / file for file in files]) as runs:
        assert SeedTables(runs).name == name


def test_layers_of_other_components_have_columns_without_names(tmp_path):
    listed = components(2, 1)
    random_run(tmp_path / "a.h5", n_steps=3, prefix="enc.")
    with open_runs(tmp_path / "a.h5") as runs:
        table = SeedTables(runs, "all").frequency
    assert len(listed) == 4
    assert set(table["position"]) == {""}
    assert table["column"].tolist() == [0, 1, 2] * 8


def test_a_run_without_snapshots_is_named(tmp_path):
    random_run(tmp_path / "a.h5", n_steps=1, layers=1, heads=1)
    write_run(tmp_path / "b.h5", [], [], components(1, 1), finished=False)
    with open_runs(tmp_path / "*.h5") as runs, pytest.raises(AnalysisError) as caught:
        SeedTables(runs)
    assert str(caught.value) == (
        f"{tmp_path / 'b.h5'} has no snapshots yet; try again once the training has taken its first."
    )


@pytest.mark.parametrize(
    ("paths", "folder"),
    [
        (["runs/a/run.h5", "runs/b/run.h5"], "runs"),
        (["a/run.h5", "b/run.h5"], "."),
        (["run.h5", "b/run.h5"], "."),
        (["/x/runs/a.h5", "/x/runs/b.h5"], "/x/runs"),
        (["/x/a.h5", "/y/b.h5"], "/"),
        (["runs-1/a.h5", "runs-2/a.h5"], "."),
    ],
)
def test_the_shared_folder(paths, folder):
    assert shared_folder([Path(path) for path in paths]) == Path(folder)


def test_paths_of_two_kinds_share_a_folder_once_resolved(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    monkeypatch.chdir(tmp_path / "a")
    for paths in (["run.h5", tmp_path / "b/run.h5"], ["../a/run.h5", "../b/run.h5"]):
        assert shared_folder([Path(path) for path in paths]) == tmp_path
