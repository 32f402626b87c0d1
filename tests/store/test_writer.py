from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import h5py
import numpy as np
import pytest
import xarray as xr

from dynamics.errors import RunFileError
from dynamics.store import open_run
from dynamics.store.schema import METRIC_NAME_BYTES
from tests.store.conftest import AXES, SPECS, row, write_run

ROOT = Path(__file__).parents[2]


def assert_rows(run, seeds) -> None:
    for name in SPECS:
        np.testing.assert_array_equal(run[name], np.stack([row(seed)[name] for seed in seeds]))
        assert run[name].dtype == row(0)[name].dtype


def test_rows_come_back_exactly(path):
    writer = write_run(path)
    for step in (0, 10, 200):
        writer.append("snapshots", step, row(step))
    writer.append("train", 5, {"gradient_norm": np.array([1, 2, 3], np.float32)})
    writer.close()
    with open_run(path) as run:
        assert run.steps.tolist() == [0, 10, 200]
        assert_rows(run, (0, 10, 200))
        assert run.dims("flag") == ("step", "component", "example")
        assert run.train.steps.tolist() == [5]
        assert run.train["gradient_norm"].tolist() == [[1, 2, 3]]
        assert run.metadata == {"seed": 7}
        assert run.finished
        assert run.baselines == ("mean", "zero")
        assert run.methods == ("gradient",)
        assert [(c.label, c.layer, c.kind, c.head) for c in run.components] == [
            ("L0H0", 0, "head", 0),
            ("L0H1", 0, "head", 1),
            ("L0MLP", 0, "mlp", None),
        ]


def test_every_array_has_named_axes_a_unit_and_a_meaning(path):
    write_run(path).close()
    seen = 0

    def look(name, item):
        nonlocal seen
        if isinstance(item, h5py.Dataset):
            seen += 1
            assert item.attrs["units"], name
            assert item.attrs["long_name"], name
            assert item.is_scale or all(len(dim) == 1 for dim in item.dims), name
            assert item.dtype.kind in "ifOS", name
            if item.dtype.kind == "O":
                assert h5py.check_string_dtype(item.dtype) is not None, name

    with h5py.File(path) as file:
        file.visititems(look)
    assert seen >= len(AXES) + len(SPECS)


def test_xarray_opens_it_with_labelled_axes(path):
    writer = write_run(path)
    writer.append("snapshots", 3, row(1))
    writer.append_metrics(3, {"train/loss": 0.5})
    writer.close()
    with xr.open_dataset(path, engine="h5netcdf", group="snapshots") as dataset:
        assert dataset.flag.dims == ("step", "component", "example")
        assert dataset.flag.dtype == bool
        assert dataset.loss.attrs["units"] == "nat"
        assert dataset.step.values.tolist() == [3]
        assert dataset.component.values.tolist() == ["L0H0", "L0H1", "L0MLP"]
        assert dataset.flag.coords["component_kind"].values.tolist() == ["head", "head", "mlp"]
        np.testing.assert_array_equal(dataset.flag[0], row(1)["flag"])
        with open_run(path) as run:
            xr.testing.assert_equal(run.to_xarray().reset_coords(drop=True), dataset.load().reset_coords(drop=True))
    with xr.open_dataset(path, engine="h5netcdf", group="metrics") as dataset:
        assert dataset.value.sel(metric="train/loss", step=3).item() == 0.5


def test_a_reader_sees_whole_rows_while_the_writer_is_at_work(path):
    writer = write_run(path)
    writer.append("snapshots", 0, row(0))
    with open_run(path) as run:
        writer.append("snapshots", 1, row(1))
        assert run.steps.tolist() == [0]
        assert_rows(run, (0,))
        run.refresh()
        assert run.steps.tolist() == [0, 1]
        assert_rows(run, (0, 1))
        assert not run.finished
    writer.close()


def test_a_row_that_was_begun_but_not_announced_is_not_there(path, monkeypatch):
    writer = write_run(path)
    writer.append("snapshots", 0, row(0))
    with monkeypatch.context() as patch:
        patch.setattr(writer, "_announce", lambda *_: (_ for _ in ()).throw(OSError("pulled the plug")))
        with pytest.raises(RunFileError):
            writer.append("snapshots", 1, row(1))
    with open_run(path) as run:
        assert_rows(run, (0,))
    writer.append("snapshots", 2, row(2))
    writer.close()
    with open_run(path) as run:
        assert run.steps.tolist() == [0, 2]
        assert_rows(run, (0, 2))


def test_the_working_folder_may_change_while_the_file_is_open(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    writer = write_run("run.h5")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    writer.append("snapshots", 0, row(0))
    writer.close()
    with open_run(tmp_path / "run.h5") as run:
        assert_rows(run, (0,))


def test_a_writer_whose_file_was_replaced_says_so_and_leaves_the_other_alone(path):
    first = write_run(path)
    first.append("snapshots", 0, row(0))
    second = write_run(path, overwrite=True)
    second.append("snapshots", 5, row(5))
    with pytest.raises(RunFileError) as error:
        first.append("snapshots", 1, row(1))
    assert str(error.value) == (
        f"{path}: the row of step 1 in 'snapshots' could not be written (the file at this path was moved, removed or "
        "replaced; put it back). Nothing before it is touched; make room or mend what is wrong, then append the row "
        "again."
    )
    second.append("snapshots", 6, row(6))
    second.close()
    first.close()
    with open_run(path) as run:
        assert run.steps.tolist() == [5, 6]
        assert_rows(run, (5, 6))


def test_of_two_writers_that_start_at_once_one_is_refused(path, monkeypatch):
    # The second looks whether the path is free before the first has taken it.
    import dynamics.store.writer as writer_module

    first = write_run(path)
    first.append("snapshots", 0, row(0))
    calls = []
    check = writer_module.check_target
    monkeypatch.setattr(
        writer_module,
        "check_target",
        lambda *given: (calls.append(given), Path(given[0]) if len(calls) == 1 else check(*given))[1],
    )
    with pytest.raises(RunFileError, match="exists already and is not overwritten"):
        write_run(path)
    first.append("snapshots", 1, row(1))
    first.close()
    with open_run(path) as run:
        assert_rows(run, (0, 1))
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_metadata_of_any_kind_is_kept_as_far_as_json_can(path):
    endless: dict = {}
    endless["again"] = endless
    write_run(path, metadata={(1, 2): {3: np.int64(4)}, "set": {5}, "path": Path("a"), "endless": endless}).close()
    with open_run(path) as run:
        assert run.metadata["(1, 2)"] == {"3": 4}
        assert run.metadata["set"] == [5]
        assert run.metadata["path"] == "a"
        assert "again" in run.metadata["endless"]


_NO_ROOM = """
import resource, sys
from dynamics.errors import RunFileError
from tests.store.conftest import write_run
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, resource.RLIM_INFINITY))
try:
    write_run(sys.argv[1])
except RunFileError as error:
    print(error)
"""


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="needs posix_fallocate")
def test_no_room_for_the_file_itself(path):
    child = subprocess.run(
        [sys.executable, "-c", _NO_ROOM, str(path)], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (child.returncode, child.stderr) == (0, "")
    assert child.stdout == (
        f"the run file {path} cannot be created ([Errno 27] File too large); make room or choose another place.\n"
    )
    assert not list(path.parent.iterdir())


def test_reserved_space_does_not_stay_in_the_file(path):
    writer = write_run(path)
    writer.append_metrics(0, {"a": 1.0})
    before = path.stat().st_size
    for step in range(1, 21):
        writer.append_metrics(step, {"a": 1.0})
    assert path.stat().st_size < before + 20_000
    writer.close()


def test_metrics_get_a_column_when_they_first_appear(path):
    writer = write_run(path)
    long = "é" * 100
    writer.append_metrics(0, {"a": 1.0})
    writer.append_metrics(5, {"b": 2.0, long: 3.0})
    writer.append_metrics(6, {"a": 4.0})
    writer.close()
    with open_run(path) as run:
        names = run.metrics.labels("metric").tolist()
        assert names == ["a", "b", "é" * (METRIC_NAME_BYTES // 2)]
        np.testing.assert_array_equal(run.metrics["value"], [[1, np.nan, np.nan], [np.nan, 2, 3], [4, np.nan, np.nan]])
        assert run.metrics.steps.tolist() == [0, 5, 6]


def test_an_existing_file_is_kept(path):
    path.write_text("precious")
    with pytest.raises(RunFileError) as error:
        write_run(path)
    assert str(error.value) == (
        f"the run file {path} exists already and is not overwritten; choose another path, "
        "or pass overwrite=True (on the command line --tracker.overwrite=true) to replace it."
    )
    assert path.read_text() == "precious"


def test_overwriting_replaces_it_once_the_new_file_is_whole(path, monkeypatch):
    path.write_text("precious")
    with monkeypatch.context() as patch:
        patch.setattr(h5py.Group, "create_group", lambda *_: (_ for _ in ()).throw(RuntimeError("HDF5 is at a loss")))
        with pytest.raises(RunFileError) as error:
            write_run(path, overwrite=True)
    assert str(error.value) == (
        f"the run file {path} cannot be created (HDF5 is at a loss); make room or choose another place."
    )
    assert path.read_text() == "precious"
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    write_run(path, overwrite=True).close()
    with open_run(path) as run:
        assert len(run.steps) == 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda tmp: tmp,
            "the run file {0} is a folder; give the path of a file, such as {0}/run.h5.",
        ),
        (
            lambda tmp: ((tmp / "file").write_text(""), tmp / "file" / "run.h5")[1],
            "the folder of the run file {0} cannot be made: [Errno 17] File exists: '{0.parent}'.",
        ),
    ],
)
def test_places_where_no_file_can_be(tmp_path, make, message):
    target = make(tmp_path)
    with pytest.raises(RunFileError) as error:
        write_run(target)
    assert str(error.value) == message.format(target)


_LIMITED = textwrap.dedent(
    """
    import os, resource, sys
    from dynamics.errors import RunFileError
    from tests.store.conftest import row, write_run
    path = sys.argv[1]
    writer = write_run(path)
    writer.append("snapshots", 0, row(0))
    unlimited = resource.RLIM_INFINITY
    resource.setrlimit(resource.RLIMIT_FSIZE, (os.path.getsize(path) + 5000, unlimited))
    for _ in range(3):
        try:
            writer.append("snapshots", 1, row(1))
        except RunFileError as error:
            print(error)
    try:
        writer.append_metrics(1, {"a": 1.0})
    except RunFileError as error:
        print(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (unlimited, unlimited))
    writer.append("snapshots", 1, row(1))
    writer.append_metrics(1, {"a": 1.0})
    writer.close()
    """
)


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="needs posix_fallocate")
def test_a_file_that_may_not_grow_fails_cleanly_and_goes_on_later(path):
    child = subprocess.run(
        [sys.executable, "-c", _LIMITED, str(path)], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert child.returncode == 0, child.stderr
    message = (
        f"{path}: the row of step 1 in '{{}}' could not be written ([Errno 27] File too large). "
        "Nothing before it is touched; make room or mend what is wrong, then append the row again."
    )
    assert child.stdout.splitlines() == [message.format("snapshots")] * 3 + [message.format("metrics")]
    with open_run(path) as run:
        assert_rows(run, (0, 1))
        assert run.metrics["value"].tolist() == [[1.0]]
