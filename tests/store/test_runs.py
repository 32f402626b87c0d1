"""Several run files opened together."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynamics import open_run, open_runs
from dynamics.errors import RunFileError
from tests.analysis.runs import random_run


@pytest.fixture
def folder(tmp_path):
    for seed in (10, 2, 1):
        (tmp_path / f"sort-{seed}").mkdir()
        random_run(tmp_path / f"sort-{seed}" / "run.h5", seed=seed, n_steps=seed)
    return tmp_path


def test_a_pattern_gives_the_runs_in_the_order_of_their_numbers(folder, monkeypatch):
    with open_runs(str(folder / "sort-*" / "run.h5")) as runs:
        assert [len(run.steps) for run in runs] == [1, 2, 10]
        assert (len(runs), runs.names) == (3, ("sort-1", "sort-2", "sort-10"))
        assert runs[-1] is list(runs)[2]
        assert runs.components == runs[0].components
        assert repr(runs) == "Runs(3 of 6 components: sort-1, sort-2, sort-10)"
    assert not any(run._file for run in runs)
    monkeypatch.chdir(folder)
    with open_runs("**/run.h5") as runs:
        assert [str(run.path) for run in runs] == [f"sort-{seed}/run.h5" for seed in (1, 2, 10)]


def test_paths_and_patterns_are_taken_together_and_each_file_once(folder):
    paths = [folder / "sort-2" / "run.h5", folder / "sort-*" / "run.h5", folder / "sort-1" / ".." / "sort-2" / "run.h5"]
    with open_runs(paths) as runs:
        assert runs.names == ("sort-1", "sort-2", "sort-10")
    with open_runs(folder / "sort-2" / "run.h5") as runs:
        assert runs.names == ("sort-2",)


@pytest.mark.parametrize(
    ("files", "names"),
    [
        (["a.h5", "b.h5"], ("a", "b")),
        (["x/1/run.h5", "y/1/run.h5", "y/2/run.h5"], ("x/1", "y/1", "y/2")),
        (["run.h5", "more/run.h5"], None),
    ],
)
def test_names_are_what_the_paths_differ_in(tmp_path, files, names):
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        random_run(tmp_path / file, n_steps=1)
    with open_runs([tmp_path / file for file in files]) as runs:
        assert len(set(runs.names)) == len(files)
        assert names is None or runs.names == names


def test_a_name_with_the_marks_of_a_pattern_is_a_name(tmp_path):
    random_run(tmp_path / "run[1].h5", n_steps=1)
    with open_runs(tmp_path / "run[1].h5") as runs:
        assert len(runs) == 1


def test_new_rows_are_seen_after_a_refresh(folder):
    with open_runs(folder / "sort-2" / "run.h5") as runs:
        runs.refresh()
        assert len(runs[0].steps) == 2


def test_what_does_not_fit_is_refused_and_nothing_stays_open(folder, monkeypatch):
    monkeypatch.chdir(folder)
    opened = []

    def watched(path):
        opened.append(open_run(path))
        return opened[-1]

    monkeypatch.setattr("dynamics.store.runs.open_run", watched)
    random_run(folder / "wide.h5", layers=1, heads=3)
    for paths, message in (
        ("srot-*/run.h5", f"no run file matches 'srot-*/run.h5' (seen from {Path.cwd()}); check the pattern."),
        ([], "open_runs needs at least one path or pattern; got none."),
        (
            ["sort-1/run.h5", "sort-2/run.h5", "wide.h5"],
            "wide.h5 has 4 components from L0H0 to L0MLP, but sort-1/run.h5 has 6 components from L0H0 to L1MLP; open "
            "runs of the same components together, and others by themselves.",
        ),
    ):
        with pytest.raises(RunFileError) as caught:
            open_runs(paths)
        assert str(caught.value) == message
    assert len(opened) == 3
    assert not any(run._file for run in opened)
    (folder / "broken.h5").write_bytes(b"")
    with pytest.raises(RunFileError, match=r"^broken\.h5 is empty"):
        open_runs(["sort-1/run.h5", "broken.h5"])
    assert not any(run._file for run in opened)
