"""Files that a dead writer left open are mended, files of living writers are left alone."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from dynamics.errors import RunFileError
from dynamics.store import check_run, continue_run, open_run, repair_run
from dynamics.store import left_open as left_open_module
from dynamics.store import reader as reader_module
from dynamics.store import repair as repair_module
from dynamics.store.__main__ import main
from dynamics.store.left_open import checksum, left_open, writer_state
from tests.store.conftest import row, write_run
from tests.store.mutations import digest

ROOT = Path(__file__).parents[2]
METRICS = [{"a": 1.0}, {"b": 2.0, "c": float("nan")}, {"a": 3.0, "d": 4.0}]


def fill(writer, steps=(0, 10, 20)) -> None:
    for number, step in enumerate(steps):
        writer.append("snapshots", step, row(step))
        writer.append("train", step, {"gradient_norm": np.full(3, step, np.float32)})
        writer.append_metrics(step, METRICS[number])


@pytest.fixture
def abandoned(path):
    """A file as a writer leaves it that dies after its third row."""
    living = path.with_name("living.h5")
    writer = write_run(living)
    fill(writer)
    shutil.copy(living, path)
    writer.close()
    living.unlink()
    return path


def contents(path):
    with open_run(path) as run:
        return {
            (group.name, name): repr(values.to_numpy().tolist())
            for group in (run.snapshots, run.train, run.metrics)
            for name, values in group.to_xarray().variables.items()
        } | {"rest": (run.metadata, run.finished, run.components, run.baselines, run.methods)}


def test_the_checksum_is_that_of_its_author():
    # From the examples in lookup3.c.
    assert [checksum(data) for data in (b"", b"Four score and seven years ago")] == [0xDEADBEEF, 0x17770551]


def test_a_file_left_open_is_repaired(abandoned, capsys):
    before = digest(abandoned)
    bytes_before = abandoned.read_bytes()
    with pytest.raises(OSError, match="already open for write"):
        h5py.File(abandoned)
    assert left_open(abandoned)
    with open_run(abandoned) as run:
        # Not by HDF5's SWMR reader, which never gives up on a damaged file.
        assert run._left_behind
    assert main(["repair", str(abandoned)]) == 0
    assert capsys.readouterr().out == f"repaired: {abandoned}\n"
    assert digest(abandoned) == before
    with h5py.File(abandoned) as file:
        assert file["snapshots/loss"].shape == (3, 2000)
    assert not left_open(abandoned)
    backup = abandoned.with_name("run.h5.backup-1")
    assert sorted(abandoned.parent.iterdir()) == [abandoned, backup]
    assert backup.read_bytes() == bytes_before
    assert main(["repair", str(abandoned)]) == 1
    assert capsys.readouterr().err == (f"{abandoned} was closed by its writer and needs no repair; open it as it is.\n")
    assert main(["repair", str(abandoned.with_name("none.h5"))]) == 1
    assert "there is no run file" in capsys.readouterr().err


def test_what_was_not_announced_is_not_recovered(abandoned):
    # A row that was on its way when the writer died.
    with h5py.File(abandoned.with_name("more.h5"), "w"):
        pass
    writer = write_run(abandoned.with_name("living.h5"))
    writer.append("snapshots", 0, row(0))
    writer._file["snapshots/loss"].resize(2, axis=0)
    writer._file["snapshots/loss"].flush()
    shutil.copy(writer.path, abandoned)
    writer.close()
    repair_run(abandoned)
    with h5py.File(abandoned) as file:
        assert file["snapshots/loss"].shape[0] == 1


def test_it_is_repaired_to_another_place(abandoned, tmp_path):
    before = abandoned.read_bytes()
    output = repair_run(abandoned, tmp_path / "new" / "out.h5")
    assert contents(output) == contents(abandoned)
    assert abandoned.read_bytes() == before
    assert [entry.name for entry in output.parent.iterdir()] == ["out.h5"]
    with pytest.raises(RunFileError, match="exists already and is not overwritten"):
        repair_run(abandoned, output)


def test_backups_are_numbered(abandoned):
    again = abandoned.read_bytes()
    repair_run(abandoned)
    abandoned.write_bytes(again)
    repair_run(abandoned)
    assert sorted(entry.name for entry in abandoned.parent.iterdir()) == [
        "run.h5",
        "run.h5.backup-1",
        "run.h5.backup-2",
    ]


def test_without_hard_links_the_old_file_is_kept_too(abandoned, monkeypatch):
    before = abandoned.read_bytes()
    monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError(errno.EPERM, "no links here")))
    repair_run(abandoned)
    assert not left_open(abandoned)
    assert abandoned.with_name("run.h5.backup-1").read_bytes() == before


def test_a_repair_that_fails_leaves_all_as_it_was(abandoned, monkeypatch):
    before = abandoned.read_bytes()
    calls = []

    def full(handle, folder, needed):
        calls.append(needed)
        # Room for the new file, but not for its rows.
        if len(calls) > 1:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr("dynamics.store.writer.require_room", full)
    with pytest.raises(RunFileError, match="No space left on device"):
        repair_run(abandoned)
    assert abandoned.read_bytes() == before
    assert list(abandoned.parent.iterdir()) == [abandoned]


_LIVING = """
import sys
from tests.store.conftest import row, write_run
writer = write_run(sys.argv[1])
writer.append("snapshots", 0, row(0))
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def living(path):
    child = subprocess.Popen(
        [sys.executable, "-c", _LIVING, str(path)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    child.stdout.readline()
    yield child
    child.kill()
    child.communicate()


def test_a_living_writer_is_left_alone(path, living):
    held = (
        f"{path} is held by a training that still writes to it, or by a program that reads it through HDF5; "
        "wait until it ends, or end it. The file can be read meanwhile."
    )
    for act in (lambda: repair_run(path), lambda: repair_run(path, force=True), lambda: continue_run(path, 0)):
        with pytest.raises(RunFileError) as error:
            act()
        assert str(error.value) == held
    assert list(path.parent.iterdir()) == [path]
    assert check_run(path).state == "being written"
    # A reader of its own kind, opened while the writer lived, is no writer once that is dead.
    with open_run(path) as reader:
        assert not reader._left_behind
        living.kill()
        living.wait()
        assert check_run(path).state == "left open"
        repair_run(path)
        assert reader.steps.tolist() == [0]
    assert check_run(path).state == "closed"


def test_the_lock_is_given_back_at_closing_and_not_kept_by_forked_children(path):
    writer = write_run(path)
    assert writer_state(path) == "at work"
    child = os.fork()
    if child == 0:
        # A data-loading worker.
        from dynamics.store.left_open import _held

        os._exit(len([lock for lock in _held if lock._closer.alive]))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert writer_state(path) == "at work"
    writer.close()
    assert writer_state(path) == "gone"


@pytest.fixture
def lockless(monkeypatch):
    """A file system that knows no locks, for us and for HDF5."""

    def flock(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    def file(name, mode="r", locking=None, **options):
        if locking is not False and "fileobj" not in options and not hasattr(name, "readinto"):
            raise OSError("Unable to open file (unable to lock file, errno = 37, error message = 'No locks available')")
        return opened(name, mode, **options)

    opened = h5py.File
    monkeypatch.setattr(fcntl, "flock", flock)
    monkeypatch.setattr(left_open_module.h5py, "File", file)


def test_a_file_system_without_locks(path, lockless):
    writer = write_run(path)
    writer.append("snapshots", 0, row(0))
    with open_run(path) as run:
        assert run.steps.tolist() == [0]
        writer.append("snapshots", 1, row(1))
        writer.append_metrics(1, {"a": 1.0})
        run.refresh()
        assert run.steps.tolist() == [0, 1]
        np.testing.assert_array_equal(run["loss"][1], row(1)["loss"])
        assert run.metrics.labels("metric").tolist() == ["a"]
        assert check_run(path).state == "open"
        with pytest.raises(RunFileError) as error:
            repair_run(path)
        assert str(error.value) == (
            f"whether a training still writes to {path} cannot be told, since its file system has no locks; "
            "if you know that none does, repeat this with --force (force=True)."
        )
        shutil.copy(path, path.with_name("copy.h5"))
        repair_run(path.with_name("copy.h5"), force=True)
        writer.close()
        run.refresh()
        assert run.finished
    with open_run(path) as run, open_run(path.with_name("copy.h5")) as copy:
        assert run.steps.tolist() == copy.steps.tolist() == [0, 1]


def test_locks_that_are_asked_for_where_there_are_none(path, lockless, monkeypatch):
    monkeypatch.setenv("HDF5_USE_FILE_LOCKING", "TRUE")
    with pytest.raises(RunFileError) as error:
        write_run(path)
    assert str(error.value) == (
        f"the run file {path} cannot be created (HDF5_USE_FILE_LOCKING asks for locks, which this file system lacks; "
        "unset it); make room or choose another place."
    )


def test_a_lock_of_another_program_is_respected(path):
    write_run(path).close()
    with path.open("rb") as file:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX)
        with pytest.raises(RunFileError, match="unable to lock file"):
            open_run(path)


@pytest.mark.parametrize("closed", [True, False])
def test_writing_goes_on_where_a_checkpoint_was_made(path, abandoned, closed):
    if closed:
        repair_run(abandoned)
    until = contents(abandoned)
    with open_run(path) as notebook:
        writer = continue_run(path, 10)
        assert notebook.steps.tolist() == [0, 10, 20]
        with open_run(path) as run:
            assert run.steps.tolist() == run.metrics.steps.tolist() == [0, 10]
            assert run.train.steps.tolist() == [0]
            assert run.metrics.labels("metric").tolist() == ["a", "b"]
        writer.append("train", 10, {"gradient_norm": np.full(3, 10, np.float32)})
        writer.append("snapshots", 20, row(20))
        writer.append("train", 20, {"gradient_norm": np.full(3, 20, np.float32)})
        writer.append_metrics(20, METRICS[2])
        writer.close()
    with open_run(path) as run:
        assert run.metrics.labels("metric").tolist() == ["a", "b", "d"]
    there = contents(path)
    for key in until:
        if key[0] in ("snapshots", "train"):
            assert there[key] == until[key]
    assert there["rest"][1]
    backups = [entry for entry in path.parent.iterdir() if "backup" in entry.name]
    assert len(backups) == (2 if closed else 1)
    with open_run(backups[-1]) as run:
        assert len(run.steps) == 3


def test_a_newer_minor_version_is_read_but_not_copied(path):
    write_run(path).close()
    with h5py.File(path, "r+") as file:
        file.attrs["format_version"] = "1.7"
    with pytest.raises(RunFileError) as error:
        continue_run(path, 0)
    assert str(error.value) == (
        f"{path} has format version 1.7 and may hold what this version of dynamics (1.1) does not know. Use the "
        "version of gap-dynamics that wrote it."
    )


def test_two_who_repair_at_once(abandoned, monkeypatch):
    # The second has opened the old file when the first has put the new one into its place.
    taken = repair_module.take_exclusively

    def late(descriptor):
        monkeypatch.setattr(repair_module, "take_exclusively", taken)
        repair_run(abandoned)
        return taken(descriptor)

    monkeypatch.setattr(repair_module, "take_exclusively", late)
    with pytest.raises(RunFileError, match="is held by a training"):
        repair_run(abandoned)
    assert sorted(entry.name for entry in abandoned.parent.iterdir()) == ["run.h5", "run.h5.backup-1"]


def test_check_tells_what_is_there(abandoned, capfd):
    assert main(["check", str(abandoned)]) == 0
    assert capfd.readouterr().out == (
        f"{abandoned}\n"
        f"  format version 1.1, {abandoned.stat().st_size:,} bytes, left open; training did not come to its end\n"
        "  3 components, L0H0 to L0MLP\n"
        "  snapshots: 3 rows (steps 0 to 20) of flag, loss, small\n"
        "  train: 3 rows (steps 0 to 20) of gradient_norm\n"
        "  metrics: 3 rows (steps 0 to 20) of value\n"
        "every row can be read\n"
        f"its writer died without closing it: python -m dynamics.store repair {abandoned}\n"
    )


def test_check_names_damage(path):
    writer = write_run(path)
    fill(writer)
    writer.close()
    with h5py.File(path) as file:
        chunk = file["snapshots/loss"].id.get_chunk_info(1)
    data = bytearray(path.read_bytes())
    data[chunk.byte_offset + 50 : chunk.byte_offset + 60] = bytes(10)
    path.write_bytes(data)
    child = subprocess.run([sys.executable, "-m", "dynamics.store", "check", str(path)], capture_output=True, text=True)
    assert child.returncode == 1
    assert f"damaged:\n  snapshots/loss, row 1 of 3: {path} is a run file but incomplete or damaged: " in child.stdout
    report = check_run(path)
    assert len(report.problems) == 1
    # The other rows and arrays are there still.
    with open_run(path) as run:
        assert np.array_equal(run["flag"][2], row(20)["flag"])


def test_check_survives_a_file_that_kills_its_reader(path, monkeypatch, capfd):
    write_run(path).close()
    killer = path.parent / "sitecustomize.py"
    killer.write_text("import os, signal, sys\nif '--here' in sys.orig_argv: os.kill(os.getpid(), signal.SIGSEGV)\n")
    monkeypatch.setenv("PYTHONPATH", f"{path.parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    assert main(["check", str(path)]) == 1
    assert capfd.readouterr().out == f"{path}\ndamaged:\n  reading it ended by SIGSEGV; do not open it.\n"


def test_a_file_that_may_not_be_read(path, monkeypatch):
    write_run(path).close()
    monkeypatch.setattr(
        reader_module, "left_open", lambda _: (_ for _ in ()).throw(PermissionError(13, "Permission denied"))
    )
    with pytest.raises(RunFileError) as error:
        open_run(path)
    assert str(error.value) == (
        f"{path} may not be read by this user ([Errno 13] Permission denied); ask its owner for permission."
    )
