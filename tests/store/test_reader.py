from __future__ import annotations

import h5py
import numpy as np
import pytest

from dynamics.errors import RunFileError
from dynamics.store import open_run
from tests.store.conftest import row, write_run

WANTED = "Expected a run file that GapTrackerCallback wrote."


def failure(path) -> str:
    with pytest.raises(RunFileError) as error:
        open_run(path)
    return str(error.value)


def test_a_missing_file(tmp_path):
    path = tmp_path / "no.h5"
    assert failure(path) == f"there is no run file {path}; give the path that the training printed."


def test_an_empty_file(path):
    path.touch()
    assert failure(path) == f"{path} is empty. {WANTED}"


def test_a_file_that_is_not_hdf5(path):
    path.write_text("step,loss\n0,1\n")
    message = failure(path)
    assert message.startswith(f"{path} (14 bytes) is not an HDF5 file, or is damaged: ")
    assert message.endswith(f" {WANTED}")


@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_a_foreign_hdf5_file(path, libver):
    with h5py.File(path, "w", libver=libver) as file:
        file["weights"] = np.zeros(3)
    assert failure(path) == (
        f"{path} is an HDF5 file but not a run file: its 'format' attribute is None, expected "
        f"'gap-dynamics run'. {WANTED}"
    )


def test_a_file_of_a_newer_format(path):
    write_run(path).close()
    with h5py.File(path, "r+") as file:
        file.attrs["format_version"] = "2.0"
    assert failure(path) == (
        f"{path} has format version 2.0; this version of dynamics reads 1.x. "
        "Install the version of gap-dynamics that wrote it."
    )


def test_a_newer_minor_version_is_read(path):
    write_run(path).close()
    with h5py.File(path, "r+") as file:
        file.attrs["format_version"] = "1.7"
    with open_run(path) as run:
        assert run.metadata == {"seed": 7}


def test_a_truncated_file(path):
    writer = write_run(path)
    writer.append("snapshots", 0, row(0))
    writer.close()
    path.write_bytes(path.read_bytes()[:3000])
    assert failure(path).endswith(WANTED)


def test_a_run_file_that_lacks_a_group(path):
    write_run(path).close()
    with h5py.File(path, "r+") as file:
        del file["train"]
    assert failure(path).startswith(f"{path} is a run file but incomplete or damaged: ")


@pytest.mark.parametrize("text", ["[1, 2", "[1, 2]", "3"])
def test_metadata_that_is_no_object(path, text):
    write_run(path).close()
    with h5py.File(path, "r+") as file:
        file.attrs["metadata"] = text
    assert failure(path).startswith(f"{path} is a run file but incomplete or damaged: ")


def test_an_unknown_array_is_refused_by_name(path):
    write_run(path).close()
    with open_run(path) as run:
        with pytest.raises(KeyError) as error:
            run["los"]
        assert error.value.args[0] == f"{path} has no 'los' in group 'snapshots'; it has flag, loss, small."
        assert sorted(run) == ["flag", "loss", "small"]
        assert len(run) == 3
        assert repr(run) == f"Run({str(path)!r}: 0 snapshots of 3 components, finished)"


def test_rows_come_one_by_one_as_they_are_in_the_whole(path):
    writer = write_run(path)
    for step in range(3):
        writer.append("snapshots", step, row(step))
    writer.close()
    with open_run(path) as run:
        for name in run:
            rows = list(run.snapshots.rows(name))
            assert np.array_equal(rows, run[name], equal_nan=run[name].dtype != bool)
            assert rows[0].dtype == run[name].dtype
        with pytest.raises(KeyError, match="has no 'losses' in group 'snapshots'"):
            next(run.snapshots.rows("losses"))
